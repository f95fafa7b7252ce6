"""Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019: the released code."""

from search_spaces.papers import SOFT_TRIPLE
from search_spaces.protocols.shared import BN_INCEPTION, CROP_224, KS, LAST, SOP_KS
from tune_dml.space import Protocol, SourcedSettings

_CODE = f"code: {SOFT_TRIPLE.code}"

_COMMON = (
    *BN_INCEPTION,
    SourcedSettings(_CODE, {
        "loss.name": "soft_triple", "loss.la": 20.0, "loss.gamma": 0.1, "loss.tau": 0.2, "loss.delta": 0.01,
        "model.pooling": "avg", "model.head": "fc", "model.embedding_dim": 64,
        "optim.name": "adam", "optim.eps": 0.01, "optim.lr": 1e-4, "optim.loss_lr_multiplier": 100.0,
        "optim.weight_decay": 1e-4, "optim.weight_decay_on": "all", "optim.loss_weight_decay": 1e-4,
        "optim.lr_schedule": "epoch_milestones", "optim.lr_epochs": [19, 39], "optim.lr_decay": 0.1,
        "batch.sampler": "random", "batch.batch_size": 32,
        "training.epochs": 50,
    }),
    SourcedSettings(
        f"{_CODE}, net/bninception.py, line 253: nn.Linear as torch starts it", {"model.head_init": "torch"}
    ),
    CROP_224,
    LAST,
)  # fmt: skip


def _protocol(name: str, proxies: int, source: str, eval_every: int, ks: SourcedSettings) -> Protocol:
    command = f"{_CODE}, README.md (its command for cars)"
    freezing = command if name == "cars196" else "open: an option of the code; as in its command for cars"
    frozen = SourcedSettings(freezing, {"model.freeze_bn": True})
    evaluation = SourcedSettings("open: about every fifth epoch", {"training.eval_every": eval_every})
    proxy_count = SourcedSettings(source, {"loss.proxies_per_class": proxies})
    return Protocol.from_paper(f"soft_triple/{name}", name, *_COMMON, frozen, proxy_count, evaluation, ks)


SOFT_TRIPLE_CUB200 = _protocol("cub200", 10, _CODE, 680, KS)
SOFT_TRIPLE_CARS196 = _protocol("cars196", 10, _CODE, 940, KS)
SOFT_TRIPLE_SOP = _protocol("sop", 2, "open: few images a class; as the multi-proxy paper reran it", 7000, SOP_KS)
