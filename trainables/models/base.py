"""Base classes of an embedding network: backbone (picture to feature map), pooling (map to vector), head (to R^d)."""

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
    """Base of backbones: pictures (B, C, H, W) to a feature map (B, out_channels, h, w).

    A subclass sets `name`, `citation`, `minimum_size` and, in its constructor, `out_channels`; knobs are keyword-only
    (see `trainables.methods`). A knob `weights` of type `trainables.models.weights.Weights` names the file of initial
    weights.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    minimum_size: ClassVar[int] = 1
    """Smallest height and width in pixels."""
    published: ClassVar[str] = ""
    """Where to get the usual file of weights."""

    out_channels: int

    @classmethod
    def file_problems(cls, **knobs: object) -> list[Problem]:
        """Return a problem for each file or package that the knobs need and this machine lacks. Download nothing."""
        weights = knobs.get("weights")
        return [] if weights is None else files.source_problems(str(weights), published=cls.published)

    @classmethod
    def size_problems(cls, size: int, **knobs: object) -> list[Problem]:
        """Return a problem if pictures of `size` pixels per side are too small."""
        if size >= cls.minimum_size:
            return []
        rule = f"{cls.name} needs pictures of at least {cls.minimum_size} pixels"
        stored = "Heads on stored features need model.backbone=identity."
        larger = f"Set data.size or augment.crop to {cls.minimum_size} or more, or choose another model.backbone."
        remedy = larger if size > 1 else stored
        return [Problem("data.size", rule, size, remedy)]

    @classmethod
    def start(cls, **knobs: object) -> str:
        """Describe the initial weights in one sentence. Read the file but download nothing."""
        weights = knobs.get("weights")
        return "The backbone starts from random weights." if weights is None else files.origin_sentence(str(weights))

    def start_from(self, weights: str | None, *, without: Sequence[str], remedy: str = "") -> None:
        """Load initial weights, if given, without entries that begin with `without` (the classifier).

        Raises DataError if the file is missing or does not fit.
        """
        if weights is not None:
            path = files.obtain(weights, published=self.published)
            files.load_weights(self, path, without=without, remedy=remedy)

    def to_input(self, images: Tensor) -> Tensor:
        """Convert uint8 pictures in 0..255, or floats in 0..1, to what the weights expect."""
        dtype = next((parameter.dtype for parameter in self.parameters()), torch.get_default_dtype())
        return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of pictures from `to_input`."""


def standardise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (x - mean) / std per channel of pictures (B, C, H, W) in 0..1. Repeat grey pictures over channels."""
    images = images.expand(-1, len(mean), -1, -1)
    return (images - constant(mean, images)[:, None, None]) / constant(std, images)[:, None, None]


def constant(values: Sequence[float], like: Tensor) -> Tensor:
    """Return a few numbers on the device and in the type of `like`, without `new_tensor`'s synchronization."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def to_device(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """Return a small array on a device, without `as_tensor`'s synchronization."""
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(device, non_blocking=True)


def refuse_other_channels(name: str, in_channels: int) -> None:
    """Raise ConfigError unless a colour backbone gets 1 or 3 channels."""
    if in_channels not in (1, 3):
        raise ConfigError(Problem("model.backbone", f"{name} needs pictures of 1 or 3 channels", in_channels))


class Pooling(nn.Module, ABC):
    """Base of poolings: a feature map (B, F, h, w) to a vector (B, F)."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Pool over height and width."""


class Head(nn.Module, ABC):
    """Base of heads: a pooled vector (B, F) to the raw embedding (B, d).

    Constructor: `(in_features, embedding_dim)` and keyword-only knobs.
    """

    name: ClassVar[str]

    def initialise(self, init: HeadInit) -> None:
        """Draw the initial weights that `model.head_init` names; the default keeps those of the constructor."""

    @abstractmethod
    def forward(self, vectors: Tensor) -> Tensor:
        """Return the raw embedding."""
