"""Normalised N-pair: the scale of its logits."""

from __future__ import annotations

from search_spaces.papers import SEC
from search_spaces.protocols.ours import DIGITS_QUICK, GLYPHS_TRIPLET
from search_spaces.protocols.sec import SEC_CARS196_NPAIR, SEC_CUB200_NPAIR, SEC_INSHOP_NPAIR, SEC_SOP_NPAIR
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="npair_scale",
    title="Normalised N-pair: scale s",
    question="How large should the scale of the cosines be, and does it matter?",
    citation=SEC.at("supplement, section B (25 chosen, 64 tried and worse)"),
    scientific=(Knob("loss.scale", Grid((5.0, 10.0, 25.0, 64.0, 100.0), scale="log"), symbol="s", origin="ours"),),
    fixed={"loss.name": "npair"},
    baseline=Baseline("semihard triplet", {"loss.name": "semihard_triplet"}),
    protocols=(
        GLYPHS_TRIPLET,
        DIGITS_QUICK,
        SEC_CUB200_NPAIR,
        SEC_CARS196_NPAIR,
        SEC_SOP_NPAIR,
        SEC_INSHOP_NPAIR,
    ),
    margin=1.0,
    notes=("The paper tried 25 and 64 and prints no figures of the comparison; the range around them is ours.",),
)
