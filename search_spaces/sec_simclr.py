"""SEC for contrastive learning: its weight beside NT-Xent."""

from __future__ import annotations

from search_spaces.protocols.simclr import GLYPHS_SIMCLR, SIMCLR_CIFAR10, SIMCLR_CIFAR100
from tune_dml.space import Baseline, Citation, Grid, Knob, Published, Space

SPACE = Space(
    name="sec_simclr",
    title="SEC for contrastive learning: weight eta beside NT-Xent",
    question="Does pulling the norms together help representations learned without labels?",
    citation=Citation(
        authors="Zhang, Li, Zhang",
        title="Deep Metric Learning with Spherical Embedding",
        venue="NeurIPS",
        year=2020,
        place="supplement, contrastive learning (grid) and Table 7",
    ),
    scientific=(Knob("regularizer.eta", Grid((0.01, 0.05, 0.1, 0.25, 0.5, 1.0), scale="log"), symbol="eta"),),
    fixed={"regularizer.name": "sec", "regularizer.rho": 1.0, "regularizer.schedule": "linear"},
    baseline=Baseline("no SEC", {"regularizer.name": "none", "regularizer.eta": 0.0}),
    protocols=(GLYPHS_SIMCLR, SIMCLR_CIFAR10, SIMCLR_CIFAR100),
    published=tuple(
        Published(
            paper="SEC-supplement",
            table="7",
            dataset=dataset,
            methods=("NT-Xent+SEC",),
            hyperparameter="eta",
            metric="top1",
            baseline_method="NT-Xent",
            backbone="ResNet-50",
            embedding_dim=128,
            where={"epochs": 100},
            note="Only the chosen eta is printed; linear evaluation on the test pictures, 100 epochs of training.",
        )
        for dataset in ("CIFAR-10", "CIFAR-100")
    ),
    metric="val/linear_top1",
    margin=0.5,
    identities=("eta = 0 is the base loss, bit for bit",),
    notes=("eta grows linearly from 0 to its value at the last step.",),
)
