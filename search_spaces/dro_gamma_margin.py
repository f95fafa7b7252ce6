"""DRO-KL: temperature and margin together, since both decide which pairs count."""

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200, DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Grid, Knob, Space

SPACE = Space(
    name="dro_gamma_margin",
    title="DRO-KL: temperature gamma and margin m",
    question="Does the best temperature depend on how many pairs have a loss?",
    citation=DRO.cite("section 4.1 (gamma) and section 4.2.1 (m = .2)"),
    scientific=(
        Knob("loss.gamma", Grid((0.1, 0.3, 0.9), scale="log"), symbol="gamma"),
        Knob("loss.margin", Grid((0.1, 0.2, 0.4)), symbol="m", origin="ours"),
    ),
    fixed={"loss.name": "dro_kl", "loss.base": "margin", "loss.threshold": 0.5, "loss.drop_zeros": True},
    protocols=(GLYPHS_DRO, DRO_CUB200, DRO_CARS196, DRO_INSHOP),
    identities=("26: gamma to infinity is the mean of all pairs, gamma to 0 the largest loss",),
    notes=("The paper has m = 0.2 throughout.",),
)
