"""Residual networks: torchvision's sizes and names, shapes, gradients, batch statistics of all workers."""

import pytest
import torch

from trainables.errors import ConfigError
from trainables.models import BACKBONES, build_model
from trainables.models.resnet import _Basic, _Bottleneck

# torchvision's counts of trained numbers, less its classifier of 1000 classes.
SIZES = {"resnet18": 11_689_512 - 513_000, "resnet50": 25_557_032 - 2_049_000}


@pytest.mark.parametrize("name", SIZES)
def test_size_and_names_are_torchvisions(name):
    network = BACKBONES[name](in_channels=3, stem="imagenet")
    assert sum(parameter.numel() for parameter in network.parameters()) == SIZES[name]
    keys = set(network.state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv2.weight", "layer4.1.bn2.bias"} <= keys
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight"} <= keys
    assert ("layer1.0.downsample.0.weight" in keys) == (name == "resnet50")
    assert "layer2.1.downsample.0.weight" not in keys


@pytest.mark.parametrize(("stem", "side"), [("small", 4), ("imagenet", 1)])
def test_resnet_outputs_have_the_expected_shapes(stem, side):
    network = BACKBONES["resnet18"](in_channels=3, stem=stem).eval()
    with torch.no_grad():
        assert network(torch.rand(2, 3, 32, 32)).shape == (2, 512, side, side)


@pytest.mark.parametrize("block", [_Basic, _Bottleneck])
@pytest.mark.parametrize(("before", "width", "stride"), [(8, 8, 1), (32, 8, 1), (8, 8, 2)])
def test_a_block_is_its_formula(block, before, width, stride):
    torch.manual_seed(0)
    layer = block(before, width, stride).double().eval()
    images = torch.randn(2, before, 6, 6, dtype=torch.float64)
    inner = images
    for number in (1, 2, 3) if block is _Bottleneck else (1, 2):
        inner = getattr(layer, f"bn{number}")(getattr(layer, f"conv{number}")(inner))
        inner = inner if number == (3 if block is _Bottleneck else 2) else inner.clamp_min(0)
    same = stride == 1 and before == width * block.expansion
    assert isinstance(layer.downsample, torch.nn.Identity) == same
    torch.testing.assert_close(layer(images), (layer.downsample(images) + inner).clamp_min(0))


def test_every_parameter_trains():
    torch.manual_seed(0)
    network = build_model(backbone="resnet18", head="mlp", embedding_dim=4, in_channels=1, image_size=16)
    network(torch.randint(0, 256, (4, 1, 16, 16), dtype=torch.uint8)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def torchvision_file(path, network):
    """Weights as torchvision publishes them, with the classifier."""
    torch.save({**network.state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}, path)
    return str(path)


def test_torchvisions_files_are_loaded_and_pictures_standardised_for_them(tmp_path):
    torch.manual_seed(0)
    source = BACKBONES["resnet18"](in_channels=3, stem="imagenet").eval()
    file = torchvision_file(tmp_path / "w.pth", source)
    loaded = BACKBONES["resnet18"](in_channels=1, stem="imagenet", weights=file).eval()
    colour = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (colour - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(loaded.to_input(colour), expected)
    with torch.no_grad():
        assert torch.equal(loaded(expected), source(expected))
    grey = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    assert torch.equal(loaded.to_input(grey), loaded.to_input(grey.expand(-1, 3, -1, -1)))


def test_weights_of_another_stem_or_other_channels_are_refused(tmp_path):
    file = torchvision_file(tmp_path / "w.pth", BACKBONES["resnet18"](in_channels=3, stem="imagenet"))
    with pytest.raises(ConfigError, match=r"conv1\.weight must have shape .*model\.stem=imagenet"):
        BACKBONES["resnet18"](in_channels=3, weights=file)
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        BACKBONES["resnet18"](in_channels=4, stem="imagenet", weights=file)
    with pytest.raises(ConfigError, match="the file has no entry"):
        BACKBONES["resnet50"](in_channels=3, stem="imagenet", weights=file)
