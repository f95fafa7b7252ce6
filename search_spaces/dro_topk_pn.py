"""DRO-TopK-PN: the hardest pairs, half of them positive."""

from __future__ import annotations

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="dro_topk_pn",
    title="DRO-TopK-PN: number K of hardest pairs, half positive",
    question="How many of the hardest pairs should count when half of them are positive, and does it matter?",
    citation=DRO.at("section 4.1 (grid) and Table 1 (best K only)"),
    scientific=(Knob("loss.k", Grid((160, 200, 240, 280)), symbol="K", unit="unordered pairs"),),
    fixed={"loss.name": "dro_topk_pn", "loss.base": "margin", "loss.margin": 0.2, "loss.threshold": 0.5},
    baseline=Baseline("mean of all pairs", {"loss.name": "margin_all"}),
    protocols=(GLYPHS_DRO, DRO_CUB200, DRO_CARS196),
    margin=1.0,
    identities=("23: K twice the smaller group of two equal groups is the mean of all pairs",),
    notes=(
        "The printed program gives a sum; text and code take the average over the selected pairs, as here.",
        "The paper prints only the best K of the grid: R@1 67.3 on CUB200-2011 and 86.1 on Cars196, selected on test.",
    ),
)
