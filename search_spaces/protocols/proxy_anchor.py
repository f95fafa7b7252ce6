"""Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020: the released code, whose README has batch 180."""

from __future__ import annotations

from search_spaces.papers import PROXY_ANCHOR
from search_spaces.protocols.shared import BN_INCEPTION, CROP_224, KS_TO_32, LAST, SHOP_KS, SOP_KS
from tune_dml.space import Protocol, Stated

CODE = f"code: {PROXY_ANCHOR.code}"

COMMON = (
    *BN_INCEPTION,
    Stated(f"paper: {PROXY_ANCHOR.key}", {"loss.name": "proxy_anchor", "loss.alpha": 32.0, "loss.delta": 0.1}),
    Stated(
        CODE,
        {
            "model.pooling": "avg_max",
            "model.head": "fc",
            "model.embedding_dim": 512,
            "optim.name": "adamw",
            "optim.loss_lr_multiplier": 100.0,
            "optim.weight_decay": 1e-4,
            "optim.weight_decay_on": "all",
            "optim.loss_weight_decay": 1e-4,
            "optim.clip_value": 10.0,
            "optim.freeze_backbone_epochs": 1.0,
            "optim.lr_schedule": "every_epochs",
            "batch.sampler": "random",
            "batch.batch_size": 180,
            "training.epochs": 60,
        },
    ),
    CROP_224,
    LAST,
)
SMALL = Stated(CODE, {"optim.lr": 1e-4, "optim.lr_decay": 0.5, "model.freeze_bn": True})
LARGE = Stated(CODE, {"optim.lr": 6e-4, "optim.lr_decay": 0.25, "optim.lr_decay_epochs": 20, "model.freeze_bn": False})


def _protocol(name: str, eval_every: int, *stated: Stated) -> Protocol:
    every = Stated(
        "open: about every fifth epoch; the code judges every epoch on test",
        {"training.eval_every": eval_every},
    )
    note = "The code reports the best epoch on test."
    return Protocol.cited(f"proxy_anchor/{name}", name, *COMMON, *stated, every, note=note)


PROXY_ANCHOR_CUB200 = _protocol("cub200", 120, SMALL, Stated(CODE, {"optim.lr_decay_epochs": 10}), KS_TO_32)
PROXY_ANCHOR_CARS196 = _protocol("cars196", 170, SMALL, Stated(CODE, {"optim.lr_decay_epochs": 20}), KS_TO_32)
PROXY_ANCHOR_SOP = _protocol("sop", 1240, LARGE, SOP_KS)
PROXY_ANCHOR_INSHOP = _protocol("inshop", 540, LARGE, SHOP_KS)
