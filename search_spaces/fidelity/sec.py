"""SEC: the released code for retrieval (Dyfine/SphericalEmbedding), the supplement and the rebuttal."""

from search_spaces.fidelity import shared
from search_spaces.papers import SEC
from search_spaces.protocols.sec import SEC_MS, SEC_MS_PLAIN, SEC_NPAIR, SEC_SEMIHARD, SEC_TML, SEC_TRIPLET
from tune_dml.space import Decision, FidelitySheet, Setting

_SMALL = ("sec/cub200*", "sec/cars196*")
_PRODUCTS = ("sec/sop*", "sec/inshop*")
_TRIPLET = ("sec/cub200", "sec/cars196", "sec/sop", "sec/inshop")


def _rates(theirs: str, source: str, head: float, backbone: float, names: str) -> Decision:
    """Return learning rates of the head and of the backbone, over the head's; `names` are protocols below sec/."""
    settings: dict[str, Setting] = {"optim.lr": head, "optim.backbone_lr_multiplier": backbone}
    return Decision("learning rates", theirs, source, settings, protocols=_below_sec(names))


def _milestones(theirs: str, source: str, steps: list[int], decay: float, names: str) -> Decision:
    """Return a schedule that multiplies the rates by `decay` at some steps."""
    settings: dict[str, Setting] = {"optim.lr_schedule": "milestones", "optim.lr_milestones": steps}
    return Decision("schedule", theirs, source, {**settings, "optim.lr_decay": decay}, protocols=_below_sec(names))


def _below_sec(names: str) -> tuple[str, ...]:
    return tuple(f"sec/{name}" for name in names.split())


_NETWORK = (
    Decision(
        "start of the backbone",
        "BN-Inception with the published ImageNet weights; other entries keep torch's start",
        "config.py, line 100; learner.py, lines 439 to 448",
        shared.WEIGHTS,
    ),
    Decision(
        "head",
        "average pooling, batch normalisation, one linear layer to 512 dimensions",
        "models/bninception.py, lines 237 to 243; supplement, section B.1",
        {"model.pooling": "avg", "model.head": "bn_fc", "model.embedding_dim": 512},
        protocols=(*_TRIPLET, "*-semihard", "*-npair", "*-ms"),
    ),
    shared.unknown(
        "head",
        "batch normalisation and one linear layer to 512 dimensions",
        "As with the other losses.",
        "*-tml",
        source="rebuttal, Table 4",
        theirs="not stated for the tuplet margin loss",
    ),
    Decision(
        "head",
        "multi-similarity without SEC and L2-reg: no batch normalisation",
        "README.md, lines 86 to 92; supplement, section B.1 (there without SEC)",
        {"model.pooling": "avg", "model.head": "fc", "model.embedding_dim": 512},
        protocols=("*-ms-plain",),
    ),
    Decision(
        "start of the head",
        "nn.Linear as torch starts it: weights and biases uniform within 1 / sqrt(1024); mean norm 13.1 with active batch "
        "normalisation",
        "models/bninception.py, lines 242 and 248; no other call draws weights",
        {"model.head_init": "torch"},
    ),
    shared.unknown(
        "start of the head",
        "a test measures it where pictures and weights are on the machine",
        "The paper does not state the mode of batch normalisation. 13.1 is the norm in training mode. In evaluation mode "
        "untrained statistics leave features as they are, and features of mean square 0.44 would give 8.70.",
        "sec/cars196",
        source="supplement, section C.1 and Table 4",
        theirs="mean norm 8.70 over the training set of Cars196 before training, with the triplet loss",
    ),
    Decision(
        "batch normalisation",
        "the backbone's stays in evaluation mode and its gamma and beta are in no optimizer group; the head's trains",
        "learner.py, lines 69 to 74 and 229 to 238; supplement, section B.1",
        {"model.freeze_bn": True, "model.freeze_bn_affine": True},
    ),
)

_MS: dict[str, Setting] = {"loss.alpha": 2.0, "loss.beta": 40.0, "loss.base": 0.5, "loss.epsilon": 0.1}
_TML: dict[str, Setting] = {"loss.margin": 0.1, "loss.ipv_weight": 0.5, "loss.ipv_epsilon": 0.01}

