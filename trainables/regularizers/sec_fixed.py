"""SEC with a constant mean norm."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.errors import ConfigError, Problem
from trainables.regularizers.base import Regularizer


class FixedMeanSEC(Regularizer):
    """R = (1/B) Σ (n_i - mu)² with constant mu (SEC rebuttal, table 2; 8.70 for triplet on Cars196).

    mu is a number, the mean norm of the first training batch, or the mean norm over the training set at
    initialisation. The last needs one pass over the training set: whoever trains calls `set_mean` before the
    first batch (`needs_mean` says whether that is still to be done). `mu` and `initialized` are buffers and
    travel with checkpoints.
    """

    name = "sec_fixed"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020 (rebuttal)"
    section = "1.3"

    mu: Tensor
    initialized: Tensor

    def __init__(
        self,
        *,
        mu: Annotated[
            Literal["first_batch", "initial_train_mean"] | Annotated[float, Field(ge=0)],
            Field(description="the constant mean norm, or where to take it from"),
        ] = "initial_train_mean",
    ):
        super().__init__()
        self.source = mu
        given = not isinstance(mu, str)
        self.register_buffer("mu", torch.tensor(float(mu) if given else 0.0, dtype=torch.float64))
        self.register_buffer("initialized", torch.tensor(given))
        self._checked = given  # spares every later batch the wait for the device

    @property
    def needs_mean(self) -> bool:
        """True while `set_mean` has still to be called."""
        return self.source == "initial_train_mean" and not bool(self.initialized)

    def set_mean(self, value: float) -> None:
        """Fix mu to the mean norm over the training set at initialisation. Raises ConfigError where that is not asked for."""
        if self.source != "initial_train_mean":
            rule = "the mean can be set only for mu='initial_train_mean'"
            raise ConfigError(Problem("regularizer.mu", rule, self.source))
        if not 0 <= value < float("inf"):
            raise ConfigError(Problem("regularizer.mu", "the mean norm must be finite and >= 0", value))
        self.mu.fill_(value)
        self.initialized.fill_(True)

    def value(self, norms: Tensor) -> Tensor:
        """Mean squared deviation from mu."""
        if not self._checked:
            self._check()
        return (norms - self._mean(norms.detach()).to(norms.dtype)).square().mean()

    def _check(self) -> None:
        if self.needs_mean:
            rule = "mu='initial_train_mean' must be measured before the first batch"
            remedy = "Call set_mean(mean norm over the training set), or give mu as a number."
            raise ConfigError(Problem("regularizer.mu", rule, None, remedy))
        self._checked = True

    @torch.no_grad()
    def _mean(self, norms: Tensor) -> Tensor:
        mean = torch.where(self.initialized, self.mu, norms.to(self.mu.dtype).mean())
        if self.training and self.source == "first_batch":
            self.mu.copy_(mean)
            self.initialized.fill_(True)
        return mean

    def diagnostics(self) -> dict[str, Tensor]:
        """Norm mean and variance of the last batch, and mu."""
        found = super().diagnostics()
        return {**found, "mu": self.mu.detach().clone()} if found else found
