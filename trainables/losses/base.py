"""Base class of losses, which map raw embeddings and labels of the global batch to a scalar."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainables.arithmetic import full_precision
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.method_checks import check_path, check_untouched, check_value, versions

EPSILON = 1e-12  # a vector that is not longer has no direction


def inverse_norms(embeddings: Tensor) -> Tensor:
    """Return 1 / ||f_i||, shape (B, 1).

    It is 0 for a zero row, and for a row whose squared norm overflows (in float32, a norm from 1.8e19 on).
    """
    norms = embeddings.norm(dim=1, keepdim=True)
    return torch.where(norms > EPSILON, norms, torch.inf).reciprocal()


def normalise(embeddings: Tensor) -> Tensor:
    """Return rows scaled to unit length: fh = f / ||f||, shape (B, D).

    A row of (near) zero length becomes the zero vector and gets no gradient. The slope 1/EPSILON of the usual
    f / max(||f||, EPSILON) would overflow half precision.

    >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return embeddings * inverse_norms(embeddings)


def _check_batch(embeddings: Tensor, labels: Tensor) -> None:
    """Raise ConfigError for wrong shapes or types, without waiting for the device."""
    problems = [
        Problem(name, "must be a tensor", type(value).__name__)
        for name, value in (("embeddings", embeddings), ("labels", labels))
        if not isinstance(value, Tensor)
    ]
    raise_if_any(problems)
    if embeddings.ndim != 2 or not embeddings.is_floating_point() or 0 in embeddings.shape:
        got = (tuple(embeddings.shape), str(embeddings.dtype))
        problems.append(Problem("embeddings", "must be a float tensor of shape (B, D), B and D at least 1", got))
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        got = (tuple(labels.shape), str(labels.dtype))
        problems.append(Problem("labels", "must be an integer tensor of shape (B,)", got))
    if not problems and len(embeddings) != len(labels):
        lengths = (len(embeddings), len(labels))
        problems.append(Problem("labels", "there must be one label per embedding", lengths))
    raise_if_any(problems)


class Loss(nn.Module, ABC):
    """A deep metric learning loss.

    Called on RAW (un-normalised) embeddings (B, D), float, and integer labels (B,). Returns a scalar attached to the
    graph, finite with finite gradient in every degenerate batch. Half-precision input is computed in float32 with
    autocast off; float64 stays float64. pytorch-metric-learning's trainers can call it too, without a miner.

    A subclass sets `name` (its configuration name), `citation` and `section` (of docs/specification.md), declares its
    knobs in a keyword-only constructor (see trainables.methods) and implements `value`.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    section: ClassVar[str]
    example: ClassVar[Mapping[str, object]] = MappingProxyType({})
    """Values for knobs without a default, with which tests and benchmarks build every method."""
    surrogate_gradient: ClassVar[bool] = False
    """Whether the gradient differs from that of the value, because the paper treats weights as constants."""
    depends_on_order: ClassVar[bool] = False
    """Whether the order of the batch or a random stream decides which samples take part."""
    uses_norms: ClassVar[bool] = False
    """Whether the value depends on more than the embeddings' directions."""
    host_reads: ClassVar[int] = 0
    """Count of numbers that a step on the CPU reads from tensors. On accelerators, where reading waits, it is 0."""
    counts_classes: ClassVar[bool] = False
    """Whether the loss holds a vector for each training class; derived from the constructor (`num_classes`)."""
    _is_checked: bool = False
    """Whether the path of its gradient has been checked."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.counts_classes = "num_classes" in inspect.signature(cls).parameters

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: None = None) -> Tensor:
        """Return the loss of the (global) batch, a scalar. Raises ConfigError for wrong shapes or types."""
        _check_batch(embeddings, labels)
        if indices_tuple is not None:
            rule = f"{self.name} does its own pair selection and takes no miner's output"
            raise ConfigError(Problem("indices_tuple", rule, None, "Remove the miner."))
        registered = () if self._is_checked else tuple(self.parameters())
        with full_precision(embeddings.device):
            full = embeddings if embeddings.dtype in (torch.float32, torch.float64) else embeddings.float()
            before = versions(full, labels)
            value = self.value(full, labels)
        place = f"value of the loss {type(self).__name__}"
        check_untouched(place, before, full, labels)
        check_value(place, value, embeddings)
        if not self._is_checked and embeddings.requires_grad and value.requires_grad:
            check_path(place, value, embeddings, self, registered)
            self._is_checked = True
        return value

    @abstractmethod
    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss in full precision of raw embeddings (B, D) with labels (B,)."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Return detached scalars that describe the last batch, for the report's mechanism panel; empty by default."""
        return {}
