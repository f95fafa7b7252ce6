"""Proxy-Anchor: the released code (tjddus9597/Proxy-Anchor-CVPR2020, commit 51db570) and the commands of its README."""

from search_spaces.fidelity import shared
from search_spaces.papers import PROXY_ANCHOR
from search_spaces.protocols import proxy_anchor
from tune_dml.space import Decision, FidelitySheet

_SMALL = ("proxy_anchor/cub200", "proxy_anchor/cars196")
_LARGE = ("proxy_anchor/sop", "proxy_anchor/inshop")

PROXY_ANCHOR_SHEET = FidelitySheet(
    "Proxy-Anchor",
    PROXY_ANCHOR,
    "Released code at commit 51db570, with the options of the commands in its README. Files lie in code/.",
    shared.names_of(
        proxy_anchor.PROXY_ANCHOR_CUB200,
        proxy_anchor.PROXY_ANCHOR_CARS196,
        proxy_anchor.PROXY_ANCHOR_SOP,
        proxy_anchor.PROXY_ANCHOR_INSHOP,
    ),
    (
        shared.published_weights("net/bn_inception.py, lines 21 to 25"),
        Decision(
            "head",
            "average plus maximum pooling, one linear layer to 512 dimensions",
            "net/bn_inception.py, lines 27 to 30 and 519 to 526",
            {"model.pooling": "avg_max", "model.head": "fc", "model.embedding_dim": 512},
        ),
        Decision(
            "start of the head",
            "He normal over the outputs, zero biases",
            "net/bn_inception.py, lines 31 and 32",
            {"model.head_init": "he_fan_out"},
        ),
        Decision("loss", "alpha 32, delta 0.1", "train.py (its defaults)", {"loss.alpha": 32.0, "loss.delta": 0.1}),
        Decision(
            "start of proxies",
            "He normal over the classes: variance 2 / C",
            "losses.py, lines 30 and 31",
            ours="normal of variance 2 / (C K)",
        ),
        Decision(
            "weight decay",
            "AdamW's decoupled decay of 1e-4 on every parameter, proxies among them",
            "train.py, lines 236 to 254",
            {
                "optim.name": "adamw",
                "optim.weight_decay": 1e-4,
                "optim.weight_decay_on": "all",
                "optim.loss_weight_decay": 1e-4,
            },
        ),
        Decision(
            "learning rates",
            "1e-4 for head and backbone, 1e-2 for proxies",
            "train.py, lines 236 to 242; README.md",
            {"optim.lr": 1e-4, "optim.backbone_lr_multiplier": 1.0, "optim.loss_lr_multiplier": 100.0},
            protocols=_SMALL,
        ),
        Decision(
            "learning rates",
            "6e-4 for head and backbone, 6e-2 for proxies",
            "train.py, lines 236 to 242; README.md",
            {"optim.lr": 6e-4, "optim.backbone_lr_multiplier": 1.0, "optim.loss_lr_multiplier": 100.0},
            protocols=_LARGE,
        ),
        Decision(
            "schedule",
            "the first epoch trains only head and proxies",
            "train.py, lines 275 to 287; README.md",
            {"optim.freeze_backbone_epochs": 1.0},
        ),
        Decision(
            "schedule",
            "halved every 10 epochs",
            "train.py, line 256; README.md",
            {"optim.lr_schedule": "every_epochs", "optim.lr_decay_epochs": 10, "optim.lr_decay": 0.5},
            protocols=("proxy_anchor/cub200",),
        ),
        Decision(
            "schedule",
            "halved every 20 epochs",
            "train.py, line 256; README.md",
            {"optim.lr_schedule": "every_epochs", "optim.lr_decay_epochs": 20, "optim.lr_decay": 0.5},
            protocols=("proxy_anchor/cars196",),
        ),
        Decision(
            "schedule",
            "divided by 4 every 20 epochs",
            "train.py, line 256; README.md",
            {"optim.lr_schedule": "every_epochs", "optim.lr_decay_epochs": 20, "optim.lr_decay": 0.25},
            protocols=_LARGE,
        ),
        Decision("gradients", "each entry is clipped to 10", "train.py, lines 298 to 300", {"optim.clip_value": 10.0}),
        Decision(
            "batch normalisation",
            "the backbone's stays in evaluation mode; gamma and beta train once the first epoch has switched them on",
            "net/bn_inception.py, lines 34 to 39; train.py, lines 266 to 287",
            {"model.freeze_bn": True, "model.freeze_bn_affine": False},
            protocols=_SMALL,
        ),
        Decision(
            "batch normalisation", "trains", "README.md (--bn-freeze 0)", {"model.freeze_bn": False}, protocols=_LARGE
        ),
        shared.random_crop_224("dataset/utils.py, lines 88 to 92"),
        shared.cut_from_original("dataset/utils.py, line 91"),
        shared.centre_crop(224, "dataset/utils.py, lines 93 and 94"),
        shared.bgr("dataset/utils.py, lines 86 to 97"),
        Decision(
            "batches",
            "180 pictures of a shuffled pass, the incomplete last batch dropped",
            "train.py, lines 142 to 149; README.md",
            {"batch.sampler": "random", "batch.batch_size": 180},
        ),
        Decision("steps", "60 epochs", "train.py, line 43", {"training.epochs": 60}),
        shared.selected_on_test(
            "the best of the evaluations on test classes after every epoch",
            "train.py, lines 315 to 353",
            epoch="best_validation",
        ),
    ),
)
