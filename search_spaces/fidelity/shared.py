"""Settings and sentences that several fidelity sheets share."""

from __future__ import annotations

from tune_dml.space import Protocol, Setting

WEIGHTS: dict[str, Setting] = {"model.backbone": "bn_inception", "model.weights": "bn_inception-52deb4733.pth"}
CROP_227: dict[str, Setting] = {
    "augment.crop": 227,
    "augment.scale": [0.16, 1.0],
    "augment.ratio": [3 / 4, 4 / 3],
    "augment.flip": 0.5,
}
CROP_224: dict[str, Setting] = {
    "augment.crop": 224,
    "augment.scale": [0.08, 1.0],
    "augment.ratio": [3 / 4, 4 / 3],
    "augment.flip": 0.5,
}
ON_VALIDATION = "last evaluation, on validation classes taken from the training classes; test classes stay sealed"
SELECTION = "Selection on test classes is a labelled mode here (data.split=paper_test_selection), not the default."
CUT_AT_256 = "Pictures are stored with a shorter side of 256 pixels, so a small window is enlarged from fewer pixels."


def names_of(*protocols: Protocol) -> tuple[str, ...]:
    """Return the names of protocols."""
    return tuple(protocol.name for protocol in protocols)
