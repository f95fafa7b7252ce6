"""Base class of regularizers, which map the raw embeddings of the global batch to one scalar, without its weight."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainables.arithmetic import full_precision
from trainables.errors import ConfigError, Problem
from trainables.method_checks import check_untouched, check_value, versions


class Regularizer(nn.Module, ABC):
    """A penalty on the norms n_i = ||f_i|| of the RAW embeddings.

    Called on embeddings (B, D), float, before any normalisation. Returns a scalar attached to the graph, WITHOUT the
    weight eta (see `add_penalty`). Half precision is computed in float32 with autocast off; float64 stays float64. With
    several processes, call it on the gathered global batch: values and state then agree on all ranks.

    State advances once per call in training mode and never in evaluation mode, so call it once per optimiser step.
    (Under gradient accumulation, each micro-batch would count as a step.)

    A subclass sets `name`, `citation` and `section` (of docs/specification.md), declares its knobs in a keyword-only
    constructor (see trainables.methods) and implements `value`.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    section: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._norms: Tensor | None = None  # (B,), of the last batch; averaged only for diagnostics

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the penalty of the (global) batch; 0 for an empty batch. Raise ConfigError for a wrong shape."""
        if embeddings.ndim != 2 or not embeddings.is_floating_point():
            got = (tuple(embeddings.shape), str(embeddings.dtype))
            raise ConfigError(Problem("embeddings", "must be a float tensor of shape (B, D)", got))
        with full_precision(embeddings.device):
            full = embeddings if embeddings.dtype in (torch.float32, torch.float64) else embeddings.float()
            # The gradient of vector_norm at a zero vector is 0, not NaN.
            norms: Tensor = torch.linalg.vector_norm(full, dim=1)
            self._norms = norms.detach()
            if not len(norms):
                return full.sum()
            before = versions(norms)
            value = self.value(norms)
        place = f"value of the regularizer {type(self).__name__}"
        check_untouched(place, before, norms)
        check_value(place, value, embeddings)
        return value

    @property
    def needs_mean(self) -> bool:
        """Whether `set_mean` must be called before the first step."""
        return False

    def set_mean(self, value: float) -> None:
        """Set the mean norm of all training pictures. Raises ConfigError if the regularizer uses none."""
        raise ConfigError(
            Problem("regularizer.name", "this regularizer uses no mean norm of the training set", self.name)
        )

    @abstractmethod
    def value(self, norms: Tensor) -> Tensor:
        """Return the penalty in full precision from the norms (B,), B >= 1."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Return mean and (biased) variance of the last batch's norms as 0-d tensors; empty before the first call."""
        if self._norms is None or not len(self._norms):
            return {}
        return {"norm_mean": self._norms.mean(), "norm_variance": self._norms.var(correction=0)}


class AroundMean(Regularizer):
    """R = (1/B) Σ (n_i - mu)² for a mean norm mu without gradient: dR/df_i = (2/B)(n_i - mu) f_i/n_i is purely radial.

    A subclass defines `mean`. `mu` and `initialized` are buffers, so checkpoints hold them. `mu` is float64, to keep
    the digits of a running mean over many steps.
    """

    mu: Tensor
    initialized: Tensor

    def __init__(self, mu: float | None = None) -> None:
        super().__init__()
        self.register_buffer("mu", torch.tensor(mu or 0.0, dtype=torch.float64))
        self.register_buffer("initialized", torch.tensor(mu is not None))

    def value(self, norms: Tensor) -> Tensor:
        with torch.no_grad():
            mean = self.mean(norms.detach()).to(norms.dtype)
        return (norms - mean).square().mean()

    @abstractmethod
    def mean(self, norms: Tensor) -> Tensor:
        """Return mu for this batch, 0-d float64. Called without autograd, once per batch."""

    def store_mean(self, mean: Tensor | float) -> None:
        self.mu.fill_(mean)
        self.initialized.fill_(True)

    def diagnostics(self) -> dict[str, Tensor]:
        norms = super().diagnostics()
        return {**norms, "mu": self.mu.detach().clone()} if norms else norms


def add_penalty(value: Tensor, regularizer: Regularizer, embeddings: Tensor, eta: float) -> Tensor:
    """Return the objective value + eta * regularizer(embeddings).

    For eta = 0, return `value` itself, so that the baseline is bitwise unchanged. The regularizer is still called
    without gradient, because its running mean starts at the first batch, and baselines log norm statistics too.
    """
    if eta == 0:
        with torch.no_grad():
            regularizer(embeddings)
        return value
    penalty: Tensor = regularizer(embeddings)
    return value + eta * penalty
