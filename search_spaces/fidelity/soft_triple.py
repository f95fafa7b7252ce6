"""SoftTriple: the released code (idstcv/SoftTriple, commit cc1c32d)."""

from search_spaces.fidelity import shared
from search_spaces.papers import SOFT_TRIPLE
from search_spaces.protocols import soft_triple
from tune_dml.space import Decision, FidelitySheet

SOFT_TRIPLE_SHEET = FidelitySheet(
    "SoftTriple",
    SOFT_TRIPLE,
    "Released code at commit cc1c32d, with the options of the command for Cars196 in its README.",
    shared.names_of(soft_triple.SOFT_TRIPLE_CUB200, soft_triple.SOFT_TRIPLE_CARS196, soft_triple.SOFT_TRIPLE_SOP),
    (
        shared.published_weights("net/bninception.py, lines 497 to 508"),
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
            "loss",
            "lambda 20, gamma 0.1, tau 0.2, delta 0.01",
            "train.py (its defaults)",
            {"loss.la": 20.0, "loss.gamma": 0.1, "loss.tau": 0.2, "loss.delta": 0.01},
        ),
        Decision(
            "loss",
            "ten centres a class",
            "train.py (its default)",
            {"loss.proxies_per_class": 10},
            protocols=("soft_triple/cub200", "soft_triple/cars196"),
        ),
        shared.unknown(
            "loss",
            "two centres a class",
            "As the MPA paper reran it; classes have few pictures.",
            "soft_triple/sop",
            source="README.md",
            theirs="no command is printed for this data set",
        ),
        Decision(
            "start of proxies", "uniform within 1 / sqrt(C K)", "loss/SoftTriple.py, lines 19 and 24", ours="the same"
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
        shared.no_clipping("train.py, lines 153 to 155"),
        Decision(
            "batch normalisation",
            "stays in evaluation mode; gamma and beta train and decay",
            "train.py, lines 137 to 141; README.md, line 20 (--freeze_BN)",
            {"model.freeze_bn": True, "model.freeze_bn_affine": False},
            protocols=("soft_triple/cars196",),
        ),
        shared.unknown(
            "batch normalisation",
            "frozen, gamma and beta train",
            "As on Cars196.",
            "soft_triple/cub200",
            "soft_triple/sop",
            source="train.py, lines 137 to 141",
            theirs="an option of the code; no command is printed for this data set",
        ),
        shared.random_crop_224("train.py, lines 97 to 104"),
        shared.cut_from_original("train.py, line 99"),
        shared.centre_crop(224, "train.py, lines 111 to 118"),
        shared.bgr("train.py, lines 68 to 71 and 92 to 103"),
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
        shared.selected_on_test(
            "one evaluation on test classes after the last epoch; no validation classes",
            "train.py, lines 122 to 132",
            epoch="last",
        ),
    ),
)
