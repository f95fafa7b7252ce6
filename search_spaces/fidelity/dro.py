"""DRO: the released code (qiqi-helloworld, commit e12a417) and the paper."""

from search_spaces.fidelity import shared
from search_spaces.papers import DRO
from search_spaces.protocols import dro
from tune_dml.space import Decision, FidelitySheet

_NARROW = ("*-64",)
_WIDE = ("dro/cub200", "dro/cars196", "dro/inshop")
_SMALL = ("dro/cub200*", "dro/cars196*")

DRO_SHEET = FidelitySheet(
    "DRO",
    DRO,
    "Released code at commit e12a417, paper. The code's scripts are for CUB with 512 dimensions.",
    shared.names_of(
        dro.DRO_CUB200, dro.DRO_CUB200_64, dro.DRO_CARS196, dro.DRO_CARS196_64, dro.DRO_INSHOP, dro.DRO_INSHOP_64
    ),
    (
        shared.published_weights("models/BN_Inception.py, lines 516 to 526"),
        Decision(
            "head",
            "maximum pooling and one linear layer; 512 dimensions in the scripts",
            "models/BN_Inception.py, lines 503 to 512; run_train_00.sh, line 29",
            {"model.pooling": "max", "model.head": "fc", "model.embedding_dim": 512},
            verdict="differs",
            why="Dimension 1024, as the paper's section 4.1 has it.",
            protocols=_WIDE,
        ),
        Decision(
            "head",
            "maximum pooling and one linear layer to 64 dimensions",
            "models/BN_Inception.py, lines 503 to 512; paper, section 4.2.1",
            {"model.pooling": "max", "model.head": "fc", "model.embedding_dim": 64},
            protocols=_NARROW,
        ),
        Decision(
            "start of the head",
            "weights of nn.Linear as torch starts them, zero biases",
            "models/BN_Inception.py, lines 6 to 12 and 257 to 264",
            {"model.head_init": "torch_zero_bias"},
        ),
        Decision(
            "weight decay",
            "Adam's coupled decay of 5e-4 on every parameter",
            "train.py, lines 78, 79 and 181",
            {"optim.name": "adam", "optim.weight_decay": 5e-4, "optim.weight_decay_on": "all"},
        ),
        Decision(
            "learning rates",
            "1e-5 for head and backbone",
            "train.py, lines 78 and 79; run_train_00.sh, line 32; paper, section 4",
            {"optim.lr": 1e-5, "optim.backbone_lr_multiplier": 1.0},
        ),
        Decision(
            "schedule",
            "constant: nothing reads `lr_mul`, which is set after the second epoch",
            "train.py, lines 106 and 107",
            {"optim.lr_schedule": "constant"},
        ),
        shared.no_clipping("trainer.py, lines 41 and 42"),
        Decision(
            "batch normalisation",
            "the backbone's stays in evaluation mode; its gamma and beta train and decay",
            "train.py, lines 27 to 30 and 71 to 79; trainer.py never calls train()",
            {"model.freeze_bn": True, "model.freeze_bn_affine": False},
        ),
        shared.random_crop_227("DataSet/CUB200.py, lines 28 to 36; run_train_00.sh, lines 34 and 57"),
        shared.centre_crop(227, "DataSet/CUB200.py, lines 54 to 61"),
        shared.bgr("DataSet/CUB200.py, lines 20 to 22 and 30"),
        Decision(
            "batches",
            "80 pictures, five of a class",
            "utils/sampler.py, lines 42 to 71; run_train_00.sh, lines 33 and 52; paper, sections 4.1 and 4.2.1",
            {"batch.sampler": "m_per_class", "batch.batch_size": 80, "batch.instances_per_class": 5},
            protocols=(*_SMALL, "*-64"),
        ),
        Decision(
            "batches",
            "an epoch passes once over the classes in random order",
            "utils/sampler.py, lines 42 to 71",
            ours="classes are drawn independently at every step",
            verdict="differs",
            why="One sampler serves all protocols, as SEC's code draws; every class is as frequent on average.",
        ),
        Decision(
            "batches",
            "640 pictures, five of a class",
            "paper, sections 4.1, 4.2.2 and 4.2.3",
            {"batch.sampler": "m_per_class", "batch.batch_size": 640, "batch.instances_per_class": 5},
            protocols=("dro/inshop",),
        ),
        Decision(
            "steps",
            "1200 epochs of 6 batches: 100 classes of five pictures in batches of 80, the incomplete last one dropped",
            "train.py, lines 92 to 95; run_train_00.sh, line 54",
            {"training.steps": 7200},
            protocols=_SMALL,
        ),
        Decision(
            "steps",
            "not stated; 1200 epochs of the code would be 37,200 steps; section 4.2.4 times 200 epochs",
            "train.py, lines 92 to 95",
            {"training.steps": 37_200},
            verdict="differs",
            why="12,000, as long as SEC trains on In-Shop.",
            protocols=("dro/inshop",),
        ),
        Decision(
            "steps",
            "not stated; 1200 epochs of the code would be 298,800 steps in batches of 80",
            "train.py, lines 92 to 95",
            {"training.steps": 298_800},
            verdict="differs",
            why="12,000, as long as SEC trains on In-Shop.",
            protocols=("dro/inshop-64",),
        ),
        shared.selected_on_test(
            "the weights of every fiftieth epoch are evaluated on test classes; there are no validation classes, "
            "and which evaluation is printed is not stated",
            "train.py, lines 109 to 118; run_train_00.sh, lines 66 to 77",
        ),
    ),
)
