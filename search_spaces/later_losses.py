"""Later losses beside those of the three papers, and cross-batch memory beside a larger batch."""

from search_spaces.protocols.ours import GLYPHS_DRO, GLYPHS_PROXY
from search_spaces.protocols.proxy_anchor import (
    PROXY_ANCHOR_CARS196,
    PROXY_ANCHOR_CUB200,
    PROXY_ANCHOR_INSHOP,
    PROXY_ANCHOR_SOP,
)
from search_spaces.protocols.recipes import PAIRS, PROXIES
from search_spaces.protocols.sec import SEC_MS_PLAIN
from tune_dml.space import Arm, Grid, Knob, Space

_PROXIES = (GLYPHS_PROXY, PROXY_ANCHOR_CUB200, PROXY_ANCHOR_CARS196, PROXY_ANCHOR_SOP, PROXY_ANCHOR_INSHOP)
_PAIRS = ("multi-similarity",)

SPACE = Space(
    name="later_losses",
    title="Losses of later years: SupCon, Circle, Proxy-NCA++, the Recall@k surrogate",
    question="Do the losses that came after these papers do better on equal terms?",
    arms=(
        Arm("multi-similarity", {"loss.name": "multi_similarity"}),
        Arm("SupCon", {"loss.name": "supcon"}, against=_PAIRS),
        Arm("Circle", {"loss.name": "circle"}, against=_PAIRS),
        Arm("Recall@k surrogate", {"loss.name": "recall_at_k_surrogate"}, against=_PAIRS),
        Arm(
            "Proxy-NCA++",
            {"loss.name": "proxy_nca_pp"},
            protocols=_PROXIES,
            against=("Proxy-Anchor",),
            stated=(PROXIES.stated,),
        ),
        Arm("Proxy-Anchor", {"loss.name": "proxy_anchor"}, protocols=_PROXIES, stated=(PROXIES.stated,)),
    ),
    baseline="multi-similarity",
    stated=(PAIRS.stated,),
    protocols=(GLYPHS_DRO, *SEC_MS_PLAIN),
    differs="proxy losses draw batches at random and train as Proxy-Anchor, on glyphs for twice the steps; pair losses draw "
    "five pictures a class and train as plain multi-similarity",
    notes=("Each loss has the values of its own paper; `--tune optim.lr` gives each its own rate.",),
)

MEMORY = Space(
    name="memory_size",
    title="Cross-batch memory beside DRO-TopK: pictures remembered",
    question="Does a memory of earlier batches do what a batch of 640 does?",
    scientific=(Knob("memory.size", Grid((160, 640, 1600)), symbol="memory", unit="pictures", origin="ours"),),
    fixed={"loss.name": "dro_topk", "loss.base": "margin", "loss.k": 160},
    arms=(Arm("no memory", {"memory.size": 0}, knobs=()), Arm("memory", {"memory.start": 50}, against=("no memory",))),
    baseline="no memory",
    positive_pairs=160,
    protocols=(GLYPHS_DRO,),
    notes=(
        "With an empty memory only the current batch counts. dro_imbalance has the batches of 640 that a memory is to replace.",
    ),
)
