"""Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning (DRO), ECCV 2020: paper and released code.

The main tables have dimension 1024, the ablation of DRO-KL-G (`-64`) dimension 64 and batches of 80 on every data set.
"""

from search_spaces.papers import DRO
from search_spaces.protocols.shared import BN_INCEPTION, CROP_227, KS_TO_32, LAST, SHOP_KS
from tune_dml.space import Protocol, SourcedSettings

_CODE = f"code: {DRO.code}"

_COMMON = (
    *BN_INCEPTION,
    SourcedSettings(DRO.source("section 4"), {"optim.name": "adam", "optim.lr": 1e-5}),
    SourcedSettings(DRO.source("sections 4.2.2 and 4.2.3"), {"batch.instances_per_class": 5}),
    SourcedSettings(_CODE, {
        "model.pooling": "max", "model.head": "fc", "model.freeze_bn": True, "model.freeze_bn_affine": False,
        "optim.weight_decay": 5e-4, "optim.weight_decay_on": "all", "optim.lr_schedule": "constant",
        "batch.sampler": "m_per_class",
    }),
    SourcedSettings(
        f"{_CODE}, models/BN_Inception.py, lines 263 and 264: nn.Linear as torch starts it, zero biases",
        {"model.head_init": "torch_zero_bias"},
    ),
    CROP_227,
    LAST,
)  # fmt: skip

_SHORT_EPOCHS = SourcedSettings(
    f"{_CODE}: 1200 epochs of 6 batches, one pass over the classes with 5 images each",
    {"training.steps": 7200, "training.eval_every": 600},
)
_SHOP_EPOCHS = SourcedSettings(
    "open: the code's 1200 short epochs would be 37,200 steps in batches of 640, 298,800 in batches of 80; as long as SEC",
    {"training.steps": 12_000, "training.eval_every": 2000},
)
_WIDE = SourcedSettings(DRO.source("section 4.1"), {"model.embedding_dim": 1024})
_NARROW = SourcedSettings(DRO.source("section 4.2.1"), {"model.embedding_dim": 64, "batch.batch_size": 80})
_SMALL_BATCH = SourcedSettings(DRO.source("section 4.1"), {"batch.batch_size": 80})
_LARGE_BATCH = SourcedSettings(DRO.source("section 4.1"), {"batch.batch_size": 640})
_MEMORY = SourcedSettings("open: so that 640 crops fit into 16 GiB; changes no number", {"training.micro_batch": 80})

_NOTE = "The code draws classes in passes, ours independently at every step. The paper selects on test."

_PAIRS = ("dro_topk", "dro_topk_pn", "dro_kl", "margin_all", "binomial", "margin_semihard", "margin_dws", "dro_chi2")
_GROUPS = ("dro_kl_grouped", "lifted_structure", "multi_similarity")


def _protocol(name: str, dataset: str, *stated: SourcedSettings) -> Protocol:
    methods = _GROUPS if _NARROW in stated else _PAIRS
    return Protocol.from_paper(f"dro/{name}", dataset, *_COMMON, *stated, note=_NOTE, methods=methods)


DRO_CUB200 = _protocol("cub200", "cub200", _WIDE, _SMALL_BATCH, _SHORT_EPOCHS, KS_TO_32)
DRO_CUB200_64 = _protocol("cub200-64", "cub200", _NARROW, _SHORT_EPOCHS, KS_TO_32)
DRO_CARS196 = _protocol("cars196", "cars196", _WIDE, _SMALL_BATCH, _SHORT_EPOCHS, KS_TO_32)
DRO_CARS196_64 = _protocol("cars196-64", "cars196", _NARROW, _SHORT_EPOCHS, KS_TO_32)
DRO_INSHOP = _protocol("inshop", "inshop", _WIDE, _LARGE_BATCH, _MEMORY, _SHOP_EPOCHS, SHOP_KS)
DRO_INSHOP_64 = _protocol("inshop-64", "inshop", _NARROW, _SHOP_EPOCHS, SHOP_KS)
