"""SEC in contrastive learning: its weight beside NT-Xent, as SEC and as SEC-EMA."""

from __future__ import annotations

from search_spaces.papers import SEC
from search_spaces.protocols.simclr import DIGITS_SIMCLR, GLYPHS_SIMCLR, SIMCLR_CIFAR10, SIMCLR_CIFAR100
from tune_dml.space import Baseline, Grid, Knob, Published, Space

CITATION = SEC.at("supplement, contrastive learning (grid) and Table 7; rebuttal, Table 1")
ETA = Knob("regularizer.eta", Grid((0.01, 0.05, 0.1, 0.25, 0.5, 1.0), scale="log"), symbol="eta")
FIXED = {
    "task.name": "contrastive",
    "data.split": "shared_classes",
    "batch.sampler": "random",
    "loss.name": "nt_xent",
    "regularizer.name": "sec",
    "regularizer.schedule": "linear",
}
PLAIN = Baseline("no SEC", {"regularizer.name": "none", "regularizer.eta": 0.0})
PROTOCOLS = (GLYPHS_SIMCLR, DIGITS_SIMCLR, SIMCLR_CIFAR10, SIMCLR_CIFAR100)
NOTES = ("eta grows linearly from 0 to its value at the last step.",)


def _printed(method: str) -> tuple[Published, ...]:
    return tuple(
        SEC.table("7", "supplement").curve(
            dataset,
            (method,),
            "eta",
            metric=metric,
            baseline="NT-Xent",
            where={"epochs": epochs},
            note=f"Only the chosen eta is printed; linear evaluation on the test pictures, {epochs} epochs of training.",
        )
        for epochs in (100, 200)
        for dataset in ("CIFAR-10", "CIFAR-100")
        for metric in ("top1", "top5")
    )


REBUTTAL = SEC.table("1", "rebuttal").curve(
    "CIFAR-10",
    ("NT-Xent+SEC",),
    "eta",
    metric="top1",
    baseline="NT-Xent",
    note="150 epochs, a linear head, and a learning rate between 0.1 and 0.5.",
)

SPACE = Space(
    name="sec_simclr",
    title="SEC for contrastive learning: weight eta beside NT-Xent",
    question="Does pulling the norms together help representations learned without labels?",
    citation=CITATION,
    scientific=(ETA,),
    fixed={**FIXED, "regularizer.rho": 1.0},
    baseline=PLAIN,
    protocols=PROTOCOLS,
    published=(*_printed("NT-Xent+SEC"), REBUTTAL),
    metric="val/linear_top1",
    identities=("2: eta = 0 is the base loss, bit for bit",),
    notes=NOTES,
)

EMA = Space(
    name="sec_simclr_ema",
    title="SEC-EMA for contrastive learning: weight eta at momentum 0.2",
    question="Does a running mean of the norms change how the features answer to eta?",
    citation=CITATION,
    scientific=(ETA,),
    fixed={**FIXED, "regularizer.rho": 0.2},
    baseline=PLAIN,
    protocols=PROTOCOLS,
    published=_printed("NT-Xent+SEC-EMA"),
    metric="val/linear_top1",
    identities=("2: eta = 0 is the base loss, bit for bit",),
    notes=NOTES,
)
