"""Settings that the protocols of several papers share."""

from tune_dml.space import Protocol, Setting, SourcedSettings

BN_INCEPTION = (
    SourcedSettings("paper: BN-Inception with ImageNet weights", {"model.backbone": "bn_inception"}),
    SourcedSettings(
        "code: the published file that every released code loads", {"model.weights": "bn_inception-52deb4733.pth"}
    ),
)

CROP_227 = SourcedSettings("code: random resized crop 227 of the picture at 256, flip; centre crop in test", {
    "augment.name": "crop_flip", "augment.crop": 227, "augment.resize": 256, "augment.scale": [0.16, 1.0],
    "augment.ratio": [0.75, 1.3333333333333333], "augment.flip": 0.5,
})  # fmt: skip

CROP_224 = SourcedSettings("code: random resized crop 224 of the picture at 256, flip; centre crop in test", {
    "augment.name": "crop_flip_224", "augment.crop": 224, "augment.resize": 256, "augment.scale": [0.08, 1.0],
    "augment.ratio": [0.75, 1.3333333333333333], "augment.flip": 0.5,
})  # fmt: skip

_TABLES = "paper: Recall@k of its tables"
KS = SourcedSettings(_TABLES, {"evaluation.ks": [1, 2, 4, 8]})
KS_TO_32 = SourcedSettings(_TABLES, {"evaluation.ks": [1, 2, 4, 8, 16, 32]})
SOP_KS = SourcedSettings(_TABLES, {"evaluation.ks": [1, 10, 100, 1000]})
SOP_KS_TO_100 = SourcedSettings(_TABLES, {"evaluation.ks": [1, 10, 100]})
SHOP_KS = SourcedSettings(_TABLES, {"evaluation.ks": [1, 10, 20, 30, 40, 50]})

LAST = SourcedSettings(
    "open: the papers report their best evaluation on the test classes; ours is the last one, on validation classes",
    {"evaluation.epoch": "last", "data.split": "class_disjoint"},
)


def our_protocol(
    name: str,
    settings: dict[str, Setting],
    note: str,
    *,
    methods: tuple[str, ...] = (),
    default: bool = False,
    still_gains: dict[str, float] | None = None,
) -> Protocol:
    """Return a protocol of ours, whose name begins with its data set; see `Protocol`."""
    dataset, text, gains = name.partition("/")[0], f"Ours: {note}", still_gains or {}
    return Protocol(name, dataset, settings, note=text, methods=methods, default=default, still_gains=gains)


def with_settings(protocol: Protocol, suffix: str, stated: SourcedSettings) -> Protocol:
    """Return a paper's protocol with more settings of that paper, such as the eta it chose, and a suffix to its name."""
    return Protocol(
        name=f"{protocol.name}{suffix}",
        dataset=protocol.dataset,
        settings={**protocol.settings, **stated.settings},
        origin=protocol.origin,
        note=protocol.note,
        sources={**protocol.sources, **dict.fromkeys(stated.settings, stated.source)} if protocol.sources else {},
        methods=protocol.methods,
    )
