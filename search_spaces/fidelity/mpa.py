"""MPA: the paper; its authors released no code."""

from __future__ import annotations

from search_spaces.fidelity.shared import CROP_224, CUT_AT_256, ON_VALIDATION, WEIGHTS, names_of
from search_spaces.papers import MPA
from search_spaces.protocols.mpa import MPA_ANCHOR, MPA_AP, MPA_DW, MPA_PROXY_ANCHOR, MPA_PROXY_NCA, MPA_SOFT_TRIPLE
from tune_dml.space import Decision, FidelitySheet

_SECTION = "paper, section 4.2"
_NOT_STATED = "not stated (paper, section 4.2)"
_AS_PROXY_ANCHOR = "As in the released code of Proxy-Anchor, whose losses the paper extends."

MPA_SHEET = FidelitySheet(
    "MPA",
    MPA,
    "Paper, sections 4.1 to 4.4; no code was released, and none was found under the paper's name.",
    names_of(*MPA_ANCHOR, *MPA_DW, *MPA_AP, *MPA_SOFT_TRIPLE, *MPA_PROXY_ANCHOR, *MPA_PROXY_NCA),
    (
        Decision(
            "start of the backbone",
            "BN-Inception with ImageNet weights; which file is not stated",
            _SECTION,
            WEIGHTS,
            ours="the file that every released code loads",
        ),
        Decision(
            "head",
            "generalised mean pooling with exponent 3, 512 dimensions",
            _SECTION,
            {"model.pooling": "gem", "model.p": 3.0, "model.head": "fc", "model.embedding_dim": 512},
        ),
        Decision(
            "start of the head",
            "not stated",
            _NOT_STATED,
            ours="He normal over the outputs, zero biases",
            verdict="unknown",
            why=_AS_PROXY_ANCHOR,
        ),
        Decision(
            "start of proxies",
            "not stated",
            _NOT_STATED,
            ours="normal of variance 2 / (C K)",
            verdict="unknown",
            why=_AS_PROXY_ANCHOR,
            protocols=("mpa/cub200", "mpa/cars196", "mpa/sop", "*-dw", "*-ap", "*-proxy-anchor", "*-proxy-nca"),
        ),
        Decision(
            "start of proxies",
            "not stated",
            _NOT_STATED,
            ours="uniform within 1 / sqrt(C K)",
            verdict="unknown",
            why="As in the released code of SoftTriple.",
            protocols=("*-soft-triple",),
        ),
        Decision(
            "weight decay",
            "AdamW; how much is not stated",
            _SECTION,
            ours="1e-4 on every parameter, proxies among them",
            verdict="unknown",
            why=_AS_PROXY_ANCHOR,
        ),
        Decision(
            "learning rates",
            "backbone 1e-4, proxies 1e-2; the head's is not stated",
            _SECTION,
            {
                "optim.name": "adamw",
                "optim.lr": 1e-4,
                "optim.backbone_lr_multiplier": 1.0,
                "optim.loss_lr_multiplier": 100.0,
            },
            ours="the head has the rate of the backbone",
        ),
        Decision(
            "schedule",
            "halved every 20 epochs",
            _SECTION,
            {"optim.lr_schedule": "every_epochs", "optim.lr_decay_epochs": 20, "optim.lr_decay": 0.5},
        ),
        Decision(
            "schedule",
            "no warm-up is stated",
            _NOT_STATED,
            ours="the first epoch trains only head and proxies",
            verdict="unknown",
            why=_AS_PROXY_ANCHOR,
        ),
        Decision(
            "gradients",
            "no limit is stated",
            _NOT_STATED,
            ours="each entry is clipped to 10",
            verdict="unknown",
            why=_AS_PROXY_ANCHOR,
        ),
        Decision(
            "batch normalisation",
            "not stated",
            _NOT_STATED,
            ours="frozen on CUB and Cars, trains on SOP; gamma and beta train",
            verdict="unknown",
            why=_AS_PROXY_ANCHOR,
        ),
        Decision(
            "training pictures",
            "resized and cropped at random to 224, mirrored at random; scale and ratio are not stated",
            _SECTION,
            CROP_224,
            ours="scale and ratio are torchvision's defaults",
        ),
        Decision(
            "training pictures",
            "whether windows are cut from the original picture is not stated",
            _NOT_STATED,
            ours="from the picture with a shorter side of 256 pixels",
            verdict="unknown",
            why=CUT_AT_256,
        ),
        Decision(
            "test pictures",
            "resized to 256 x 256, centre crop of 224",
            _SECTION,
            ours="shorter side 256, centre crop of 224",
            verdict="differs",
            why="Pictures keep their shape, as in the released codes of the other papers.",
        ),
        Decision(
            "channels",
            "not stated",
            _NOT_STATED,
            ours="BGR from 0 to 255, less (104, 117, 128)",
            verdict="unknown",
            why="As every released code that loads these weights, except SEC's.",
        ),
        Decision(
            "batches",
            "180 pictures at random",
            _SECTION,
            {"batch.sampler": "random", "batch.batch_size": 180},
            protocols=("mpa/cub200*",),
        ),
        Decision(
            "batches",
            "64 pictures at random",
            _SECTION,
            {"batch.sampler": "random", "batch.batch_size": 64},
            protocols=("mpa/cars196*",),
        ),
        Decision(
            "batches",
            "32 pictures at random",
            _SECTION,
            {"batch.sampler": "random", "batch.batch_size": 32},
            protocols=("mpa/sop*",),
        ),
        Decision("steps", "60 epochs", _SECTION, {"training.epochs": 60}, protocols=("mpa/cub200*", "mpa/cars196*")),
        Decision("steps", "100 epochs", _SECTION, {"training.epochs": 100}, protocols=("mpa/sop*",)),
        Decision(
            "published number",
            "the mean of three runs on test classes; there are no validation classes, and when a run is evaluated is not "
            "stated",
            "paper, sections 4.1 and 4.2",
            {"data.split": "paper_test_selection"},
            ours=ON_VALIDATION,
            verdict="differs",
            why="Test classes stay sealed. Selection on test is a labelled mode here, not the default.",
        ),
    ),
)
