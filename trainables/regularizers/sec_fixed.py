"""The regularizer `sec_fixed`."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.errors import ConfigError, Problem
from trainables.regularizers.base import AroundMean


class FixedMeanSEC(AroundMean):
    """R = (1/B) Σ (n_i - mu)² with constant mu (SEC supplement, section C.1: 8.70 for triplet on Cars196).

    mu is a number, the mean norm of the first training batch, or the mean norm over the training set at initialisation.
    The last needs one pass over the training set: the training loop calls `set_mean` before the first batch if
    `needs_mean`.
    """

    name = "sec_fixed"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020 (supplement, section C.1)"
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
        return self.source == "initial_train_mean" and not bool(self.initialized)

    def set_mean(self, value: float) -> None:
        """Fix mu to the initial mean norm over the training set. Raises ConfigError for another source of mu."""
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
