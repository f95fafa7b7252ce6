"""Initial weights are checked and reported before any worker starts."""

import pytest
import torch

from trainables.errors import ConfigError
from trainables.models import BACKBONES
from trainables.resolve import Layer, resolve
from tune_dml.catalogue import protocols
from tune_dml.planning.checks.dry_run import start_notes
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request

SMALL = {"training.steps": 2, "training.eval_every": 1, "augment.crop": 32, "augment.resize": 36}
SHOWN = {"augment.name": "crop_flip", **SMALL}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    network = BACKBONES["resnet18"](in_channels=3, stem="imagenet")
    path = tmp_path_factory.mktemp("weights") / "net.pth"
    torch.save(network.state_dict(), path)
    return path


def prepared(cache_dir, *, decode=True, **settings):
    request = Request("sec_rho", dataset="digits", seeds=1, settings={**SHOWN, **settings}, name="w")
    return prepare(request, cache_dir=cache_dir, decode=decode)


def test_the_file_of_initial_weights_is_reported_and_found_by_workers(cache_dir, weights, monkeypatch):
    monkeypatch.chdir(weights.parent)
    own = {"model.backbone": "resnet18", "model.stem": "imagenet", "model.weights": "net.pth"}
    ready = prepared(cache_dir, **own)
    assert any("starts from net.pth, SHA-256" in note for note in ready.notes)
    assert ready.plan.base_settings["model.weights"] == str(weights)


def test_a_random_start_is_reported(cache_dir):
    ready = prepared(cache_dir, **{"model.backbone": "resnet18"})
    assert "The backbone starts from random weights." in ready.notes
    assert not any("random" in note for note in prepared(cache_dir).notes)  # small_conv has no other start


def test_the_published_weights_of_a_protocol_are_no_other_start():
    published = {"model.backbone": "bn_inception", "model.weights": BACKBONES["bn_inception"].published}
    (note,) = start_notes([resolve(Layer("test", published)).config], protocols()["sec/cub200"])
    assert note.endswith("which is downloaded when training begins.")


def test_weights_that_do_not_fit_are_known_before_any_worker_starts(cache_dir, weights):
    with pytest.raises(ConfigError, match=r"conv1\.weight must have shape"):
        prepared(cache_dir, **{"model.backbone": "resnet18", "model.weights": str(weights)})
    with pytest.raises(ConfigError, match="the file has no entry"):
        prepared(cache_dir, **{"model.backbone": "bn_inception", "model.weights": str(weights)})


def test_a_missing_weight_file_is_reported_by_plan(tmp_path):
    absent = {"model.backbone": "resnet18", "model.weights": str(tmp_path / "absent.pth")}
    with pytest.raises(ConfigError, match="must exist"):
        prepared(tmp_path / "empty", **absent, decode=False)


def test_the_trial_draws_the_same_numbers_afterwards(cache_dir):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    prepared(cache_dir, **{"model.backbone": "resnet18"})
    assert torch.equal(torch.rand(1), expected)


def test_what_a_network_of_another_package_raises_is_one_message(cache_dir, monkeypatch):
    def forward(self, images):
        return {}["stem"]

    whole = BACKBONES["small_conv"]

    class Lazy(whole):
        name = "lazy"

        def __init__(self, *, in_channels):
            super().__init__(in_channels=in_channels)
            self.layers[0] = torch.nn.LazyConv2d(16, 3, padding=1)

    monkeypatch.setitem(BACKBONES.data, "lazy", Lazy)
    with pytest.raises(ConfigError, match=r"lazy must know the shapes of its parameters, but got 'backbone\.layers\.0"):
        prepared(cache_dir, **{"model.backbone": "lazy"})
    monkeypatch.setattr(whole, "forward", forward)
    with pytest.raises(ConfigError, match=r"small_conv must take pictures of 32 x 32 pixels.*KeyError: 'stem'"):
        prepared(cache_dir, **{"model.backbone": "small_conv"})