_LOSSES = (
    *(
        Decision("loss", theirs, "supplement, section B.1", settings, protocols=protocols)
        for theirs, settings, protocols in (
            ("margin 1", {"loss.margin": 1.0}, _TRIPLET),
            ("margin 0.2", {"loss.margin": 0.2}, ("*-semihard",)),
            ("scale 25; 64 was tried and is worse", {"loss.scale": 25.0}, ("*-npair",)),
            ("alpha 2, beta 40, lambda 0.5, epsilon 0.1", _MS, ("*-ms", "*-ms-plain")),
        )
    ),
    Decision("loss", "beta 0.1, lambda 0.5, epsilon 0.01", "rebuttal (reviewer 3, R5)", _TML, protocols=("*-tml",)),
    shared.unknown(
        "loss",
        "scale 64",
        "The value of the loss's own paper.",
        "*-tml",
        source="rebuttal, Table 4",
        theirs="the scale is not stated",
    ),
)

_OPTIMIZATION = (
    Decision(
        "weight decay",
        "Adam's coupled decay of 2.5e-3 on weights and biases, none on batch normalisation",
        "config.py, lines 39 and 52; learner.py, lines 61 to 74",
        {"optim.name": "adam", "optim.weight_decay": 2.5e-3, "optim.weight_decay_on": "all_but_norms"},
        protocols=_SMALL,
    ),
    Decision(
        "weight decay",
        "Adam's coupled decay of 1e-5 on weights and biases, none on batch normalisation",
        "config.py, lines 64 and 74; learner.py, lines 61 to 74",
        {"optim.name": "adam", "optim.weight_decay": 1e-5, "optim.weight_decay_on": "all_but_norms"},
        protocols=_PRODUCTS,
    ),
    _rates(
        "head 5e-6, backbone 2.5e-6", "README.md, line 58; supplement, Table 1", 5e-6, 0.5, "cub200 cub200-semihard"
    ),
    _rates("head 1e-5, backbone 5e-6", "config.py, lines 37 and 38; supplement, Table 1", 1e-5, 0.5, "cub200-npair"),
    _rates(
        "head 1e-5, backbone 1e-5",
        "config.py, lines 50 and 51; supplement, Table 1",
        1e-5,
        1.0,
        "cars196 cars196-semihard",
    ),
    _rates(
        "head 1e-5, backbone 1e-5; a footnote says that 2e-5 for both is better",
        "config.py, lines 50 and 51; supplement, Table 1",
        1e-5,
        1.0,
        "cars196-npair",
    ),
    _rates("head 5e-5, backbone 2.5e-5", "supplement, Table 1", 5e-5, 0.5, "cub200-ms"),
    _rates("head 4e-5, backbone 4e-5", "supplement, Table 1", 4e-5, 1.0, "cars196-ms"),
    _rates("without SEC and L2-reg: head 1e-5, backbone 5e-6", "README.md, line 80", 1e-5, 0.5, "cub200-ms-plain"),
    _rates("without SEC and L2-reg: head 2e-5, backbone 2e-5", "README.md, line 82", 2e-5, 1.0, "cars196-ms-plain"),
    Decision(
        "learning rates",
        "the code's defaults are 2.5e-4 and 5e-5; the supplement's Table 1 prints 5e-4 and 1e-4",
        "config.py, lines 62 and 63",
        {"optim.lr": 2.5e-4, "optim.backbone_lr_multiplier": 0.2},
        verdict="differs",
        why="The printed rates; README.md, line 78, says that the paper has the settings.",
        protocols=("sec/sop", "sec/sop-semihard", "sec/sop-npair", "sec/sop-ms", "sec/sop-ms-plain"),
    ),
    _rates(
        "head 5e-4, backbone 1e-4",
        "config.py, lines 72 and 73; supplement, Table 1",
        5e-4,
        0.2,
        "inshop inshop-semihard inshop-npair inshop-ms inshop-ms-plain",
    ),
    _rates(
        "head 4e-5, backbone 2e-5",
        "rebuttal, Table 4 (the header of Table 3 has the two the wrong way round)",
        4e-5,
        0.5,
        "cub200-tml",
    ),
    _rates("head 6e-5, backbone 6e-5", "rebuttal, Table 4", 6e-5, 1.0, "cars196-tml"),
    _rates("head 5e-4, backbone 1e-4", "rebuttal, Table 4", 5e-4, 0.2, "sop-tml"),
    _rates("head 1e-3, backbone 2e-4", "rebuttal, Table 4", 1e-3, 0.2, "inshop-tml"),
    _milestones(
        "divided by 10 just before step 5000",
        "config.py, line 46; learner.py, lines 132 to 137; supplement, Table 1; rebuttal, Table 4",
        [5000],
        0.1,
        "cub200 cub200-semihard cub200-npair cub200-tml",
    ),
    _milestones(
        "divided by 10 at steps 3000 and 6000; the rebuttal's Table 3 prints 5000 alone",
        "config.py, line 44; supplement, Table 1",
        [3000, 6000],
        0.1,
        "cub200-ms cub200-ms-plain",
    ),
    _milestones(
        "halved at steps 4000 and 6000",
        "config.py, line 58; supplement, Table 1; rebuttal, Table 4",
        [4000, 6000],
        0.5,
        "cars196 cars196-semihard cars196-npair cars196-tml",
    ),
    _milestones(
        "divided by 10 at step 2000",
        "config.py, line 56; supplement, Table 1",
        [2000],
        0.1,
        "cars196-ms cars196-ms-plain",
    ),
    _milestones(
        "divided by 10 at step 6000; two later milestones lie beyond the end",
        "config.py, lines 68 and 78; supplement, Table 1; rebuttal, Table 4",
        [6000],
        0.1,
        "sop* inshop*",
    ),
    shared.no_clipping("learner.py, lines 178 to 191"),
)

