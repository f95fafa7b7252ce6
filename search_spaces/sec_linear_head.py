"""SEC in contrastive learning with a linear head, as the rebuttal first tried it."""

from search_spaces.papers import SEC
from search_spaces.protocols.ours import IMAGE_FOLDER_SIMCLR_LINEAR_HEAD
from search_spaces.protocols.simclr import GLYPHS_SIMCLR_LINEAR_HEAD, SIMCLR_LINEAR_HEAD
from tune_dml.space import Arm, Grid, Knob, SourcedSettings, Space

SPACE = Space(
    name="sec_linear_head",
    title="SEC for contrastive learning with a linear head",
    question="Does SEC help contrastive learning where nothing but a linear layer follows the features?",
    citation=SEC.cite("rebuttal, Table 1"),
    scientific=(Knob("regularizer.eta", Grid((0.05, 0.1, 0.25), scale="log"), symbol="eta", origin="ours"),),
    fixed={
        "task.name": "contrastive",
        "data.split": "shared_classes",
        "batch.sampler": "random",
        "loss.name": "nt_xent",
    },
    arms=(
        Arm("NT-Xent", {"regularizer.name": "none"}, knobs=()),
        Arm(
            "NT-Xent+SEC",
            {"regularizer.name": "sec", "regularizer.rho": 1.0, "regularizer.schedule": "linear"},
            against=("NT-Xent",),
        ),
    ),
    baseline="NT-Xent",
    stated=(SourcedSettings(SEC.source("rebuttal, Table 1"), {"model.head": "fc"}),),
    protocols=(GLYPHS_SIMCLR_LINEAR_HEAD, IMAGE_FOLDER_SIMCLR_LINEAR_HEAD, *SIMCLR_LINEAR_HEAD),
    published=(
        SEC.table("1", "rebuttal").curve(
            "CIFAR-10",
            ("NT-Xent+SEC",),
            "eta",
            metric="top1",
            baseline="NT-Xent",
            note="150 epochs, a linear head, and a learning rate between 0.1 and 0.5, chosen for each.",
        ),
    ),
    metric="val/linear_top1",
    identities=("2: eta = 0 is the base loss, bit for bit",),
    notes=(
        "The paper searched the learning rate between 0.1 and 0.5 for both: `--tune optim.lr` does so.",
        "The weight 0.1 is printed; whether it grows over training is not: linearly, as in the supplement.",
    ),
)
