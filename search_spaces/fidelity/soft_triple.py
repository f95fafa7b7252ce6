"""SoftTriple: the released code (idstcv/SoftTriple, commit cc1c32d)."""

from __future__ import annotations

from search_spaces.fidelity.shared import CROP_224, CUT_AT_256, ON_VALIDATION, SELECTION, WEIGHTS, names_of
from search_spaces.papers import SOFT_TRIPLE
from search_spaces.protocols import soft_triple
from tune_dml.space import Decision, FidelitySheet

SOFT_TRIPLE_SHEET = FidelitySheet(
    "SoftTriple",
    SOFT_TRIPLE,
    "Released code at commit cc1c32d, with the options of the command for Cars196 in its README.",
    names_of(soft_triple.SOFT_TRIPLE_CUB200, soft_triple.SOFT_TRIPLE_CARS196, soft_triple.SOFT_TRIPLE_SOP),
    (
        Decision(
            "start of the backbone",
            "BN-Inception with the published ImageNet weights",
            "net/bninception.py, lines 497 to 508",
            WEIGHTS,
        ),
        Decision(
            "head",
            "average pooling, one linear layer to 64 dimensions",
            "net/bninception.py, lines 253 and 490 to 492; train.py, line 50",
            {"model.pooling": "avg", "model.head": "fc", "model.embedding_dim": 64},
        ),
        Decision(
            "start of the head",
            "nn.Linear as torch starts it",
            "net/bninception.py, line 253; no other call draws weights",
            {"model.head_init": "torch"},
        ),
        Decision(
            "start of proxies",
            "uniform within 1 / sqrt(C K)",
            "loss/SoftTriple.py, lines 19 and 24",
            ours="the same",
        ),
        Decision(
            "weight decay",
            "Adam's coupled decay of 1e-4 on every parameter, centres among them; epsilon 0.01",
            "train.py, lines 42, 46 and 84 to 86",
            {
                "optim.name": "adam",
                "optim.eps": 0.01,
                "optim.weight_decay": 1e-4,
                "optim.weight_decay_on": "all",
                "optim.loss_weight_decay": 1e-4,
            },
        ),
        Decision(
            "learning rates",
            "1e-4 for head and backbone, 1e-2 for centres",
            "train.py, lines 38 to 41, 84 and 85",
            {"optim.lr": 1e-4, "optim.backbone_lr_multiplier": 1.0, "optim.loss_lr_multiplier": 100.0},
        ),
        Decision(
            "schedule",
            "divided by 10 after 19 and 39 epochs, so that the twentieth and the fortieth epoch have the lower rate",
            "train.py, lines 122 to 124 and 176 to 180",
            {"optim.lr_schedule": "epoch_milestones", "optim.lr_epochs": [19, 39], "optim.lr_decay": 0.1},
        ),
        Decision(
            "gradients",
            "no limit",
            "train.py, lines 153 to 155",
            {"optim.clip_value": None, "optim.clip_norm": None},
        ),
        Decision(
            "batch normalisation",
            "stays in evaluation mode; gamma and beta train and decay",
            "train.py, lines 137 to 141; README.md, line 20 (--freeze_BN)",
            {"model.freeze_bn": True, "model.freeze_bn_affine": False},
            protocols=("soft_triple/cars196",),
        ),
        Decision(
            "batch normalisation",
            "an option of the code; no command is printed for this data set",
            "train.py, lines 137 to 141",
            ours="frozen, gamma and beta train",
            verdict="unknown",
            why="As on Cars196.",
            protocols=("soft_triple/cub200", "soft_triple/sop"),
        ),
        Decision(
            "training pictures",
            "a window of .08 to 1 of the area and ratio 3/4 to 4/3 resized to 224, mirrored half the time",
            "train.py, lines 97 to 104",
            CROP_224,
        ),
        Decision(
            "training pictures",
            "the window is cut from the original picture",
            "train.py, line 99",
            ours="from the picture with a shorter side of 256 pixels",
            verdict="differs",
            why=CUT_AT_256,
        ),
        Decision(
            "test pictures",
            "shorter side 256, centre crop of 224",
            "train.py, lines 111 to 118",
            {"augment.resize": 256, "augment.crop": 224},
        ),
        Decision(
            "channels",
            "BGR from 0 to 255, less (104, 117, 128)",
            "train.py, lines 68 to 71 and 92 to 103",
            {"model.red_mean": 128.0},
            ours="BGR; blue and green are less 104 and 117",
        ),
        Decision(
            "batches",
            "32 pictures of a shuffled pass",
            "train.py, lines 36 and 106 to 108",
            {"batch.sampler": "random", "batch.batch_size": 32},
        ),
        Decision(
            "batches",
            "the last batch of a pass is smaller",
            "train.py, lines 106 to 108",
            ours="it is dropped",
            verdict="differs",
            why="All batches have the same size; later passes show the dropped pictures.",
        ),
        Decision("steps", "50 epochs", "train.py, line 32", {"training.epochs": 50}),
        Decision(
            "published number",
            "one evaluation on test classes after the last epoch; no validation classes",
            "train.py, lines 122 to 132",
            {"data.split": "paper_test_selection", "evaluation.epoch": "last"},
            ours=ON_VALIDATION,
            verdict="differs",
            why=SELECTION,
        ),
    ),
)
