"""SimCLR in the SEC paper (supplement, Table 7): CIFAR-10 and CIFAR-100, judged by linear evaluation."""

from search_spaces.papers import SEC
from search_spaces.protocols.shared import our_protocol
from tune_dml.space import Protocol, SourcedSettings

_COMMON = (
    SourcedSettings(f"{SEC.source('supplement, section B.3')} (ResNet-50, two-layer head, cosine from .5)", {
        "task.name": "contrastive",
        "loss.name": "nt_xent",
        "model.backbone": "resnet50", "model.pooling": "avg", "model.head": "mlp",
        "optim.lr": 0.5, "optim.lr_schedule": "cosine",
        "task.linear_lrs": [1.0, 2.0, 5.0, 10.0], "task.linear_epochs": 100, "task.linear_batch_size": 256,
        "augment.name": "simclr",
    }),
    SourcedSettings("open: not stated; SimCLR's code for CIFAR", {
        "model.stem": "small",
        "optim.momentum": 0.9, "optim.weight_decay": 1e-4,
        "batch.sampler": "random",
        "training.precision": "bf16",
    }),
    SourcedSettings("open: not stated; as in the authors' released code for retrieval", {"model.head_init": "torch"}),
    SourcedSettings(
        "open: the rebuttal reports the best accuracy on test pictures; ours chooses on pictures held out from training",
        {
            "data.split": "shared_classes", "data.validation_fraction": 0.1,
            "evaluation.epoch": "last",
            "training.eval_every": 4000,
        },
    ),
)  # fmt: skip


_REBUTTAL = SEC.source("rebuttal, Table 1")


def _protocols(suffix: str, *stated: SourcedSettings, source: str | None = None) -> tuple[Protocol, ...]:
    """Return one protocol per data set; `source` is that of the settings which the rebuttal alone prints."""
    printed_once = SourcedSettings(
        source or "open: not stated; as in the rebuttal's linear-head runs",
        {"optim.name": "sgd", "loss.temperature": 0.5, "batch.batch_size": 256, "model.embedding_dim": 128},
    )
    return tuple(
        Protocol.from_paper(f"sec/{name}{suffix}", name, *_COMMON, printed_once, *stated, default=not suffix)
        for name in ("cifar10", "cifar100")
    )


SIMCLR = _protocols("", SourcedSettings(SEC.source("supplement, Table 7"), {"training.epochs": 100}))
SIMCLR_LONGER = _protocols("-200", SourcedSettings(SEC.source("supplement, Table 7"), {"training.epochs": 200}))
SIMCLR_LINEAR_HEAD = _protocols(
    "-linear",
    SourcedSettings(
        f"{_REBUTTAL} (linear head, 150 epochs)",
        {"model.head": "fc", "training.epochs": 150},
    ),
    SourcedSettings("open: one from .1 to .5, found by a grid search (rebuttal, Table 1)", {"optim.lr": 0.3}),
    SourcedSettings(
        f"{SEC.source('rebuttal')} (reviewer 2: classifier with lr in {{2, 5, 10}} for 50 epochs)",
        {"task.linear_lrs": [2.0, 5.0, 10.0], "task.linear_epochs": 50},
    ),
    source=_REBUTTAL,
)

GLYPHS_SIMCLR = our_protocol(
    "glyphs/simclr",
    settings={
        "task.name": "contrastive", "task.linear_epochs": 20,
        "data.split": "shared_classes",
        "loss.name": "nt_xent", "loss.temperature": 0.1,
        "augment.name": "simclr", "augment.crop": 24, "augment.resize": 24, "augment.scale": [0.3, 1.0],
        "augment.flip": 0.0,
        "model.backbone": "small_conv", "model.width": 8, "model.pooling": "avg", "model.head": "mlp",
        "model.head_init": "torch", "model.embedding_dim": 64,
        "batch.sampler": "random", "batch.batch_size": 128,
        "optim.name": "adamw", "optim.lr": 2e-3, "optim.lr_schedule": "cosine",
        "training.steps": 200, "training.eval_every": 200,
    },
    note="583 characters, told apart by a linear classifier after pretraining without labels; some ten seconds a trial "
    "on one CPU core. The mirror image of a character is another one, and crops leave a character legible.",
)  # fmt: skip

GLYPHS_SIMCLR_LONGER = our_protocol(
    "glyphs/simclr-longer",
    settings={**GLYPHS_SIMCLR.settings, "training.steps": 400, "training.eval_every": 400},
    note="twice the steps, as 200 epochs are twice 100.",
)

GLYPHS_SIMCLR_LINEAR_HEAD = our_protocol(
    "glyphs/simclr-linear",
    settings={**GLYPHS_SIMCLR.settings, "model.head": "fc", "training.steps": 300, "training.eval_every": 300},
    note="one layer after the features, and half as many steps again, as 150 epochs are to 100.",
)

DIGITS_SIMCLR = our_protocol(
    "digits/simclr",
    settings={
        "task.name": "contrastive", "task.linear_epochs": 10,
        "data.split": "shared_classes",
        "loss.name": "nt_xent",
        "augment.name": "simclr", "augment.crop": 16, "augment.resize": 16, "augment.scale": [0.5, 1.0],
        "augment.flip": 0.0,
        "model.head": "mlp", "model.head_init": "torch", "model.embedding_dim": 16,
        "batch.sampler": "random", "batch.batch_size": 64,
        "optim.lr": 1e-3,
        "training.steps": 60, "training.eval_every": 30,
    },
    note="a smoke test.",
)  # fmt: skip
