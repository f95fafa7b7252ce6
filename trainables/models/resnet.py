"""Residual networks, written in torch: from scratch, or from torchvision's weights."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, refuse_other_channels, standardise
from trainables.models.batch_norm import GlobalBatchNorm2d
from trainables.models.weights import Weights

_WIDTHS = (64, 128, 256, 512)

_STEMS = (
    "imagenet: 7x7 stride 2 and max pooling, as published weights have; small: 3x3 stride 1, for pictures of 32 pixels"
)
_Stem = Annotated[Literal["imagenet", "small"], Field(description=_STEMS)]


class _Residual(nn.Module):
    """y = ReLU(x' + F(x)), where x' is x or, if the shape changes, BN(1x1 x)."""

    expansion: ClassVar[int]

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = width * self.expansion
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), GlobalBatchNorm2d(after)
            )

    def residual(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.downsample(images) + self.residual(images), inplace=True)


class _Basic(_Residual):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__(before, width, stride)
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = GlobalBatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = GlobalBatchNorm2d(width)

    def residual(self, images: Tensor) -> Tensor:
        inner: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(images)).relu_()))
        return inner


class _Bottleneck(_Residual):
    """1x1, 3x3 (which strides) and 1x1 convolutions, the last four times as wide."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__(before, width, stride)
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = GlobalBatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = GlobalBatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = GlobalBatchNorm2d(4 * width)

    def residual(self, images: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.bn1(self.conv1(images)).relu_())).relu_()
        outer: Tensor = self.bn3(self.conv3(inner))
        return outer


class _ResNet(Backbone):
    """Four stages of residual blocks; state dictionary as torchvision's, without its classifier.

    Batch norm covers all workers. From scratch pictures are scaled to [-1, 1]; with weights they are standardised by
    ImageNet's mean and deviation, and grey pictures are repeated over the channels.
    """

    citation = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
    minimum_size = 16
    block: ClassVar[type[_Residual]]
    depths: ClassVar[tuple[int, ...]]

    def __init__(self, *, in_channels: int, stem: _Stem = "small", weights: Weights = None) -> None:
        super().__init__()
        self.pretrained = weights is not None
        if weights is not None:
            refuse_other_channels(self.name, in_channels)
            in_channels = 3
        kernel, stride, padding = (3, 1, 1) if stem == "small" else (7, 2, 3)
        self.conv1 = nn.Conv2d(in_channels, 64, kernel, stride=stride, padding=padding, bias=False)
        self.bn1 = GlobalBatchNorm2d(64)
        self.maxpool = nn.Identity() if stem == "small" else nn.MaxPool2d(3, stride=2, padding=1)
        self.out_channels = 64
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            self._stage(width, depth, stride=1 if width == _WIDTHS[0] else 2)
            for width, depth in zip(_WIDTHS, self.depths, strict=True)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        remedy = "Published files are for --set model.stem=imagenet." if stem == "small" else ""
        self.start_from(weights, without=["fc."], remedy=remedy)

    def _stage(self, width: int, depth: int, *, stride: int) -> nn.Sequential:
        blocks = []
        for number in range(depth):
            blocks.append(self.block(self.out_channels, width, stride if number == 0 else 1))
            self.out_channels = width * self.block.expansion
        return nn.Sequential(*blocks)

    def to_input(self, images: Tensor) -> Tensor:
        scaled = super().to_input(images)
        return standardise(scaled, IMAGENET_MEAN, IMAGENET_STD) if self.pretrained else scaled * 2 - 1

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.maxpool(torch.relu_(self.bn1(self.conv1(images))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            features = stage(features)
        return features


class ResNet18(_ResNet):
    """18 layers, 512 channels."""

    name = "resnet18"
    block = _Basic
    depths = (2, 2, 2, 2)
    published = "torchvision (resnet18-f37072fd.pth)"


class ResNet50(_ResNet):
    """50 layers, 2048 channels."""

    name = "resnet50"
    block = _Bottleneck
    depths = (3, 4, 6, 3)
    published = "torchvision (resnet50-0676ba61.pth)"
