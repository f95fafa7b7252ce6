"""Imbalance of positive and negative pairs as the DRO paper varies it: by the batch size."""

from __future__ import annotations

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Grid, Knob, Space, Tie

SPACE = Space(
    name="dro_imbalance",
    title="Imbalance by batch size: B varies, M = 5, K = 2B",
    question="Does a loss over the hardest pairs stand the imbalance of large batches?",
    citation=DRO.at("supplement, Figure 5 (ratios of positive to negative pairs .053 to .006)"),
    scientific=(Knob("batch.batch_size", Grid((80, 160, 320, 640), scale="log"), symbol="B", unit="pictures"),),
    fixed={"loss.name": "dro_topk", "loss.base": "margin", "batch.instances_per_class": 5},
    ties=(Tie("loss.k", "batch.batch_size", 2),),
    protocols=(GLYPHS_DRO, DRO_INSHOP),
    margin=1.0,
    notes=(
        "Positive to negative pairs = (M-1)/(B-M): 0.053, 0.026, 0.013, 0.006. The steps are the same for every B, so a "
        "larger batch also sees more pictures: dro_imbalance_instances and dro_imbalance_epochs take that apart.",
        "Batches of B need B/5 training classes, which CUB200-2011 and Cars196 do not have.",
    ),
)
