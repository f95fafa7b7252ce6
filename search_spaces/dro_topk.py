"""DRO-TopK: how many of the hardest pairs of a batch count."""

from __future__ import annotations

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="dro_topk",
    title="DRO-TopK: number K of hardest pairs",
    question="How many of the hardest pairs of a batch should the loss see, and does it matter?",
    citation=DRO.at("section 4.1 (grid) and Table 1 (best K only)"),
    scientific=(Knob("loss.k", Grid((160, 200, 240, 280)), symbol="K", unit="unordered pairs"),),
    fixed={"loss.name": "dro_topk", "loss.base": "margin", "loss.margin": 0.2, "loss.threshold": 0.5},
    baseline=Baseline("mean of all pairs", {"loss.name": "margin_all"}),
    protocols=(GLYPHS_DRO, DRO_CUB200, DRO_CARS196),
    margin=1.0,
    identities=("19: K >= the number of pairs is the mean of all pairs, K = 1 the largest loss",),
    notes=(
        "Batches of 80 with 5 pictures a class hold 160 positive pairs: K = 160 is one positive pair's worth each.",
        "The paper prints only the best K of the grid: R@1 67.4 on CUB200-2011 and 86.0 on Cars196, selected on test.",
    ),
)
