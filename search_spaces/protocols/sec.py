"""Zhang, Li, Zhang, Deep Metric Learning with Spherical Embedding (SEC), NeurIPS 2020: supplement, rebuttal, released code.

Learning rates are printed head / backbone (the rebuttal's header has them the wrong way round, erratum E8). One protocol
a data set and base loss; triplet and semihard triplet share theirs. The regularizer belongs to the space.
"""

from __future__ import annotations

from search_spaces.papers import SEC
from search_spaces.protocols.shared import BN_INCEPTION, CROP_227, KS, LAST, SHOP_KS, SOP_KS
from tune_dml.space import Protocol, Stated

PAPER = SEC.says("supplement, section B.1")
REBUTTAL = SEC.says("rebuttal, Table 4")
CODE = f"code: {SEC.code}"
RATES = SEC.says("supplement, Table 1")
README = f"{CODE}, README (multi-similarity without SEC and L2-reg)"

COMMON = (
    *BN_INCEPTION,
    Stated(
        PAPER,
        {
            "model.pooling": "avg",
            "model.head": "bn_fc",
            "model.embedding_dim": 512,
            "model.freeze_bn": True,
            "optim.name": "adam",
        },
    ),
    Stated(
        CODE,
        {
            "model.freeze_bn_affine": True,
            "optim.weight_decay_on": "all_but_norms",
            "batch.sampler": "m_per_class",
            "batch.batch_size": 120,
        },
    ),
    CROP_227,
    LAST,
    Stated("open: the code evaluates every 100 to 500 steps", {"training.eval_every": 500}),
)

BIRDS_CARS = (
    Stated(PAPER, {"training.steps": 8000}),
    Stated(CODE, {"optim.weight_decay": 2.5e-3}),
    KS,
)
PRODUCTS = (
    Stated(PAPER, {"training.steps": 12_000}),
    Stated(CODE, {"optim.weight_decay": 1e-5}),
    Stated("open: validation is slow on data this large", {"training.eval_every": 2000}),
)

TRIPLET = Stated(
    f"{PAPER} (m = 1, three images a class)",
    {"loss.name": "triplet", "loss.margin": 1.0, "batch.instances_per_class": 3},
)
NPAIR = Stated(
    f"{PAPER} (s = 25, two images a class)",
    {"loss.name": "npair", "loss.scale": 25.0, "batch.instances_per_class": 2},
)
MS = Stated(
    f"{PAPER} (epsilon .1, lambda .5, alpha 2, beta 40, five images a class)",
    {
        "loss.name": "multi_similarity",
        "loss.alpha": 2.0,
        "loss.beta": 40.0,
        "loss.base": 0.5,
        "loss.epsilon": 0.1,
        "batch.instances_per_class": 5,
    },
)
TML = (
    Stated(
        f"{REBUTTAL} (beta .1, lambda .5, epsilon .01, batch 128, four images a class)",
        {
            "loss.name": "tuplet_margin",
            "loss.margin": 0.1,
            "loss.ipv_weight": 0.5,
            "loss.ipv_epsilon": 0.01,
            "batch.batch_size": 128,
            "batch.instances_per_class": 4,
        },
    ),
    Stated("open: not printed; the value of the tuplet margin loss's own paper", {"loss.scale": 64.0}),
)

PLAIN_MS = Stated(f"{PAPER} (without SEC the head is the last layer alone)", {"model.head": "fc"})

NOTE = "Trains on the training classes that validation leaves; the paper trains on all of them and selects on test."


def _rates(head: float, backbone: float, decay: float, *milestones: int, source: str = RATES) -> Stated:
    """Learning rates and when they decay."""
    settings = {
        "optim.lr": head,
        "optim.backbone_lr_multiplier": backbone / head,
        "optim.lr_schedule": "milestones",
        "optim.lr_milestones": list(milestones),
        "optim.lr_decay": decay,
    }
    return Stated(f"{source} (lr head {head:g}, backbone {backbone:g})", settings)


def _protocol(name: str, dataset: str, *stated: Stated) -> Protocol:
    default = name == dataset
    methods = ("triplet", "semihard_triplet") if default else ()  # the others set their loss
    return Protocol.cited(f"sec/{name}", dataset, *COMMON, *stated, note=NOTE, default=default, methods=methods)


