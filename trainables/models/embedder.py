"""The embedding network: backbone, pooling and head in one module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.models.base import Backbone, Head, Pooling
from trainables.models.batch_norm import freeze

__all__ = ["Embedder", "parameter_groups", "to_tensor"]


class Embedder(nn.Module):
    """Pictures (B, C, H, W), uint8 in 0..255 or float in 0..1, to RAW un-normalised embeddings (B, d).

    Args:
        backbone, pooling, head: the parts.
        freeze_bn: keep the backbone's batch normalisation on its running statistics, also after every `train()`.
        freeze_bn_affine: its gamma and beta do not train either.
    """

    def __init__(
        self,
        backbone: Backbone,
        pooling: Pooling,
        head: Head,
        *,
        freeze_bn: bool = False,
        freeze_bn_affine: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.pooling, self.head = backbone, pooling, head
        self.freeze_bn, self.freeze_bn_affine = freeze_bn, freeze_bn_affine
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Raw embeddings (B, d)."""
        embeddings: Tensor = self.head(self.features(images))
        return embeddings

    def features(self, images: Tensor) -> Tensor:
        """Pooled features before the head, (B, F)."""
        features: Tensor = self.pooling(self.backbone(self.backbone.to_input(images)))
        return features

    def train(self, mode: bool = True) -> Self:
        """Switch modes; a frozen batch normalisation stays frozen."""
        super().train(mode)
        if self.freeze_bn:
            freeze(self.backbone, affine=self.freeze_bn_affine)
        return self


def parameter_groups(model: Embedder) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters by part and whether weight decay applies.

    Keys `backbone`, `backbone_no_decay`, `head`, `head_no_decay`: biases, normalisation and other vectors or scalars
    are not decayed (method specification, sections 9.1 and 9.6). Pooling counts as head. Empty groups are left out.
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for part, parameter in _named(model):
        key = part if parameter.ndim > 1 else f"{part}_no_decay"
        groups.setdefault(key, []).append(parameter)
    return groups


def _named(model: Embedder) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield ("backbone" if name.startswith("backbone.") else "head"), parameter


def to_tensor(images: NDArray[np.uint8]) -> Tensor:
    """Stored pictures (B, H, W, C) as a uint8 tensor (B, C, H, W) in channels-last memory, copied from the cache."""
    return torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)
