"""Losses by name: `LOSSES` maps each configuration name to its class; `build_loss` builds one from checked knobs."""

from trainables.losses.base import Loss
from trainables.methods import Registry, build

__all__ = ["LOSSES", "Loss", "build_loss"]

LOSSES = Registry(__name__, Loss, group="tune_dml.losses")  # type: ignore[type-abstract]


def build_loss(name: str, *, num_classes: int | None = None, embedding_dim: int | None = None, **knobs: object) -> Loss:
    """Build the loss called `name` from checked knobs.

    Args:
        name: a key of `LOSSES`.
        num_classes: training classes; needed by losses with class weights or proxies, ignored by the others.
        embedding_dim: dimension of the embeddings; needed likewise.
        knobs: the loss's own parameters; `tune-dml methods` lists them with defaults.

    Raises:
        ConfigError: an unknown name, or unknown, missing or out-of-domain knobs.

    Example:
        >>> import torch
        >>> loss = build_loss("dro_topk", k=2, margin=0.5)
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], requires_grad=True)
        >>> value = loss(embeddings, torch.tensor([0, 0, 1]))  # pair losses 1.0 (0, 1), 1.0 (0, 2) and 0.0 (1, 2)
        >>> value.item()
        1.0
        >>> value.backward()
        >>> build_loss("triplet", margin=-1)
        Traceback (most recent call last):
        ...
        trainables.errors.ConfigError: loss.margin: must be greater than or equal to 0, but got -1.
    """
    return build(LOSSES, "loss", name, knobs, {"num_classes": num_classes, "embedding_dim": embedding_dim}, "loss")
