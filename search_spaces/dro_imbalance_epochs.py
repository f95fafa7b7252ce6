"""Imbalance of positive and negative pairs at equal pictures seen: batch size with epochs and a scaled learning rate."""

from __future__ import annotations

from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Grid, Knob, Space, Tie

SPACE = Space(
    name="dro_imbalance_epochs",
    title="Imbalance by batch size at equal pictures seen: lr = B * 2.5e-5",
    question="Does imbalance matter when every batch size sees the same pictures at a rate that fits it?",
    citation=None,
    scientific=(
        Knob(
            "batch.batch_size",
            Grid((80, 160, 320, 640), scale="log"),
            symbol="B",
            unit="pictures",
            origin="ours",
        ),
    ),
    fixed={
        "loss.name": "dro_topk",
        "loss.base": "margin",
        "batch.instances_per_class": 5,
        "training.epochs": 5,
        "training.eval_every": 100,
    },
    ties=(Tie("loss.k", "batch.batch_size", 2), Tie("optim.lr", "batch.batch_size", 2.5e-5)),
    protocols=(GLYPHS_DRO,),
    margin=1.0,
    notes=(
        "Steps times B and lr over B are the same in every cell (linear scaling); the rate is that of glyphs at B = 80.",
    ),
)
