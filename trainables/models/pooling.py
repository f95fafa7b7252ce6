"""Global pooling of a feature map."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.models.base import Pooling


class AvgPooling(Pooling):
    """Mean over positions."""

    name = "avg"

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3))


class MaxPooling(Pooling):
    """Maximum over positions (multi-similarity and DRO codes)."""

    name = "max"

    def forward(self, features: Tensor) -> Tensor:
        return features.amax(dim=(2, 3))


class AvgMaxPooling(Pooling):
    """Mean plus maximum (Proxy-Anchor code)."""

    name = "avg_max"

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))


def _gem(features: Tensor, p: float | Tensor) -> Tensor:
    """Return the generalised mean (mean_hw max(x, 1e-6)^p)^(1/p), (B, F, h, w) to (B, F); p=1 is the mean.

    p to infinity is the maximum. Computed relative to each map's maximum to avoid overflow at large p.
    """
    clamped = features.clamp_min(1e-6)
    top = clamped.amax(dim=(2, 3), keepdim=True).detach()
    mean = (clamped / top).pow(p).mean(dim=(2, 3))
    return mean.pow(1 / p) * top[:, :, 0, 0]


class GemPooling(Pooling):
    """Generalised mean with a fixed exponent (multi-proxy paper: p = 3)."""

    name = "gem"

    def __init__(self, *, p: Annotated[float, Field(gt=0, description="exponent p")] = 3.0) -> None:
        super().__init__()
        self.p = p

    def forward(self, features: Tensor) -> Tensor:
        return _gem(features, self.p)


class LearnedGemPooling(Pooling):
    """Generalised mean whose exponent is learned (Radenovic et al., TPAMI 2019); kept at 1e-2 or above."""

    name = "gem_learned"

    def __init__(self, *, p: Annotated[float, Field(gt=0, description="initial exponent p")] = 3.0) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(float(p)))

    def forward(self, features: Tensor) -> Tensor:
        return _gem(features, self.p.clamp_min(1e-2))
