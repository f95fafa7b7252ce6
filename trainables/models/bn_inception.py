"""BN-Inception, the backbone of the deep metric learning papers, with the published Caffe-derived weights."""

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import Backbone, refuse_other_channels
from trainables.models.batch_norm import GlobalBatchNorm2d
from trainables.models.weights import Weights


class _Inception(NamedTuple):
    """Output channels of one block; a block without `conv1` halves the picture and appends the pooled input."""

    conv1: int | None
    reduce: int
    conv3: int
    double_reduce: int
    double_conv3: int
    pool: str
    projection: int | None


_BLOCKS = {
    "3a": _Inception(64, 64, 64, 64, 96, "avg", 32),
    "3b": _Inception(64, 64, 96, 64, 96, "avg", 64),
    "3c": _Inception(None, 128, 160, 64, 96, "max", None),
    "4a": _Inception(224, 64, 96, 96, 128, "avg", 128),
    "4b": _Inception(192, 96, 128, 96, 128, "avg", 128),
    "4c": _Inception(160, 128, 160, 128, 160, "avg", 128),
    "4d": _Inception(96, 128, 192, 160, 192, "avg", 128),
    "4e": _Inception(None, 128, 192, 192, 256, "max", None),
    "5a": _Inception(352, 192, 320, 160, 224, "avg", 128),
    "5b": _Inception(352, 192, 320, 192, 224, "max", 128),
}
RedMean = Annotated[
    float,
    Field(ge=0, le=255, description="mean of the red channel: 128 with the published weights, 123 in the code of SEC"),
]


class BnInception(Backbone):
    """Inception with batch normalisation: 224 pixels give a 1024 x 7 x 7 map; 10,270,240 parameters without classifier.

    Every convolution has a bias, a batch norm over all workers and a ReLU. Module names are those of the published file
    bn_inception-52deb4733.pth. Input: BGR, 0..255, minus (104, 117, `red_mean`); grey pictures are repeated over
    channels.
    """

    name = "bn_inception"
    citation = "Ioffe and Szegedy, Batch Normalization, ICML 2015; weights ported from Caffe by R. Cadene"
    minimum_size = 32
    published = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"

    def __init__(self, *, in_channels: int, weights: Weights = None, red_mean: RedMean = 128.0) -> None:
        super().__init__()
        refuse_other_channels(self.name, in_channels)
        self._convolution("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._convolution("conv2_3x3_reduce", 64, 64, 1)
        self._convolution("conv2_3x3", 64, 192, 3)
        channels = 192
        for label, block in _BLOCKS.items():
            channels = self._block(f"inception_{label}", channels, block)
        self.out_channels = channels
        self.register_buffer("mean", torch.tensor((104.0, 117.0, red_mean))[:, None, None], persistent=False)
        self.start_from(weights, without=["last_linear."])

    def to_input(self, images: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        scaled = images.to(dtype) if images.dtype == torch.uint8 else images.to(dtype) * 255
        return scaled.expand(-1, 3, -1, -1).flip(1) - self.mean.to(dtype)  # type: ignore[operator]

    def forward(self, images: Tensor) -> Tensor:
        x = self._apply_convolution("conv1_7x7_s2", images)
        x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
        x = self._apply_convolution("conv2_3x3", self._apply_convolution("conv2_3x3_reduce", x))
        x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
        for label, block in _BLOCKS.items():
            x = self._apply_block(f"inception_{label}", x, block)
        return x

    def _convolution(self, name: str, before: int, after: int, kernel: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", GlobalBatchNorm2d(after, eps=1e-5, momentum=0.1))

    def _block(self, name: str, before: int, block: _Inception) -> int:
        """Register a block's convolutions and return its output channels."""
        stride = 1 if block.conv1 else 2
        if block.conv1:
            self._convolution(f"{name}_1x1", before, block.conv1, 1)
        self._convolution(f"{name}_3x3_reduce", before, block.reduce, 1)
        self._convolution(f"{name}_3x3", block.reduce, block.conv3, 3, stride)
        self._convolution(f"{name}_double_3x3_reduce", before, block.double_reduce, 1)
        self._convolution(f"{name}_double_3x3_1", block.double_reduce, block.double_conv3, 3)
        self._convolution(f"{name}_double_3x3_2", block.double_conv3, block.double_conv3, 3, stride)
        if block.projection:
            self._convolution(f"{name}_pool_proj", before, block.projection, 1)
        return (block.conv1 or 0) + block.conv3 + block.double_conv3 + (block.projection or before)

    def _apply_convolution(self, name: str, x: Tensor) -> Tensor:
        parts = self._modules
        return functional.relu(parts[f"{name}_bn"](parts[name](x)), inplace=True)  # type: ignore[misc]

    def _apply_block(self, name: str, x: Tensor, block: _Inception) -> Tensor:
        conv = self._apply_convolution
        conv3 = conv(f"{name}_3x3", conv(f"{name}_3x3_reduce", x))
        double_conv3 = conv(f"{name}_double_3x3_1", conv(f"{name}_double_3x3_reduce", x))
        branches = [conv3, conv(f"{name}_double_3x3_2", double_conv3)]
        if block.conv1 is None:
            return torch.cat([*branches, functional.max_pool2d(x, 3, stride=2, ceil_mode=True)], dim=1)
        pool = functional.avg_pool2d if block.pool == "avg" else functional.max_pool2d
        pooled = pool(x, 3, stride=1, padding=1, ceil_mode=True)
        return torch.cat([conv(f"{name}_1x1", x), *branches, conv(f"{name}_pool_proj", pooled)], dim=1)
