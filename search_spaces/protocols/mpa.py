"""Saeki et al., Multi-proxy anchor family loss for several types of gradients (MPA): the paper; no code was released."""

from __future__ import annotations

from search_spaces.papers import MPA
from search_spaces.protocols.shared import BN_INCEPTION, CROP_224, KS, LAST, SOP_KS_TO_100
from tune_dml.space import Protocol, Stated

COMMON = (
    *BN_INCEPTION,
    Stated(
        MPA.says("section 4.2"),
        {
            "model.pooling": "gem",
            "model.p": 3.0,
            "model.head": "fc",
            "model.embedding_dim": 512,
            "optim.name": "adamw",
            "optim.lr": 1e-4,
            "optim.loss_lr_multiplier": 100.0,
            "optim.lr_schedule": "every_epochs",
            "optim.lr_decay_epochs": 20,
            "optim.lr_decay": 0.5,
            "batch.sampler": "random",
            "loss.name": "mpa",
            "loss.gamma": 0.1,
            "loss.tau": 0.2,
            "loss.delta": 0.1,
        },
    ),
    Stated("open: not stated; Proxy-Anchor's value", {"loss.alpha": 32.0}),
    Stated(
        "open: not stated; as in the released code of Proxy-Anchor",
        {
            "optim.backbone_lr_multiplier": 1.0,
            "optim.weight_decay": 1e-4,
            "optim.weight_decay_on": "all",
            "optim.loss_weight_decay": 1e-4,
            "optim.clip_value": 10.0,
            "optim.freeze_backbone_epochs": 1.0,
        },
    ),
    CROP_224,
    LAST,
)

NOTE = (
    "The paper resizes test pictures to 256 x 256, which changes their shape; ours keeps it, as the released codes do."
)


def _protocol(
    name: str, ks: Stated, *, batch_size: int, proxies: int, epochs: int, eval_every: int, freeze: bool
) -> Protocol:
    paper = {"batch.batch_size": batch_size, "loss.proxies_per_class": proxies, "training.epochs": epochs}
    return Protocol.cited(
        f"mpa/{name}",
        name,
        *COMMON,
        Stated(MPA.says("section 4.2"), paper),
        Stated("open: not stated; frozen as Proxy-Anchor does, except on SOP", {"model.freeze_bn": freeze}),
        Stated("open: about every fifth epoch", {"training.eval_every": eval_every}),
        ks,
        note=NOTE,
        methods=("mpa", "mpa_dw", "mpa_ap"),
    )


MPA_CUB200 = _protocol("cub200", KS, batch_size=180, proxies=10, epochs=60, eval_every=120, freeze=True)
MPA_CARS196 = _protocol("cars196", KS, batch_size=64, proxies=10, epochs=60, eval_every=480, freeze=True)
MPA_SOP = _protocol("sop", SOP_KS_TO_100, batch_size=32, proxies=2, epochs=100, eval_every=7000, freeze=False)
