"""DRO over a chi-squared ball: the paper's third uncertainty set, which has theory but no experiment."""

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200
from search_spaces.protocols.ours import GLYPHS_DRO_LONG
from tune_dml.space import Arm, Grid, Knob, Space, Value

_MARGIN: dict[str, Value] = {"loss.base": "margin", "loss.margin": 0.2, "loss.threshold": 0.5}
_RADIUS = Knob("loss.radius", Grid((0.1, 0.5, 1.0, 3.0, 10.0), scale="log"), symbol="radius", origin="ours")
_K = Knob("loss.k", Grid((160, 280)), symbol="K", unit="unordered pairs")
_GAMMA = Knob("loss.gamma", Grid((0.1, 0.5)), symbol="gamma")

SPACE = Space(
    name="dro_chi2",
    title="DRO over a chi-squared ball: its radius",
    question="Is a ball around equal weights, which regularises the variance of pair losses, as good as top K and KL?",
    citation=DRO.cite("section 3.1"),
    scientific=(_RADIUS,),
    arms=(
        Arm("mean of margin losses", {"loss.name": "margin_all", "loss.denominator": "nonzero"}, knobs=()),
        Arm("DRO-chi2_M", {"loss.name": "dro_chi2", "loss.drop_zeros": True, **_MARGIN}),
        Arm("DRO-TopK_M", {"loss.name": "dro_topk", **_MARGIN}, knobs=(), own_knobs=(_K,)),
        Arm("DRO-KL_M", {"loss.name": "dro_kl", "loss.drop_zeros": True, **_MARGIN}, knobs=(), own_knobs=(_GAMMA,)),
    ),
    baseline="mean of margin losses",
    positive_pairs=160,
    protocols=(GLYPHS_DRO_LONG, DRO_CUB200, DRO_CARS196),
    notes=(
        "The paper has no experiment with this set: the radii are ours, and so is every number.",
        "K and gamma are two values of the paper's grids for batches of 80; dro_k and dro_gamma have all of them.",
    ),
)
