"""L2-reg for contrastive learning: its weight beside NT-Xent."""

from __future__ import annotations

from search_spaces.papers import SEC
from search_spaces.protocols.simclr import DIGITS_SIMCLR, GLYPHS_SIMCLR, SIMCLR_CIFAR10, SIMCLR_CIFAR100
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="sec_simclr_l2",
    title="L2-reg for contrastive learning: weight eta beside NT-Xent",
    question="How sensitive is contrastive learning to the weight of the L2 norm penalty?",
    citation=SEC.at("supplement, contrastive learning (grid) and Table 7"),
    scientific=(Knob("regularizer.eta", Grid((5e-4, 1e-3, 5e-3, 1e-2, 5e-2), scale="log"), symbol="eta"),),
    fixed={
        "task.name": "contrastive",
        "data.split": "shared_classes",
        "batch.sampler": "random",
        "loss.name": "nt_xent",
        "regularizer.name": "l2",
        "regularizer.schedule": "linear",
    },
    baseline=Baseline("no L2-reg", {"regularizer.name": "none", "regularizer.eta": 0.0}),
    protocols=(GLYPHS_SIMCLR, DIGITS_SIMCLR, SIMCLR_CIFAR10, SIMCLR_CIFAR100),
    published=tuple(
        SEC.table("7", "supplement").curve(
            dataset,
            ("NT-Xent+L2-reg",),
            "eta",
            metric="top1",
            baseline="NT-Xent",
            where={"epochs": 100},
            note="Only the chosen eta is printed; linear evaluation on the test pictures, 100 epochs of training.",
        )
        for dataset in ("CIFAR-10", "CIFAR-100")
    ),
    metric="val/linear_top1",
    margin=1.0,
    identities=("3: L2-reg is SEC with a fixed mean of 0",),
    notes=("eta grows linearly from 0 to its value at the last step.",),
)
