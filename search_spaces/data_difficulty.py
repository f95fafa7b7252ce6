"""Studies with harder training data: wrong labels, few pictures per class, long-tailed class sizes."""

from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200, DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO
from search_spaces.protocols.recipes import PAIRS
from search_spaces.protocols.sec import SEC_TRIPLET
from tune_dml.space import Arm, Grid, Knob, Space

_ARMS = (
    Arm("triplet", {"loss.name": "triplet"}),
    Arm("multi-similarity", {"loss.name": "multi_similarity"}),
    Arm("DRO-TopK", {"loss.name": "dro_topk", "loss.base": "margin", "loss.k": 160}),
)
_SOP = next(protocol for protocol in SEC_TRIPLET if protocol.dataset == "sop")  # the DRO paper has no SOP
_PROTOCOLS = (GLYPHS_DRO, DRO_CUB200, DRO_CARS196, DRO_INSHOP, _SOP)


def _space(name: str, title: str, question: str, knob: Knob, note: str) -> Space:
    return Space(
        name=name,
        title=title,
        question=question,
        scientific=(knob,),
        arms=_ARMS,
        baseline="triplet",
        stated=(PAIRS.stated,),
        positive_pairs=160,
        protocols=_PROTOCOLS,
        differs="three losses are compared as they are, on one protocol",
        notes=(note,),
    )


NOISE = _space(
    "label_noise",
    "Share of wrong labels among the training pictures",
    "Which losses tolerate wrong labels? Losses that weight hard pairs also weight mislabelled ones.",
    Knob("data.label_noise", Grid((0.0, 0.1, 0.3)), symbol="noise", origin="ours"),
    "The seed draws the wrong labels; validation and test keep theirs.",
)
PICTURES = _space(
    "pictures_per_class",
    "Few training pictures per class",
    "Which losses need many pictures per class?",
    Knob("data.pictures_per_class", Grid((5, 10, 20)), symbol="pictures", unit="a class", origin="ours"),
    "The seed draws the pictures that stay; validation and test keep theirs.",
)
TAIL = _space(
    "long_tail",
    "Long-tailed training classes, largest over smallest size",
    "Which losses tolerate classes of very different size?",
    Knob("data.long_tail", Grid((1.0, 2.0, 4.0), scale="log"), symbol="imbalance", origin="ours"),
    "Sizes fall exponentially from the largest class to the smallest; the seed draws the order of the classes.",
)
