"""Embedding networks: `BACKBONES`, `POOLINGS` and `HEADS` by name, and `build_model`, which puts them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import nn

from trainables.errors import ConfigError, Problem, nearest
from trainables.methods import build, discover
from trainables.models.base import Backbone, Head, Pooling
from trainables.models.embedder import Embedder, parameter_groups, to_tensor

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
    "to_tensor",
]

T = TypeVar("T", bound=nn.Module)

BACKBONES: dict[str, type[Backbone]] = discover(__name__, Backbone, group="tune_dml.backbones")  # type: ignore[type-abstract]
POOLINGS: dict[str, type[Pooling]] = discover(__name__, Pooling, group="tune_dml.poolings")  # type: ignore[type-abstract]
HEADS: dict[str, type[Head]] = discover(__name__, Head, group="tune_dml.heads")  # type: ignore[type-abstract]


def build_model(
    *,
    backbone: str = "small_conv",
    pooling: str = "avg",
    head: str = "fc",
    embedding_dim: int = 64,
    in_channels: int = 3,
    image_size: int | None = None,
    freeze_bn: bool = False,
    freeze_bn_affine: bool = False,
    backbone_parameters: Mapping[str, object] | None = None,
    pooling_parameters: Mapping[str, object] | None = None,
    head_parameters: Mapping[str, object] | None = None,
) -> Embedder:
    """An embedding network: pictures (B, C, H, W) in, raw embeddings (B, embedding_dim) out.

    Initial weights come from torch's global generator: seed it first. Raises ConfigError with every problem: unknown
    names and knobs, and an `image_size` the backbone cannot take.
    """
    problems = [] if head in HEADS else [_unknown(HEADS, "head", head)]
    if embedding_dim < 1:
        problems.append(Problem("model.embedding_dim", "must be at least 1", embedding_dim))
    if backbone in BACKBONES and image_size is not None:
        problems += BACKBONES[backbone].size_problems(image_size, **dict(backbone_parameters or {}))
    body, more = _part(BACKBONES, "backbone", backbone, backbone_parameters, "model", {"in_channels": in_channels})
    pool, yet_more = _part(POOLINGS, "pooling", pooling, pooling_parameters, "model.pooling", {})
    problems += more + yet_more
    if body is None or pool is None or problems:
        raise ConfigError(problems)
    top = HEADS[head](body.out_channels, embedding_dim, **dict(head_parameters or {}))
    return Embedder(body, pool, top, freeze_bn=freeze_bn, freeze_bn_affine=freeze_bn_affine)


def _part(  # noqa: PLR0917
    registry: Mapping[str, type[T]],
    kind: str,
    name: str,
    knobs: Mapping[str, object] | None,
    place: str,
    context: Mapping[str, object],
) -> tuple[T | None, list[Problem]]:
    """The part called `name`, or what is wrong with its name or knobs."""
    if name not in registry:
        return None, [_unknown(registry, kind, name)]
    try:
        return build(registry[name], dict(knobs or {}), context, place), []
    except ConfigError as error:
        return None, list(error.problems)


def _unknown(registry: Mapping[str, object], kind: str, name: str) -> Problem:
    return Problem(f"model.{kind}", f"unknown {kind}", name, nearest(name, list(registry), what=kind))
