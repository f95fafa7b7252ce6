"""Losses by name: `LOSSES` maps each configuration name to its class, `build_loss` makes one from checked knobs."""

from __future__ import annotations

from trainables.losses.base import Loss
from trainables.methods import Registry, build

__all__ = ["LOSSES", "Loss", "build_loss"]

LOSSES = Registry(__name__, Loss, group="tune_dml.losses")  # type: ignore[type-abstract]


def build_loss(name: str, *, num_classes: int | None = None, embedding_dim: int | None = None, **knobs: object) -> Loss:
    """The loss called `name`, e.g. `build_loss("triplet", margin=1.0)`.

    `num_classes` and `embedding_dim` are needed by losses that hold class weights or proxies and ignored by the others.
    Raises ConfigError.
    """
    return build(LOSSES, "loss", name, knobs, {"num_classes": num_classes, "embedding_dim": embedding_dim}, "loss")
