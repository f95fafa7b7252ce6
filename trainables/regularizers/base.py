"""What a regularizer is: raw embeddings of the global batch in, one scalar out, without its weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainables.errors import ConfigError, Problem
from trainables.handed_back import check_untouched, check_value, versions
from trainables.precision import full_precision


class Regularizer(nn.Module, ABC):
    """A penalty on the norms n_i = ||f_i|| of the RAW embeddings.

    Called on embeddings (B, D), float, before any normalisation; returns a scalar attached to the graph, WITHOUT the
    weight eta (see `penalised`). Half precision is computed in float32 with autocast off; float64 stays float64. With
    several processes, call it on the gathered global batch: values and state then agree on all ranks.

    Regularizers with state advance it once per call in training mode and never in evaluation mode: call once per
    optimiser step (under gradient accumulation each micro-batch would count as a step).

    A subclass sets `name`, `citation` and `section` (of docs/specification.md), declares its knobs in a keyword-only
    constructor (see trainables.methods) and implements `value`.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    section: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._norms: Tensor | None = None  # (B,), of the last batch; reduced only when asked for

    def forward(self, embeddings: Tensor) -> Tensor:
        """The penalty of the (global) batch, a scalar; 0 for an empty batch. Raises ConfigError for a wrong shape."""
        if embeddings.ndim != 2 or not embeddings.is_floating_point():
            got = (tuple(embeddings.shape), str(embeddings.dtype))
            raise ConfigError(Problem("embeddings", "must be a float tensor of shape (B, D)", got))
        with full_precision(embeddings.device):
            full = embeddings if embeddings.dtype in (torch.float32, torch.float64) else embeddings.float()
            # Its gradient at a zero vector is 0, not NaN.
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
        """Whether `set_mean` must be told the mean norm of all training pictures before the first step."""
        return False

    def set_mean(self, value: float) -> None:
        """Keep the mean norm of all training pictures. Raises ConfigError where none is needed."""
        raise ConfigError(Problem("regularizer.name", "this regularizer keeps no mean", self.name))

    @abstractmethod
    def value(self, norms: Tensor) -> Tensor:
        """The penalty in full precision from the norms (B,), B >= 1."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Norm mean and (biased) variance of the last batch as detached 0-d tensors; empty before the first call."""
        if self._norms is None or not len(self._norms):
            return {}
        return {"norm_mean": self._norms.mean(), "norm_variance": self._norms.var(correction=0)}


class AroundMean(Regularizer):
    """R = (1/B) Σ (n_i - mu)², mu a mean norm without gradient: dR/df_i = (2/B)(n_i - mu) f_i/n_i is purely radial.

    A subclass says what `mean` is. `mu` (float64, so that a running mean over any number of steps is not limited by
    float32 rounding) and `initialized` are buffers: they travel with checkpoints.
    """

    mu: Tensor
    initialized: Tensor

    def __init__(self, mu: float | None = None) -> None:
        super().__init__()
        self.register_buffer("mu", torch.tensor(mu or 0.0, dtype=torch.float64))
        self.register_buffer("initialized", torch.tensor(mu is not None))

    def value(self, norms: Tensor) -> Tensor:
        """Mean squared deviation from mu."""
        with torch.no_grad():
            mean = self.mean(norms.detach()).to(norms.dtype)
        return (norms - mean).square().mean()

    @abstractmethod
    def mean(self, norms: Tensor) -> Tensor:
        """Mu of this batch, 0-d float64; called without autograd, once a batch."""

    def keep(self, mean: Tensor | float) -> None:
        """Remember a mean."""
        self.mu.fill_(mean)
        self.initialized.fill_(True)

    def diagnostics(self) -> dict[str, Tensor]:
        """Norm mean and variance of the last batch, and mu."""
        norms = super().diagnostics()
        return {**norms, "mu": self.mu.detach().clone()} if norms else norms


def penalised(value: Tensor, regularizer: Regularizer, embeddings: Tensor, eta: float) -> Tensor:
    """The objective: value + eta * regularizer(embeddings).

    For eta = 0 it is the very same `value`, so that the baseline is bitwise unchanged. The regularizer still sees the
    batch, without gradient: its running mean starts at the first batch under a schedule that starts from 0, and the norm
    statistics of a baseline are there to compare with.
    """
    if eta == 0:
        with torch.no_grad():
            regularizer(embeddings)
        return value
    penalty: Tensor = regularizer(embeddings)
    return value + eta * penalty
