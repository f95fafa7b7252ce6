"""DRO over a chi-squared ball: the third uncertainty set of the paper, of which it has theory and no experiment."""

from __future__ import annotations

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200, DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="dro_chi2",
    title="DRO over a chi-squared ball: its radius",
    question="Is a ball around equal weights, which regularises the variance of pair losses, as good as top K and KL?",
    citation=DRO.at("section 3.1"),
    scientific=(Knob("loss.radius", Grid((0.1, 0.5, 1.0, 3.0, 10.0), scale="log"), symbol="radius", origin="ours"),),
    fixed={
        "loss.name": "dro_chi2",
        "loss.base": "margin",
        "loss.margin": 0.2,
        "loss.threshold": 0.5,
        "loss.drop_zeros": True,
    },
    baseline=Baseline(
        "mean of all pairs",
        {"loss.name": "margin_all", "loss.margin": 0.2, "loss.threshold": 0.5, "loss.denominator": "nonzero"},
    ),
    protocols=(GLYPHS_DRO, DRO_CUB200, DRO_CARS196, DRO_INSHOP),
    margin=1.0,
    notes=("The paper has no experiment with this set: the grid is ours, and so is every number.",),
)
