"""Imbalance of positive and negative pairs at one batch size: by the pictures per class."""

from __future__ import annotations

from search_spaces.protocols.dro import DRO_INSHOP_64
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Grid, Knob, Space

SPACE = Space(
    name="dro_imbalance_instances",
    title="Imbalance by pictures per class: M varies, B = 80, K = 160",
    question="Does imbalance matter when every batch costs the same?",
    citation=None,
    scientific=(Knob("batch.instances_per_class", Grid((2, 4, 5, 8, 10)), symbol="M", unit="pictures", origin="ours"),),
    fixed={"loss.name": "dro_topk", "loss.base": "margin", "loss.k": 160, "batch.batch_size": 80},
    protocols=(GLYPHS_DRO, DRO_INSHOP_64),
    margin=1.0,
    notes=("Positive to negative pairs = (M-1)/(B-M): 0.013, 0.039, 0.053, 0.097, 0.129.",),
)
