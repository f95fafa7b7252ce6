"""SEC, the spherical embedding constraint, its running-mean (SEC-EMA) and fixed-mean forms, and its baselines.

>>> import torch
>>> from trainables.regularizers import build_regularizer
>>> embeddings = torch.tensor([[3.0, 4.0], [0.0, 1.0]])  # norms 5 and 1
>>> [build_regularizer(name)(embeddings).item() for name in ("none", "l2", "sec")]
[0.0, 13.0, 4.0]
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.errors import ConfigError, Problem
from trainables.regularizers.base import AroundMean, Regularizer


class NoRegularizer(Regularizer):
    """R = 0 with zero gradient; the norm statistics are recorded as for every regularizer."""

    name = "none"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020 (baseline)"
    section = "1"

    def value(self, norms: Tensor) -> Tensor:
        return 0 * norms.sum()


class L2Regularizer(Regularizer):
    """R = (1/B) Σ n_i², the mean squared norm: fixed-mean SEC with mu = 0 (SEC supplement, "L2-reg").

    Squared norms, unlike pytorch-metric-learning's LpRegularizer of default power 1.
    """

    name = "l2"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020 (L2-reg)"
    section = "1.4"

    def value(self, norms: Tensor) -> Tensor:
        return norms.square().mean()


class SphericalEmbeddingConstraint(AroundMean):
    """R = (1/B) Σ (n_i - mu_t)², with mu_0 = mean n_0 and mu_t = (1 - rho) mu_{t-1} + rho mean n_t.

    rho = 1 is SEC: the biased variance of the batch's norms, in training and in evaluation mode. rho < 1 is SEC-EMA, which
    pulls norms to the running mean; rho = 0 holds the first batch's mean. mu is updated before the penalty of the same step,
    as in the authors' code. No call waits for the device.
    """

    name = "sec"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020"
    section = "1.1, 1.2"

    def __init__(
        self,
        *,
        rho: Annotated[
            float, Field(ge=0, le=1, description="weight of the batch in the running mean norm; 1 is SEC, < 1 SEC-EMA")
        ] = 1.0,
    ):
        super().__init__()
        self.rho = rho

    def mean(self, norms: Tensor) -> Tensor:
        """Return mu_t; training mode updates it."""
        batch = norms.to(self.mu.dtype).mean()
        if not self.training:
            return batch if self.rho == 1 else torch.where(self.initialized, self.mu, batch)
        running = batch if self.rho == 1 else torch.lerp(self.mu, batch, self.rho)
        mean = torch.where(self.initialized, running, batch)
        self.store_mean(mean)
        return mean


class FixedMeanSEC(AroundMean):
    """R = (1/B) Σ (n_i - mu)² with constant mu (SEC rebuttal, table 2; 8.70 for triplet on Cars196).

    mu is a number, the mean norm of the first training batch, or the mean norm over the training set at initialisation. The
    last needs one pass over the training set: the training loop calls `set_mean` before the first batch if `needs_mean`.
    """

    name = "sec_fixed"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020 (rebuttal)"
    section = "1.3"

    def __init__(
        self,
        *,
        mu: Annotated[
            Literal["first_batch", "initial_train_mean"] | Annotated[float, Field(ge=0)],
            Field(description="the constant mean norm, or where to take it from"),
        ] = "initial_train_mean",
    ):
        super().__init__(None if isinstance(mu, str) else float(mu))
        self.source = mu
        self._checked = not isinstance(mu, str)  # so that later batches need not wait for the device

    @property
    def needs_mean(self) -> bool:
        """Whether `set_mean` must still be called."""
        return self.source == "initial_train_mean" and not bool(self.initialized)

    def set_mean(self, value: float) -> None:
        """Fix mu to the mean norm over the training set at initialisation. Raises ConfigError for another source of mu."""
        if self.source != "initial_train_mean":
            rule = "the mean can be set only for mu='initial_train_mean'"
            raise ConfigError(Problem("regularizer.mu", rule, self.source))
        if not 0 <= value < float("inf"):
            raise ConfigError(Problem("regularizer.mu", "the mean norm must be finite and >= 0", value))
        self.store_mean(value)

    def mean(self, norms: Tensor) -> Tensor:
        """Return mu, possibly set by the first training batch. Raises ConfigError if it must still be measured."""
        if not self._checked and self.needs_mean:
            rule = "mu='initial_train_mean' must be measured before the first batch"
            remedy = "Call set_mean(mean norm over the training set), or give mu as a number."
            raise ConfigError(Problem("regularizer.mu", rule, None, remedy))
        self._checked = True
        mean = torch.where(self.initialized, self.mu, norms.to(self.mu.dtype).mean())
        if self.training and self.source == "first_batch":
            self.store_mean(mean)
        return mean
