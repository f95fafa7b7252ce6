"""Zhang, Li, Zhang, Deep Metric Learning with Spherical Embedding (SEC), NeurIPS 2020: supplement, rebuttal, released code.

The paper prints learning rates as head / backbone; the rebuttal's header swaps the two (erratum E8). There is one protocol
per data set and base loss; the space adds the regularizer.
"""

from search_spaces.papers import SEC
from search_spaces.protocols.shared import BN_INCEPTION, CROP_227, KS, LAST, SHOP_KS, SOP_KS
from tune_dml.space import Protocol, SourcedSettings

PAPER = SEC.source("supplement, section B.1")
_REBUTTAL = SEC.source("rebuttal, Table 4")
_CODE = f"code: {SEC.code}"
RATES = SEC.source("supplement, Table 1")
_README = f"{_CODE}, README (multi-similarity without SEC and L2-reg)"

_COMMON = (
    *BN_INCEPTION,
    SourcedSettings(PAPER, {
        "model.pooling": "avg", "model.head": "bn_fc", "model.embedding_dim": 512, "model.freeze_bn": True,
        "optim.name": "adam",
    }),
    SourcedSettings(_CODE, {
        "model.freeze_bn_affine": True, "model.red_mean": 123.0,
        "optim.weight_decay_on": "all_but_norms",
        "batch.sampler": "m_per_class", "batch.batch_size": 120,
    }),
    SourcedSettings(
        f"{_CODE}, models/bninception.py, lines 242 and 248: nn.Linear as torch starts it", {"model.head_init": "torch"}
    ),
    CROP_227,
    LAST,
    SourcedSettings("open: the code evaluates every 100 to 500 steps", {"training.eval_every": 500}),
)  # fmt: skip

BIRDS_CARS = (
    SourcedSettings(PAPER, {"training.steps": 8000}),
    SourcedSettings(_CODE, {"optim.weight_decay": 2.5e-3}),
    KS,
)
_PRODUCTS = (
    SourcedSettings(PAPER, {"training.steps": 12_000}),
    SourcedSettings(_CODE, {"optim.weight_decay": 1e-5}),
    SourcedSettings("open: validation is slow on data this large", {"training.eval_every": 2000}),
)

_TRIPLET = SourcedSettings(
    f"{PAPER} (m = 1, three images a class)",
    {"loss.name": "triplet", "loss.margin": 1.0, "batch.instances_per_class": 3},
)
_SEMIHARD = SourcedSettings(
    f"{PAPER} (m = .2, three images a class)",
    {"loss.name": "semihard_triplet", "loss.margin": 0.2, "batch.instances_per_class": 3},
)
_NPAIR = SourcedSettings(
    f"{PAPER} (s = 25, two images a class)",
    {"loss.name": "npair", "loss.scale": 25.0, "batch.instances_per_class": 2},
)
_MS = SourcedSettings(f"{PAPER} (epsilon .1, lambda .5, alpha 2, beta 40, five images a class)", {
    "loss.name": "multi_similarity", "loss.alpha": 2.0, "loss.beta": 40.0, "loss.base": 0.5, "loss.epsilon": 0.1,
    "batch.instances_per_class": 5,
})  # fmt: skip
_TML = (
    SourcedSettings(f"{_REBUTTAL} (beta .1, lambda .5, epsilon .01, batch 128, four images a class)", {
        "loss.name": "tuplet_margin", "loss.margin": 0.1, "loss.ipv_weight": 0.5, "loss.ipv_epsilon": 0.01,
        "batch.batch_size": 128, "batch.instances_per_class": 4,
    }),
    SourcedSettings("open: not printed; the value of the tuplet margin loss's own paper", {"loss.scale": 64.0}),
    SourcedSettings(
        "open: not printed for the tuplet margin loss; as the other losses",
        {"model.pooling": "avg", "model.head": "bn_fc", "model.embedding_dim": 512},
    ),
)  # fmt: skip

