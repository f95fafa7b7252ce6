"""Faces in the SEC paper (supplement, section on face recognition; Table 6): CASIA-WebFace, judged on LFW and others.

Backbone, batch size, scale, weight decay and the smaller margins of SphereFace and ArcFace are not in our sources.
"""

from search_spaces.papers import SEC
from search_spaces.protocols.shared import our_protocol
from tune_dml.space import Protocol, SourcedSettings

_COMMON = (
    SourcedSettings(f"{SEC.source('supplement, section B.2')} (16 epochs, lr .1, a tenth at epochs 10 and 14)", {
        "task.name": "face_recognition",
        "optim.lr": 0.1, "optim.lr_schedule": "epoch_milestones", "optim.lr_epochs": [10, 14], "optim.lr_decay": 0.1,
        "training.epochs": 16,
    }),
    SourcedSettings(SEC.source("supplement, Table 6"), {"task.test_sets": ["lfw_bin", "agedb30", "cfp_fp"]}),
    SourcedSettings("open: not stated; a usual setting for this data set", {
        "model.backbone": "resnet50", "model.stem": "small", "model.pooling": "avg", "model.head": "fc_bn",
        "model.embedding_dim": 512,
        "batch.sampler": "random", "batch.batch_size": 512,
        "optim.name": "sgd", "optim.momentum": 0.9, "optim.weight_decay": 5e-4, "optim.loss_weight_decay": 5e-4,
        "optim.loss_lr_multiplier": 1.0,
        "training.precision": "bf16",
    }),
    SourcedSettings("open: not stated; as in the authors' released code for retrieval", {"model.head_init": "torch"}),
    SourcedSettings("open: mirror images are the only augmentation of aligned faces", {
        "augment.name": "crop_flip", "augment.crop": 112, "augment.resize": 112, "augment.scale": [1.0, 1.0],
        "augment.ratio": [1.0, 1.0],
    }),
    SourcedSettings("open: the paper selects on the test sets; ours on people held out from training", {
        "data.split": "class_disjoint", "data.validation_fraction": 0.05,
        "evaluation.epoch": "last",
        "training.eval_every": 2000,
    }),
)  # fmt: skip


def _protocol(suffix: str, stated: SourcedSettings, *, default: bool = False) -> Protocol:
    note = "Pass --set task.evaluation_root=DIR with the verification files; validation holds 5% of the people out."
    return Protocol.from_paper(f"sec/webface{suffix}", "webface", *_COMMON, stated, note=note, default=default)


FACES_ARCFACE = _protocol(
    "",
    SourcedSettings(
        "open: smaller than .5, at which training diverged; the value is not in our sources",
        {"loss.name": "arcface", "loss.margin": 0.4, "loss.scale": 64.0},
    ),
    default=True,
)
FACES_SOFTMAX = _protocol(
    "-softmax", SourcedSettings("open: the plain softmax of unit vectors", {"loss.name": "softmax"})
)
FACES_COSFACE = _protocol(
    "-cosface",
    SourcedSettings(
        "open: largely as the original paper, whose values these are; none is printed",
        {"loss.name": "cosface", "loss.margin": 0.35, "loss.scale": 64.0},
    ),
)
FACES_SPHEREFACE = _protocol(
    "-sphereface",
    SourcedSettings(
        "open: smaller than 4, at which training diverged; the value is not in our sources",
        {"loss.name": "sphereface", "loss.margin": 3},
    ),
)

FACES = (FACES_ARCFACE, FACES_COSFACE, FACES_SPHEREFACE, FACES_SOFTMAX)

GLYPHS_FACE = our_protocol(
    "glyphs/face",
    settings={
        "task.name": "face_recognition", "task.mirror": False, "task.distractors": [100, 500],
        "loss.name": "arcface", "loss.margin": 0.2, "loss.scale": 16.0,
        "model.backbone": "small_conv", "model.width": 8, "model.pooling": "avg", "model.head": "bn_fc",
        "model.head_init": "torch", "model.embedding_dim": 64,
        "batch.sampler": "random", "batch.batch_size": 128,
        "optim.name": "adamw", "optim.lr": 5e-3, "optim.lr_schedule": "cosine", "optim.loss_lr_multiplier": 10.0,
        "training.epochs": 16, "training.eval_every": 272,
    },
    note="same character or not, among characters never trained on; some ten seconds a trial on one CPU core. 16 "
    "epochs, as on CASIA-WebFace. The mirror image of a character is another one, so descriptors leave mirror images out.",
)  # fmt: skip

DIGITS_FACE = our_protocol(
    "digits/face",
    settings={
        "task.name": "face_recognition", "task.mirror": False, "task.pairs": 400, "task.distractors": [10, 100],
        "loss.name": "arcface", "loss.margin": 0.2, "loss.scale": 16.0,
        "model.head_init": "torch", "model.embedding_dim": 16,
        "batch.sampler": "random", "batch.batch_size": 32,
        "optim.lr": 1e-3,
        "training.epochs": 6, "training.eval_every": 30,
        "data.validation_fraction": 0.4,
    },
    note="a smoke test with three classes to train on.",
)  # fmt: skip
