"""Time per iteration: three variants of DRO beside the losses and minings they replace."""

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Arm, Grid, Knob, Space, Tie, Value

_MARGIN: dict[str, Value] = {"loss.margin": 0.2, "loss.threshold": 0.5}
_DOUBLED = (Tie("loss.k", "batch.batch_size", 2),)

SPACE = Space(
    name="dro_runtime",
    title="Seconds an iteration by batch size: seven methods",
    question="Does choosing pairs from the whole batch cost less than choosing them anchor by anchor?",
    citation=DRO.cite("section 4.2.4, Figure 3"),
    scientific=(Knob("batch.batch_size", Grid((80, 160, 320, 480, 640), scale="log"), symbol="B", unit="pictures"),),
    fixed={"batch.instances_per_class": 5},
    arms=(
        Arm("SH", {"loss.name": "margin_semihard", **_MARGIN}),
        Arm("DWS", {"loss.name": "margin_dws", **_MARGIN}),
        Arm("LS", {"loss.name": "lifted_structure", "loss.threshold": 0.5, "loss.reduction": "mean"}),
        Arm("MS", {"loss.name": "multi_similarity", "loss.alpha": 2.0, "loss.beta": 50.0, "loss.base": 0.5}),
        Arm("DRO-TopK_M", {"loss.name": "dro_topk", "loss.base": "margin", **_MARGIN}, ties=_DOUBLED),
        Arm("DRO-TopK-PN_M", {"loss.name": "dro_topk_pn", "loss.base": "margin", **_MARGIN}, ties=_DOUBLED),
        Arm("DRO-KL_M", {"loss.name": "dro_kl", "loss.base": "margin", "loss.gamma": 0.1, **_MARGIN}),
    ),
    baseline="SH",
    protocols=(GLYPHS_DRO, DRO_INSHOP),
    differs="seven methods are compared as they are, in how long they take",
    notes=(
        "The figure shows the trials' measured seconds per training iteration; the retrieval metrics are recorded too. The "
        "paper's figure has no numbers. Its runs used eight GTX 1080 Ti; times depend on the machine, ratios of times less so.",
        "benchmarks/losses.py times only the losses, beside other implementations.",
    ),
)