_PLAIN_MS = SourcedSettings(f"{PAPER} (without SEC the head is only the last layer)", {"model.head": "fc"})

_NOTE = (
    "Trains on the training classes that validation leaves; the paper trains on all of them and selects on test. Subtracts 123 "
    "from the red channel, as the paper's code does; the other codes that load the same file subtract 128."
)

_Rates = tuple[float, float, float, tuple[int, ...]]
"""Learning rates of head and backbone, the factor of their decay, and the steps at which it is applied."""
_PRODUCT_RATES: _Rates = (5e-4, 1e-4, 0.1, (6000,))
"""Rates on SOP and In-Shop, except those of the tuplet margin loss on In-Shop."""


def _rates(rates: _Rates, source: str) -> SourcedSettings:
    head, backbone, decay, milestones = rates
    settings = {
        "optim.lr": head, "optim.backbone_lr_multiplier": backbone / head, "optim.lr_schedule": "milestones",
        "optim.lr_milestones": list(milestones), "optim.lr_decay": decay,
    }  # fmt: skip
    return SourcedSettings(f"{source} (lr head {head:g}, backbone {backbone:g})", settings)


def _protocols(
    suffix: str,
    *stated: SourcedSettings,
    birds: _Rates,
    cars: _Rates,
    shop: _Rates = _PRODUCT_RATES,
    source: str = RATES,
) -> tuple[Protocol, ...]:
    """Return the protocols of a loss, one for each data set; `source` cites the learning rates of birds and cars."""
    return tuple(
        Protocol.from_paper(
            f"sec/{dataset}{suffix}", dataset, *_COMMON, *sizes, *stated, _rates(rates, rates_source), note=_NOTE,
            default=not suffix,
        )
        for dataset, sizes, rates, rates_source in (
            ("cub200", BIRDS_CARS, birds, source),
            ("cars196", BIRDS_CARS, cars, source),
            ("sop", (*_PRODUCTS, SOP_KS), _PRODUCT_RATES, _REBUTTAL if source == _REBUTTAL else RATES),
            ("inshop", (*_PRODUCTS, SHOP_KS), shop, _REBUTTAL if source == _REBUTTAL else RATES),
        )
    )  # fmt: skip


_CARS_RATES: _Rates = (1e-5, 1e-5, 0.5, (4000, 6000))
"""Rates on Cars196 for the triplet losses and N-pair; a footnote says that 2e-5 is better for N-pair."""

SEC_TRIPLET = _protocols("", _TRIPLET, birds=(5e-6, 2.5e-6, 0.1, (5000,)), cars=_CARS_RATES)
SEC_SEMIHARD = _protocols("-semihard", _SEMIHARD, birds=(5e-6, 2.5e-6, 0.1, (5000,)), cars=_CARS_RATES)
SEC_NPAIR = _protocols("-npair", _NPAIR, birds=(1e-5, 5e-6, 0.1, (5000,)), cars=_CARS_RATES)
# E9: the rebuttal prints a single decay at 5000 for birds.
SEC_MS = _protocols("-ms", _MS, birds=(5e-5, 2.5e-5, 0.1, (3000, 6000)), cars=(4e-5, 4e-5, 0.1, (2000,)))
SEC_MS_PLAIN = _protocols(
    "-ms-plain",
    _MS,
    _PLAIN_MS,
    birds=(1e-5, 5e-6, 0.1, (3000, 6000)),
    cars=(2e-5, 2e-5, 0.1, (2000,)),
    source=_README,
)
SEC_TML = _protocols(
    "-tml",
    *_TML,
    birds=(4e-5, 2e-5, 0.1, (5000,)),
    cars=(6e-5, 6e-5, 0.5, (4000, 6000)),
    shop=(1e-3, 2e-4, 0.1, (6000,)),
    source=_REBUTTAL,
)