_DATA = (
    shared.random_crop_227("config.py, lines 105 to 112; supplement, section B.1"),
    shared.centre_crop(227, "config.py, lines 118 to 121; supplement, section B.1"),
    Decision(
        "channels",
        "RGB from 0 to 255, less (123, 117, 104), then reordered to BGR",
        "config.py, lines 114 to 116",
        {"model.red_mean": 123.0},
        ours="BGR; blue and green are less 104 and 117",
    ),
    Decision(
        "batches",
        "120 pictures: classes drawn without replacement, pictures of each without replacement if it has "
        "enough, independently "
        "at every step",
        "config.py, line 16; data_engine.py, lines 105 to 138",
        {"batch.sampler": "m_per_class", "batch.batch_size": 120},
        protocols=(*_TRIPLET, "*-semihard", "*-npair", "*-ms", "*-ms-plain"),
    ),
    Decision(
        "batches",
        "128 pictures, four of a class",
        "rebuttal, Table 4",
        {"batch.sampler": "m_per_class", "batch.batch_size": 128, "batch.instances_per_class": 4},
        protocols=("*-tml",),
    ),
    *(
        Decision(
            "batches",
            f"{word} pictures of a class",
            source,
            {"batch.instances_per_class": pictures},
            protocols=protocols,
        )
        for pictures, word, source, protocols in (
            (3, "three", "README.md, lines 58 and 76; supplement, section B.1", (*_TRIPLET, "*-semihard")),
            (2, "two", "README.md, line 76; supplement, section B.1", ("*-npair",)),
            (5, "five", "README.md, line 76; supplement, section B.1", ("*-ms", "*-ms-plain")),
        )
    ),
    Decision(
        "steps",
        "8,001: the loop ends after step 8000, counted from 0",
        "config.py, lines 47 and 59; learner.py, lines 119 to 124",
        {"training.steps": 8001},
        verdict="differs",
        why="8,000, as printed.",
        protocols=_SMALL,
    ),
    Decision(
        "steps",
        "12,001: the loop ends after step 12,000, counted from 0",
        "config.py, lines 69 and 79; learner.py, lines 119 to 124",
        {"training.steps": 12_001},
        verdict="differs",
        why="12,000, as printed.",
        protocols=_PRODUCTS,
    ),
    shared.selected_on_test(
        "test classes evaluated every 100 (CUB, Cars), 200 (In-Shop) or 500 steps (SOP); no validation "
        "classes; which evaluation is printed is not stated",
        "learner.py, lines 78 to 89 and 193 to 206",
    ),
)

SEC_SHEET = FidelitySheet(
    "SEC: retrieval",
    SEC,
    "Released code at commit f118c0e, supplement, rebuttal. Only the rebuttal has the tuplet margin loss.",
    shared.names_of(*SEC_TRIPLET, *SEC_SEMIHARD, *SEC_NPAIR, *SEC_MS, *SEC_MS_PLAIN, *SEC_TML),
    (*_NETWORK, *_LOSSES, *_OPTIMIZATION, *_DATA),
)