SEC_CUB200 = _protocol("cub200", "cub200", *BIRDS_CARS, TRIPLET, _rates(5e-6, 2.5e-6, 0.1, 5000))
SEC_CUB200_NPAIR = _protocol("cub200-npair", "cub200", *BIRDS_CARS, NPAIR, _rates(1e-5, 5e-6, 0.1, 5000))
# E9: the rebuttal prints a single decay at 5000.
SEC_CUB200_MS = _protocol("cub200-ms", "cub200", *BIRDS_CARS, MS, _rates(5e-5, 2.5e-5, 0.1, 3000, 6000))
SEC_CUB200_MS_PLAIN = _protocol(
    "cub200-ms-plain", "cub200", *BIRDS_CARS, MS, PLAIN_MS, _rates(1e-5, 5e-6, 0.1, 3000, 6000, source=README)
)
SEC_CUB200_TML = _protocol("cub200-tml", "cub200", *BIRDS_CARS, *TML, _rates(4e-5, 2e-5, 0.1, 5000, source=REBUTTAL))

SEC_CARS196 = _protocol("cars196", "cars196", *BIRDS_CARS, TRIPLET, _rates(1e-5, 1e-5, 0.5, 4000, 6000))
SEC_CARS196_NPAIR = _protocol("cars196-npair", "cars196", *BIRDS_CARS, NPAIR, _rates(1e-5, 1e-5, 0.5, 4000, 6000))
SEC_CARS196_MS = _protocol("cars196-ms", "cars196", *BIRDS_CARS, MS, _rates(4e-5, 4e-5, 0.1, 2000))
SEC_CARS196_MS_PLAIN = _protocol(
    "cars196-ms-plain", "cars196", *BIRDS_CARS, MS, PLAIN_MS, _rates(2e-5, 2e-5, 0.1, 2000, source=README)
)
SEC_CARS196_TML = _protocol(
    "cars196-tml", "cars196", *BIRDS_CARS, *TML, _rates(6e-5, 6e-5, 0.5, 4000, 6000, source=REBUTTAL)
)

SEC_SOP = _protocol("sop", "sop", *PRODUCTS, SOP_KS, TRIPLET, _rates(5e-4, 1e-4, 0.1, 6000))
SEC_SOP_NPAIR = _protocol("sop-npair", "sop", *PRODUCTS, SOP_KS, NPAIR, _rates(5e-4, 1e-4, 0.1, 6000))
SEC_SOP_MS = _protocol("sop-ms", "sop", *PRODUCTS, SOP_KS, MS, _rates(5e-4, 1e-4, 0.1, 6000))
SEC_SOP_MS_PLAIN = _protocol("sop-ms-plain", "sop", *PRODUCTS, SOP_KS, MS, PLAIN_MS, _rates(5e-4, 1e-4, 0.1, 6000))
SEC_SOP_TML = _protocol("sop-tml", "sop", *PRODUCTS, SOP_KS, *TML, _rates(5e-4, 1e-4, 0.1, 6000, source=REBUTTAL))

SEC_INSHOP = _protocol("inshop", "inshop", *PRODUCTS, SHOP_KS, TRIPLET, _rates(5e-4, 1e-4, 0.1, 6000))
SEC_INSHOP_NPAIR = _protocol("inshop-npair", "inshop", *PRODUCTS, SHOP_KS, NPAIR, _rates(5e-4, 1e-4, 0.1, 6000))

SEC_INSHOP_MS = _protocol("inshop-ms", "inshop", *PRODUCTS, SHOP_KS, MS, _rates(5e-4, 1e-4, 0.1, 6000))
SEC_INSHOP_MS_PLAIN = _protocol(
    "inshop-ms-plain", "inshop", *PRODUCTS, SHOP_KS, MS, PLAIN_MS, _rates(5e-4, 1e-4, 0.1, 6000)
)
SEC_INSHOP_TML = _protocol(
    "inshop-tml", "inshop", *PRODUCTS, SHOP_KS, *TML, _rates(1e-3, 2e-4, 0.1, 6000, source=REBUTTAL)
)

SEC_TRIPLET = (SEC_CUB200, SEC_CARS196, SEC_SOP, SEC_INSHOP)
SEC_NPAIR = (SEC_CUB200_NPAIR, SEC_CARS196_NPAIR, SEC_SOP_NPAIR, SEC_INSHOP_NPAIR)
SEC_MS = (SEC_CUB200_MS, SEC_CARS196_MS, SEC_SOP_MS, SEC_INSHOP_MS)
SEC_MS_PLAIN = (SEC_CUB200_MS_PLAIN, SEC_CARS196_MS_PLAIN, SEC_SOP_MS_PLAIN, SEC_INSHOP_MS_PLAIN)
SEC_TML = (SEC_CUB200_TML, SEC_CARS196_TML, SEC_SOP_TML, SEC_INSHOP_TML)
