"""Our own protocols, for the embedded data and a user's own pictures: seconds to minutes a trial."""

from __future__ import annotations

from tune_dml.space import Protocol

PAIRS = (
    "dro_chi2",
    "contrastive",
    "margin_all",
    "binomial",
    "margin_semihard",
    "margin_dws",
    "lifted_structure",
    "hap2s",
    "dro_topk",
    "dro_topk_pn",
    "dro_kl",
    "dro_kl_grouped",
)

GLYPHS_TRIPLET = Protocol(
    name="glyphs/triplet",
    dataset="glyphs",
    default=True,
    settings={
        "model.backbone": "small_conv",
        "model.pooling": "avg",
        "model.head": "fc",
        "model.embedding_dim": 64,
        "batch.sampler": "m_per_class",
        "batch.batch_size": 90,
        "batch.instances_per_class": 3,
        "optim.name": "adamw",
        "optim.lr": 2e-3,
        "optim.weight_decay": 1e-4,
        "training.steps": 400,
        "training.eval_every": 200,
    },
    methods=("triplet", "semihard_triplet", "npair", "multi_similarity", "tuplet_margin"),
    note="Ours: a few seconds a trial on one CPU core. 3 instances per class as in the SEC paper.",
)

GLYPHS_NPAIR = Protocol(
    name="glyphs/npair",
    dataset="glyphs",
    settings={**GLYPHS_TRIPLET.settings, "batch.instances_per_class": 2},
    note="Ours: as glyphs/triplet, with the 2 instances per class that the SEC paper gives N-pair.",
)

GLYPHS_MS = Protocol(
    name="glyphs/ms",
    dataset="glyphs",
    settings={**GLYPHS_TRIPLET.settings, "batch.instances_per_class": 5},
    note="Ours: as glyphs/triplet, with the 5 instances per class that the SEC paper gives multi-similarity.",
)

GLYPHS_TML = Protocol(
    name="glyphs/tml",
    dataset="glyphs",
    settings={**GLYPHS_TRIPLET.settings, "batch.batch_size": 88, "batch.instances_per_class": 4},
    note="Ours: as glyphs/triplet, with the 4 instances per class that the SEC rebuttal gives the tuplet margin loss.",
)

GLYPHS_PROXY = Protocol(
    name="glyphs/proxy",
    dataset="glyphs",
    settings={
        **GLYPHS_TRIPLET.settings,
        "batch.sampler": "random",
        "optim.loss_lr_multiplier": 5.0,
        "training.steps": 800,
    },
    methods=("mpa", "mpa_dw", "mpa_ap", "proxy_anchor", "proxy_nca", "proxy_nca_pp", "soft_triple"),
    note="Ours: proxies learn at 1e-2 as in the papers, and need twice the steps before their number matters.",
)

GLYPHS_DRO = Protocol(
    name="glyphs/dro",
    dataset="glyphs",
    settings={
        **GLYPHS_TRIPLET.settings,
        "batch.batch_size": 80,
        "batch.instances_per_class": 5,
    },
    methods=PAIRS,
    note="Ours: the batches of the DRO paper's small data sets, 16 classes of 5, so that its K means the same.",
)

GLYPHS_DRO_LARGE = Protocol(
    name="glyphs/dro-large",
    dataset="glyphs",
    settings={
        **GLYPHS_DRO.settings,
        "batch.batch_size": 640,
        "training.steps": 100,
        "training.eval_every": 50,
    },
    methods=PAIRS,
    note="Ours: the batches of the DRO paper's In-Shop, 128 classes of 5.",
)

DIGITS_QUICK = Protocol(
    name="digits/quick",
    dataset="digits",
    default=True,
    settings={
        "model.embedding_dim": 16,
        "batch.batch_size": 9,
        "batch.instances_per_class": 3,
        "optim.lr": 1e-3,
        "training.steps": 40,
        "training.eval_every": 20,
        "data.validation_fraction": 0.4,
    },
    note="Ours: a smoke test. Raw pixels already reach R@1 0.99, so only MAP@R has room.",
)

IMAGE_FOLDER_SMALL = Protocol(
    name="image_folder/small",
    dataset="image_folder",
    default=True,
    settings={
        "model.embedding_dim": 64,
        "batch.batch_size": 60,
        "batch.instances_per_class": 3,
        "optim.lr": 1e-3,
        "training.steps": 1000,
        "training.eval_every": 250,
    },
    note="Ours: a small network for a user's own pictures; raise the numbers with --set.",
)
