"""Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020: the released code, whose README has batch 180."""

from search_spaces.papers import PROXY_ANCHOR
from search_spaces.protocols.shared import BN_INCEPTION, CROP_224, KS_TO_32, LAST, SHOP_KS, SOP_KS
from tune_dml.space import Protocol, SourcedSettings

_CODE = f"code: {PROXY_ANCHOR.code}"

_COMMON = (
    *BN_INCEPTION,
    SourcedSettings(f"paper: {PROXY_ANCHOR.key}", {"loss.name": "proxy_anchor", "loss.alpha": 32.0, "loss.delta": 0.1}),
    SourcedSettings(_CODE, {
        "model.pooling": "avg_max", "model.head": "fc", "model.embedding_dim": 512,
        "optim.name": "adamw", "optim.loss_lr_multiplier": 100.0, "optim.weight_decay": 1e-4,
        "optim.weight_decay_on": "all", "optim.loss_weight_decay": 1e-4, "optim.clip_value": 10.0,
        "optim.freeze_backbone_epochs": 1.0, "optim.lr_schedule": "every_epochs",
        "batch.sampler": "random", "batch.batch_size": 180,
        "training.epochs": 60,
    }),
    SourcedSettings(f"{_CODE}, code/net/bn_inception.py, lines 30 to 32", {"model.head_init": "he_fan_out"}),
    CROP_224,
    LAST,
)  # fmt: skip
_SMALL = SourcedSettings(_CODE, {"optim.lr": 1e-4, "optim.lr_decay": 0.5, "model.freeze_bn": True})
_LARGE = SourcedSettings(
    _CODE, {"optim.lr": 6e-4, "optim.lr_decay": 0.25, "optim.lr_decay_epochs": 20, "model.freeze_bn": False}
)


def _protocol(name: str, eval_every: int, *stated: SourcedSettings) -> Protocol:
    evaluation = SourcedSettings(
        "open: about every fifth epoch; the code judges every epoch on test", {"training.eval_every": eval_every}
    )
    note = "The code reports the best epoch on test."
    return Protocol.from_paper(f"proxy_anchor/{name}", name, *_COMMON, *stated, evaluation, note=note)


PROXY_ANCHOR_CUB200 = _protocol("cub200", 120, _SMALL, SourcedSettings(_CODE, {"optim.lr_decay_epochs": 10}), KS_TO_32)
PROXY_ANCHOR_CARS196 = _protocol(
    "cars196", 170, _SMALL, SourcedSettings(_CODE, {"optim.lr_decay_epochs": 20}), KS_TO_32
)
PROXY_ANCHOR_SOP = _protocol("sop", 1240, _LARGE, SOP_KS)
PROXY_ANCHOR_INSHOP = _protocol("inshop", 540, _LARGE, SHOP_KS)
