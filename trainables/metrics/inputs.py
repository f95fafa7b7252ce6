"""Prepare the input of every metric: checked unit embeddings with their classes, and exact arithmetic."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from trainables.errors import Problem, raise_if_any

Array: TypeAlias = "Tensor | np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
"""A torch tensor on any device, or a numpy array."""


@dataclass(frozen=True)
class LabelledVectors:
    """Unit vectors with their classes, on the device of the given embeddings."""

    vectors: Tensor  # (N, D), float32 or float64, every row of length 1 (a zero embedding stays zero)
    labels: Tensor  # (N,), int64

    def __len__(self) -> int:
        return len(self.labels)


def labelled_vectors(embeddings: Array, labels: Array, *, prefix: str = "") -> LabelledVectors:
    """Check, detach and L2-normalise embeddings (N, D) with integer labels (N,).

    Half precision becomes float32; labels move to the embeddings' device. `prefix` precedes the names in messages.
    Raises ConfigError with every problem: shapes, types, lengths, an empty set, NaN or infinity.
    """
    vectors, problems = checked_vectors(embeddings, f"{prefix}embeddings")
    classes, more = checked_labels(labels, len(vectors), f"{prefix}labels")
    raise_if_any(problems + more)
    return LabelledVectors(unit_rows(vectors), classes.to(vectors.device))


def checked_vectors(value: Array, name: str) -> tuple[Tensor, list[Problem]]:
    """Return embeddings as a detached float tensor (N, D), and their problems."""
    vectors = _tensor(value)
    if vectors is None or vectors.ndim != 2 or not vectors.is_floating_point():
        rule = "must be a float tensor or array of shape (N, D)"
        return torch.zeros(0, 1), [Problem(name, rule, _describe(value))]
    if vectors.numel() == 0:
        return vectors, [Problem(name, "must not be empty", tuple(vectors.shape))]
    finite = torch.isfinite(_peaks(vectors))[:, 0]
    if bool(finite.all()):
        return vectors, []
    rows = (~finite).nonzero()[:, 0]
    rule = f"must be finite, but {len(rows)} of {len(vectors)} rows have NaN or infinity, row {int(rows[0])} first"
    return vectors, [Problem(name, rule, remedy="The model has diverged, or the features are damaged.")]


def checked_labels(value: Array, length: int, name: str) -> tuple[Tensor, list[Problem]]:
    """Return labels as an int64 tensor (N,), and their problems; `length` 0 means unknown."""
    labels = _tensor(value)
    is_integer = labels is not None and not (
        labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool
    )
    if labels is None or labels.ndim != 1 or not is_integer:
        rule = "must be an integer tensor or array of shape (N,)"
        return torch.zeros(0, dtype=torch.int64), [Problem(name, rule, _describe(value))]
    if length and len(labels) != length:
        return labels, [Problem(name, f"there must be one label per embedding ({length})", len(labels))]
    return labels.to(torch.int64), []


def checked_flags(value: Array, length: int, name: str) -> tuple[Tensor, list[Problem]]:
    """Return booleans, or integers 0 and 1, as a bool tensor (N,), and their problems; `length` 0 means unknown."""
    flags = _tensor(value)
    numbers = flags.to(torch.uint8) if flags is not None and flags.dtype == torch.bool else value
    labels, problems = checked_labels(numbers, length, name)
    invalid = labels[(labels != 0) & (labels != 1)]
    if len(invalid):
        problems.append(Problem(name, "must be booleans, or 0 and 1", int(invalid[0])))
    return labels == 1, problems


def unit_rows(vectors: Tensor) -> Tensor:
    """Return rows scaled to length 1, (N, D), in float32 or float64; a zero row stays zero.

    Each row is first divided by its largest entry, so that squares of huge or tiny rows stay in the float range.
    """
    full = vectors if vectors.dtype in (torch.float32, torch.float64) else vectors.float()
    smallest = torch.finfo(full.dtype).tiny
    with torch.no_grad():
        scaled = full / _peaks(full).clamp_min(smallest)
        return scaled.div_(scaled.norm(dim=1, keepdim=True).clamp_min_(smallest))


def _peaks(vectors: Tensor) -> Tensor:
    """Return the largest magnitude of each row, (N, 1), NaN or infinite if an entry is. Make no copy."""
    detached = vectors.detach()
    # Ten times faster than the norm of order infinity or the maximum of abs().
    return torch.maximum(detached.amax(dim=1, keepdim=True), -detached.amin(dim=1, keepdim=True))


def _tensor(value: object) -> Tensor | None:
    """Return a detached tensor that shares memory where possible; None if the value cannot become one."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
        if array.dtype.kind == "u":
            array = array.astype(np.int64)  # torch sorts no unsigned type beyond uint8
        if not array.dtype.isnative or min(array.strides, default=0) < 0:  # torch reads neither
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(np.require(array, requirements="W"))
    except (TypeError, ValueError, RuntimeError):
        return None


def _describe(value: object) -> object:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else (tuple(shape or ()), str(dtype))


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Switch off gradients, autocast, and TF32 or bfloat16 products of float32, which training may have switched on.

    The precision of products is a process-wide setting; it is restored at the end.
    """
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _full_products():
        yield


@contextmanager
def _full_products() -> Iterator[None]:
    """Set both the old name of the setting and the new one (torch 2.9), as torch raises when they disagree."""
    switches: list[object] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    new = {switch: value for switch in switches if (value := getattr(switch, "fp32_precision", None)) is not None}
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:  # the new name was used before
        old = None
    try:
        if old is None:
            _set_all(dict.fromkeys(new, "ieee"))
        else:
            torch.set_float32_matmul_precision("highest")
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        _set_all(new)


def _set_all(precisions: dict[object, str]) -> None:
    for switch, precision in precisions.items():
        setattr(switch, "fp32_precision", precision)  # noqa: B010 - unknown to the type checker in older torch
