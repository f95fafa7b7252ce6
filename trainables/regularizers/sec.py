"""The regularizer `sec`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.regularizers.base import AroundMean


class SphericalEmbeddingConstraint(AroundMean):
    """R = (1/B) Σ (n_i - mu_t)², with mu_0 = mean n_0 and mu_t = (1 - rho) mu_{t-1} + rho mean n_t.

    rho = 1 is SEC: the biased variance of the batch's norms, in training and in evaluation mode. rho < 1 is SEC-EMA,
    which pulls norms to the running mean; rho = 0 holds the first batch's mean. mu is updated before the penalty of the
    same step, as in the authors' code. No call waits for the device.
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
