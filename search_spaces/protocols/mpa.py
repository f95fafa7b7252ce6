"""Saeki et al., Multi-proxy anchor family loss for several types of gradients (MPA): the paper; no code was released."""

from search_spaces.papers import MPA
from search_spaces.protocols.shared import BN_INCEPTION, CROP_224, KS, LAST, SOP_KS_TO_100
from tune_dml.space import Protocol, SourcedSettings

_STATED_OF_CROP = ("augment.name", "augment.crop")
_CROP = (
    SourcedSettings(
        f"{MPA.source('section 4.2')} (random crop of 224, flip)",
        {path: value for path, value in CROP_224.settings.items() if path in _STATED_OF_CROP},
    ),
    SourcedSettings(
        "open: not stated; as in the released code of Proxy-Anchor",
        {path: value for path, value in CROP_224.settings.items() if path not in _STATED_OF_CROP},
    ),
)

_COMMON = (
    *BN_INCEPTION,
    SourcedSettings(MPA.source("section 4.2"), {
        "model.pooling": "gem", "model.p": 3.0, "model.head": "fc", "model.embedding_dim": 512,
        "optim.name": "adamw", "optim.lr": 1e-4, "optim.loss_lr_multiplier": 100.0, "optim.lr_schedule": "every_epochs",
        "optim.lr_decay_epochs": 20, "optim.lr_decay": 0.5,
        "batch.sampler": "random",
    }),
    SourcedSettings("open: not stated; as in the released code of Proxy-Anchor", {
        "optim.backbone_lr_multiplier": 1.0, "optim.weight_decay": 1e-4, "optim.weight_decay_on": "all",
        "optim.loss_weight_decay": 1e-4, "optim.clip_value": 10.0, "optim.freeze_backbone_epochs": 1.0,
        "model.head_init": "he_fan_out",
    }),
    *_CROP,
    LAST,
)  # fmt: skip

_NOTE = (
    "The paper resizes test pictures to 256 x 256, which changes their shape; ours keeps it, as the released codes do."
)

PAPER = MPA.source("section 4.2")
_ANCHOR_SCALE = SourcedSettings("open: not stated; Proxy-Anchor's value", {"loss.alpha": 32.0})


def _family_settings(name: str) -> tuple[SourcedSettings, ...]:
    return (
        SourcedSettings(PAPER, {"loss.name": name, "loss.gamma": 0.1, "loss.tau": 0.2, "loss.delta": 0.1}),
        _ANCHOR_SCALE,
    )


def _protocols(
    suffix: str, *stated: SourcedSettings, has_several_proxies: bool = True, rerun: bool = False
) -> tuple[Protocol, ...]:
    """Return the protocols of a loss, one for each data set.

    `has_several_proxies` sets the paper's number of proxies per class. `rerun` marks a loss of another paper, whose own
    protocols these do not replace.
    """
    return tuple(
        Protocol.from_paper(
            f"mpa/{name}{suffix}",
            name,
            *_COMMON,
            *stated,
            SourcedSettings(PAPER, {"batch.batch_size": batch_size, "training.epochs": epochs}),
            *([SourcedSettings(PAPER, {"loss.proxies_per_class": proxies})] if has_several_proxies else []),
            SourcedSettings(
                "open: not stated; frozen as Proxy-Anchor does, except on SOP", {"model.freeze_bn": name != "sop"}
            ),
            SourcedSettings("open: about every fifth epoch", {"training.eval_every": eval_every}),
            ks,
            note=_NOTE,
            methods=() if rerun else None,
        )
        for name, ks, batch_size, proxies, epochs, eval_every in (
            ("cub200", KS, 180, 10, 60, 120),
            ("cars196", KS, 64, 10, 60, 480),
            ("sop", SOP_KS_TO_100, 32, 2, 100, 7000),
        )
    )


MPA_ANCHOR = _protocols("", *_family_settings("mpa"))
MPA_DW = _protocols("-dw", *_family_settings("mpa_dw"))
MPA_AP = _protocols("-ap", *_family_settings("mpa_ap"))
MPA_SOFT_TRIPLE = _protocols(
    "-soft-triple",
    SourcedSettings(
        f"{PAPER} (reruns have the same settings)", {"loss.name": "soft_triple", "loss.gamma": 0.1, "loss.tau": 0.2}
    ),
    SourcedSettings(
        "open: not stated; the values of the released code of SoftTriple", {"loss.la": 20.0, "loss.delta": 0.01}
    ),
    rerun=True,
)
MPA_PROXY_ANCHOR = _protocols(
    "-proxy-anchor",
    SourcedSettings(PAPER, {"loss.name": "proxy_anchor"}),
    SourcedSettings(
        "open: not stated; the values of the released code of Proxy-Anchor", {"loss.alpha": 32.0, "loss.delta": 0.1}
    ),
    has_several_proxies=False,
    rerun=True,
)
MPA_PROXY_NCA = _protocols(
    "-proxy-nca",
    SourcedSettings("open: cited, not rerun; trained as the others", {"loss.name": "proxy_nca"}),
    has_several_proxies=False,
    rerun=True,
)
