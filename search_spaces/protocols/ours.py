"""Our protocols for the embedded data and a user's own pictures: seconds to minutes a trial.

Each protocol sets network, batch size, steps and learning rate for a data set. By loss, `recipes` sets pictures per class,
sampler and the learning rate of proxies; a study and its arms set the rest.
"""

from search_spaces.protocols import faces, simclr
from search_spaces.protocols.recipes import PAIRS, PROXIES
from search_spaces.protocols.shared import our_protocol
from tune_dml.space import Value

_GLYPHS: dict[str, Value] = {
    "model.backbone": "small_conv", "model.width": 8, "model.pooling": "avg", "model.head": "fc",
    "model.embedding_dim": 64,
    "optim.name": "adamw", "optim.lr": 4e-3, "optim.lr_schedule": "cosine", "optim.weight_decay": 1e-4,
    "data.pictures_per_class": 5,
    "training.steps": 800, "training.eval_every": 200,
}  # fmt: skip
"""A trial takes seconds on one CPU core, since few pictures need few steps. docs/log.md has R@1 at twice the steps."""

GLYPHS_TRIPLET = our_protocol(
    "glyphs/triplet",
    default=True,
    settings={**_GLYPHS, "batch.batch_size": 90},
    methods=("triplet", "semihard_triplet", "npair", "multi_similarity", "tuplet_margin"),
    still_gains={"semihard_triplet": 1.3, "tuplet_margin": 1.6},
    note="five pictures of each training class and 800 steps; twice as many add less than a point with the triplet, "
    "N-pair and multi-similarity losses.",
)

GLYPHS_TRIPLET_LONG = our_protocol(
    "glyphs/triplet-long",
    settings={**GLYPHS_TRIPLET.settings, "training.steps": 1600, "training.eval_every": 400},
    methods=GLYPHS_TRIPLET.methods,
    note="glyphs/triplet with twice the steps, because the semihard triplet and tuplet margin losses learn longer; "
    "twice as many add less than a point to them, too.",
)

GLYPHS_PROXY = our_protocol(
    "glyphs/proxy",
    settings={**_GLYPHS, "batch.batch_size": 90, "optim.lr": 2e-3},
    methods=PROXIES.methods,
    note="five pictures of each training class, and half the learning rate: at 4e-3 proxies learn less.",
)

GLYPHS_DRO = our_protocol(
    "glyphs/dro",
    settings={**_GLYPHS, "batch.batch_size": 80},
    methods=PAIRS.methods,
    still_gains={"margin_all": 6.5},
    note="the batches of the DRO paper's small data sets, 16 classes of 5, so that its K means the same; five pictures "
    "of each training class.",
)

GLYPHS_DRO_LONG = our_protocol(
    "glyphs/dro-long",
    settings={**GLYPHS_DRO.settings, "training.steps": 3200, "training.eval_every": 800},
    methods=PAIRS.methods,
    note="glyphs/dro with four times the steps, because the mean of all pairs learns slowly: most pairs have no loss. "
    "Twice as many add less than a point to it, too.",
)

GLYPHS_DRO_LARGE = our_protocol(
    "glyphs/dro-large",
    settings={**GLYPHS_DRO.settings, "batch.batch_size": 640, "training.steps": 400, "training.eval_every": 100},
    methods=PAIRS.methods,
    still_gains={"margin_all": 2.4},
    note="the batches of the DRO paper's In-Shop, 128 classes of 5, and half of glyphs/dro's steps; twice as many add "
    "less than a point, except to the mean of all pairs.",
)

DIGITS_QUICK = our_protocol(
    "digits/quick",
    default=True,
    settings={
        "model.embedding_dim": 16,
        "batch.batch_size": 9, "batch.instances_per_class": 3,
        "optim.lr": 1e-3,
        "training.steps": 40, "training.eval_every": 20,
        "data.validation_fraction": 0.4,
    },
    note="a smoke test. Raw pixels already reach R@1 0.99, so only MAP@R has room.",
)  # fmt: skip

IMAGE_FOLDER_SMALL = our_protocol(
    "image_folder/small",
    default=True,
    settings={
        "model.embedding_dim": 64,
        "batch.batch_size": 60,
        "optim.lr": 1e-3,
        "training.steps": 1000, "training.eval_every": 250,
    },
    note="a small network for a user's own pictures; raise the numbers with --set.",
)  # fmt: skip

_METHOD_SETTINGS = {"model.head", "batch.sampler"}
IMAGE_FOLDER_SIMCLR = our_protocol(
    "image_folder/simclr",
    settings={
        **{path: value for path, value in simclr.GLYPHS_SIMCLR.settings.items() if path not in _METHOD_SETTINGS},
        "augment.crop": 64, "augment.resize": 64, "augment.flip": 0.5,
        "batch.batch_size": 64,
    },
    note="as glyphs/simclr, for pictures whose mirror image is of the same class.",
)  # fmt: skip

IMAGE_FOLDER_SIMCLR_LONGER = our_protocol(
    "image_folder/simclr-longer",
    settings={**IMAGE_FOLDER_SIMCLR.settings, "training.steps": 400, "training.eval_every": 400},
    note="twice the steps of image_folder/simclr, as 200 epochs are twice 100.",
)

IMAGE_FOLDER_SIMCLR_LINEAR_HEAD = our_protocol(
    "image_folder/simclr-linear",
    settings={**IMAGE_FOLDER_SIMCLR.settings, "training.steps": 300, "training.eval_every": 300},
    note="half as many steps again as image_folder/simclr, as 150 epochs are to 100.",
)

IMAGE_FOLDER_FACE = our_protocol(
    "image_folder/face",
    settings={
        **faces.GLYPHS_FACE.settings,
        "task.pairs": 150, "task.distractors": [10],
        "batch.batch_size": 64,
        "training.epochs": None, "training.steps": 300, "training.eval_every": 75,
    },
    note="as glyphs/face, with as many pairs as a folder of 40 classes has; raise task.pairs where there are more. Such "
    "a folder is one batch, and 16 epochs of it are 16 steps: verification gains ten points from there to 150 steps.",
)  # fmt: skip
