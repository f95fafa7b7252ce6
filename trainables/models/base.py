"""The parts of an embedding network: backbone (pictures to a feature map), pooling (map to a vector), head (to R^d)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainables.errors import Problem

__all__ = ["Backbone", "Head", "Pooling"]


class Backbone(nn.Module, ABC):
    """Pictures (B, C, H, W) to a feature map (B, out_channels, h, w).

    A subclass sets `name`, `citation`, `minimum_size` and, in its constructor, `out_channels`; knobs are keyword-only
    (see trainables.parameters). `to_input` turns pictures into what the weights expect.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    minimum_size: ClassVar[int] = 1
    """Smallest height and width in pixels."""
    preferred_size: ClassVar[int | None] = None
    """The crop the published weights were trained on; None when any size is as good."""

    out_channels: int

    @classmethod
    def file_problems(cls, **knobs: object) -> list[Problem]:
        """Files the knobs name that are not on this machine."""
        return []

    def to_input(self, images: Tensor) -> Tensor:
        """uint8 pictures in 0..255, or float pictures in 0..1, as floats in the dtype of the weights."""
        images = images.float() / 255 if images.dtype == torch.uint8 else images
        return images.to(next(self.parameters()).dtype)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Feature map of pictures that went through `to_input`."""


class Pooling(nn.Module, ABC):
    """A feature map (B, F, h, w) to a vector (B, F)."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Pool over height and width."""


class Head(nn.Module, ABC):
    """A pooled vector (B, F) to the raw, un-normalised embedding (B, d). Constructor: `(in_features, embedding_dim)`."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, vectors: Tensor) -> Tensor:
        """The raw embedding."""
