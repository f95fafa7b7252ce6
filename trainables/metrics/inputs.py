"""What every metric is given: labelled embeddings, checked once and scaled to unit length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from trainables.errors import Problem, raise_if_any

__all__ = ["Array", "LabelledVectors", "labelled_vectors", "unit_rows"]

Array: TypeAlias = "Tensor | np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
"""A torch tensor on any device, or a numpy array."""


@dataclass(frozen=True)
class LabelledVectors:
    """Unit vectors with their classes, on the device of the embeddings they came from."""

    vectors: Tensor
    """(N, D), float32 or float64, every row of length 1 (a zero embedding stays zero)."""
    labels: Tensor
    """(N,), int64."""

    def __len__(self) -> int:
        return len(self.labels)


def labelled_vectors(embeddings: Array, labels: Array, *, place: str = "") -> LabelledVectors:
    """Checked, detached and L2-normalised embeddings (N, D) with integer labels (N,).

    Half precision is computed in float32; labels follow the embeddings to their device. `place` prefixes the names in
    messages. Raises ConfigError listing every problem: shapes, types, lengths, an empty set, NaN or infinity.
    """
    vectors, classes = _tensor(embeddings), _tensor(labels)
    names = f"{place}embeddings", f"{place}labels"
    problems = []
    if vectors is None or vectors.ndim != 2 or not vectors.is_floating_point():
        rule = "must be a float tensor or array of shape (N, D)"
        problems.append(Problem(names[0], rule, _describe(embeddings)))
    if classes is None or classes.ndim != 1 or _is_not_integer(classes):
        rule = "must be an integer tensor or array of shape (N,)"
        problems.append(Problem(names[1], rule, _describe(labels)))
    raise_if_any(problems)
    assert vectors is not None  # noqa: S101 - the checks above have raised otherwise
    assert classes is not None  # noqa: S101
    if len(vectors) != len(classes):
        rule = "there must be one label per embedding"
        problems.append(Problem(names[1], rule, (len(classes), len(vectors))))
    if vectors.numel() == 0:
        problems.append(Problem(names[0], "must not be empty", tuple(vectors.shape)))
    elif not bool(torch.isfinite(vectors).all()):
        bad = (~torch.isfinite(vectors)).any(dim=1)
        first = int(bad.nonzero()[0])
        rule = f"must be finite, {int(bad.sum())} of {len(vectors)} rows have NaN or infinity"
        problems.append(Problem(names[0], rule, f"row {first} first", "The model has diverged."))
    raise_if_any(problems)
    return LabelledVectors(unit_rows(vectors), classes.to(vectors.device, torch.int64))


def unit_rows(vectors: Tensor) -> Tensor:
    """Rows scaled to length 1, (N, D), in float32 or float64; a zero row stays zero.

    Each row is first divided by its largest entry, so that neither huge nor tiny rows leave the float range on squaring.
    """
    with torch.no_grad():
        full = vectors if vectors.dtype in (torch.float32, torch.float64) else vectors.float()
        smallest = torch.finfo(full.dtype).tiny
        scaled = full / full.abs().amax(dim=1, keepdim=True).clamp_min(smallest)
        return scaled.div_(scaled.norm(dim=1, keepdim=True).clamp_min_(smallest))


def _tensor(value: object) -> Tensor | None:
    """A detached tensor that shares memory where it can; None for what cannot be one."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
        if array.dtype.kind == "u":
            array = array.astype(np.int64)  # torch sorts no unsigned type beyond uint8
        return torch.from_numpy(np.require(array, requirements="W"))
    except (TypeError, ValueError, RuntimeError):
        return None


def _is_not_integer(values: Tensor) -> bool:
    return values.is_floating_point() or values.is_complex() or values.dtype == torch.bool


def _describe(value: object) -> object:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else (tuple(shape or ()), str(dtype))
