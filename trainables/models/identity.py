"""The backbone of stored features, which returns them unchanged."""

import torch
from torch import Tensor

from trainables.errors import Problem
from trainables.models.base import Backbone


class Identity(Backbone):
    """Passes stored features on: the data set `features` has them as pictures of one pixel and D channels.

    Only the head trains. Use the pooling `avg`, which leaves a feature unchanged.
    """

    name = "identity"
    citation = (
        "linear probing: Alain and Bengio, Understanding Intermediate Layers Using Linear Classifier Probes, 2016"
    )

    _like: Tensor

    def __init__(self, *, in_channels: int) -> None:
        super().__init__()
        self.out_channels = in_channels
        self.register_buffer("_like", torch.zeros(0), persistent=False)  # follows the network's type

    @classmethod
    def size_problems(cls, size: int, **knobs: object) -> list[Problem]:
        if size == 1:
            return []
        rule = "identity passes stored features on and cannot read pictures"
        return [Problem("data.size", rule, size, "Use the data set `features`, or another model.backbone.")]

    @classmethod
    def start(cls, **knobs: object) -> str:
        return "The stored features are the backbone's output; nothing of it trains."

    def to_input(self, images: Tensor) -> Tensor:
        return images.to(self._like)

    def forward(self, images: Tensor) -> Tensor:
        return images
