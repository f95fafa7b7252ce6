"""The parts of an embedding network: backbone (pictures to a feature map), pooling (map to a vector), head (to R^d)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.config import HeadInit
from trainables.errors import ConfigError, Problem
from trainables.models import weights as files

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module, ABC):
    """Pictures (B, C, H, W) to a feature map (B, out_channels, h, w).

    A subclass sets `name`, `citation`, `minimum_size` and, in its constructor, `out_channels`; knobs are keyword-only
    (see trainables.methods). `to_input` turns pictures into what the weights expect. A knob `weights`, of the type
    trainables.models.weights.Weights, says where initial weights come from.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    minimum_size: ClassVar[int] = 1
    """Smallest height and width in pixels."""
    published: ClassVar[str] = ""
    """Where the usual file of weights can be had."""

    out_channels: int

    @classmethod
    def file_problems(cls, **knobs: object) -> list[Problem]:
        """Files and packages the knobs need that are not on this machine. Downloads nothing."""
        weights = knobs.get("weights")
        return [] if weights is None else files.source_problems(str(weights), published=cls.published)

    @classmethod
    def size_problems(cls, size: int, **knobs: object) -> list[Problem]:
        """Whether pictures of `size` pixels a side can be taken; places are the caller's."""
        if size >= cls.minimum_size:
            return []
        rule = f"{cls.name} needs pictures of at least {cls.minimum_size} pixels"
        return [Problem("data.size", rule, size, "Choose larger pictures or another model.backbone.")]

    @classmethod
    def start(cls, **knobs: object) -> str:
        """One sentence on the weights training starts from. Reads the file, downloads nothing."""
        weights = knobs.get("weights")
        return "The backbone starts from random weights." if weights is None else files.origin_sentence(str(weights))

    def start_from(self, weights: str | None, *, without: Sequence[str], remedy: str = "") -> None:
        """Load initial weights, if any are named, leaving out entries whose names begin with `without` (the classifier's).

        Raises DataError.
        """
        if weights is not None:
            path = files.obtain(weights, published=self.published)
            files.load_weights(self, path, without=without, remedy=remedy)

    def to_input(self, images: Tensor) -> Tensor:
        """uint8 pictures in 0..255, or float pictures in 0..1, as floats in the dtype of the weights."""
        dtype = next(self.parameters()).dtype
        return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Feature map of pictures that went through `to_input`."""


def standardised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std by channel of pictures (B, C, H, W) in 0..1; grey ones are repeated over the channels."""
    images = images.expand(-1, len(mean), -1, -1)
    return (images - constant(mean, images)[:, None, None]) / constant(std, images)[:, None, None]


def constant(values: Sequence[float], like: Tensor) -> Tensor:
    """A few numbers on the device and in the type of `like`; the host does not wait for the device, as `new_tensor` does."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def sent(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """A small array on a device; the host does not wait for what it has sent there before, as `as_tensor` does."""
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(device, non_blocking=True)


def refuse_other_channels(name: str, in_channels: int) -> None:
    """Backbones of colour pictures take grey ones too, and nothing else. Raises ConfigError."""
    if in_channels not in (1, 3):
        raise ConfigError(Problem("model.backbone", f"{name} needs pictures of 1 or 3 channels", in_channels))


class Pooling(nn.Module, ABC):
    """A feature map (B, F, h, w) to a vector (B, F)."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Pool over height and width."""


class Head(nn.Module, ABC):
    """A pooled vector (B, F) to the raw, un-normalised embedding (B, d).

    Constructor: `(in_features, embedding_dim)` and keyword-only knobs.
    """

    name: ClassVar[str]

    def initialise(self, init: HeadInit) -> None:
        """Draw the initial weights that `model.head_init` names.

        Called once, after the constructor. This one keeps the constructor's weights, whatever `init` is.
        """

    @abstractmethod
    def forward(self, vectors: Tensor) -> Tensor:
        """The raw embedding."""
