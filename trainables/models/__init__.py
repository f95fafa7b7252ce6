"""Embedding networks: the registries `BACKBONES`, `POOLINGS` and `HEADS`, and `build_model`."""

from collections.abc import Mapping
from typing import Any

from trainables.config import HeadInit
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.methods import Registry, construct, unknown_problem
from trainables.models.base import Backbone, Head, Pooling
from trainables.models.embedder import Embedder, parameter_groups

__all__ = [
    "BACKBONES",
    "HEADS",
    "POOLINGS",
    "Backbone",
    "Embedder",
    "Head",
    "Pooling",
    "build_model",
    "parameter_groups",
]

BACKBONES = Registry(__name__, Backbone, group="tune_dml.backbones")  # type: ignore[type-abstract]
POOLINGS = Registry(__name__, Pooling, group="tune_dml.poolings")  # type: ignore[type-abstract]
HEADS = Registry(__name__, Head, group="tune_dml.heads")  # type: ignore[type-abstract]


def build_model(
    *,
    backbone: str = "small_conv",
    pooling: str = "avg",
    head: str = "fc",
    head_init: HeadInit = "he_fan_out",
    embedding_dim: int = 64,
    in_channels: int = 3,
    image_size: int | None = None,
    freeze_bn: bool = False,
    freeze_bn_affine: bool = False,
    backbone_parameters: Mapping[str, object] | None = None,
    pooling_parameters: Mapping[str, object] | None = None,
    head_parameters: Mapping[str, object] | None = None,
) -> Embedder:
    """Create an embedding network: pictures (B, C, H, W) in, raw embeddings (B, embedding_dim) out.

    Initial weights come from torch's global generator: seed it first.

    Raises:
        ConfigError: unknown names and knobs, and an `image_size` that the backbone cannot take.

    Example:
        >>> import torch
        >>> from trainables.models import build_model
        >>> network = build_model(backbone="small_conv", embedding_dim=32, in_channels=1)
        >>> network(torch.rand(4, 1, 24, 24)).shape
        torch.Size([4, 32])
    """
    problems = [] if head in HEADS else [unknown_problem(HEADS, "head", head, "model.head")]
    if embedding_dim < 1:
        problems.append(Problem("model.embedding_dim", "must be at least 1", embedding_dim))
    if backbone in BACKBONES and image_size is not None:
        problems += BACKBONES[backbone].size_problems(image_size, **dict(backbone_parameters or {}))
    chosen: tuple[Any, ...] = (
        (BACKBONES, "backbone", backbone, backbone_parameters, "model"),
        (POOLINGS, "pooling", pooling, pooling_parameters, "model.pooling"),
    )
    parts: list[Any] = []
    for registry, kind, name, knobs, place in chosen:
        if name not in registry:
            problems.append(unknown_problem(registry, kind, name, f"model.{kind}"))
            continue
        try:
            parts.append(construct(registry[name], dict(knobs or {}), {"in_channels": in_channels}, place))
        except ConfigError as error:
            problems += error.problems
    raise_if_any(problems)
    body, pool = parts
    if not isinstance(getattr(body, "out_channels", None), int):
        rule, remedy = "its constructor must set out_channels", "Set it to the channels of its feature map."
        raise ConfigError(Problem(f"backbone {backbone}", rule, getattr(body, "out_channels", None), remedy))
    sizes = {"in_features": body.out_channels, "embedding_dim": embedding_dim}
    top = construct(HEADS[head], dict(head_parameters or {}), sizes, "model.head")
    top.initialise(head_init)
    return Embedder(
        body, pool, top, embedding_dim=embedding_dim, freeze_bn=freeze_bn, freeze_bn_affine=freeze_bn_affine
    )
