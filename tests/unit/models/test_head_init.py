"""Initialisation of heads: the norms that it implies, and which heads follow the setting."""

import pytest
import torch
from torch import nn

from trainables.config import _LATER_SETTINGS, TrialConfig, settings_digest
from trainables.models import HEADS, build_model
from trainables.models.base import Head
from trainables.models.heads import LinearHead
from trainables.resolve import Layer, read_settings, resolve

FEATURES, DIMENSION = 1024, 512  # of BN-Inception, and of the embedding in the papers' main tables
BATCH_STATISTICS = ("bn_fc", "wn_fc")  # heads whose linear layer sees unit variance in training


def mean_norm(head, init):
    torch.manual_seed(0)
    layer = HEADS[head](FEATURES, DIMENSION)
    layer.initialise(init)
    pictures = torch.randn(256, FEATURES) * 3 + 5 if head in BATCH_STATISTICS else torch.randn(256, FEATURES)
    return layer(pictures).norm(dim=1).mean().item()


@pytest.mark.parametrize("head", ["fc", *BATCH_STATISTICS])
@pytest.mark.parametrize(
    ("init", "square"),
    [
        ("he_fan_out", 2 * FEATURES),  # weights of variance 2 / d
        ("torch", DIMENSION / 3 + DIMENSION / (3 * FEATURES)),  # weights and biases within 1 / sqrt(F)
        ("torch_zero_bias", DIMENSION / 3),
    ],
)
def test_the_mean_norm_at_the_start_is_that_of_the_weights(head, init, square):
    assert mean_norm(head, init) == pytest.approx(square**0.5, rel=0.02)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_of_ours_follows_the_setting(head):
    states = {}
    for init in ("he_fan_out", "torch", "torch_zero_bias"):
        torch.manual_seed(0)
        states[init] = build_model(in_channels=1, head=head, head_init=init, embedding_dim=8).head.state_dict()
    he, torchs, zero = states.values()
    biases = [key for key in he if key.endswith(("fc.bias", "bias")) and "bn" not in key]
    matrices = [key for key, value in he.items() if value.ndim == 2]
    assert biases
    assert matrices
    assert all(not he[key].any() and not zero[key].any() and torchs[key].all() for key in biases)
    assert all(torch.equal(zero[key], torchs[key]) and not torch.equal(he[key], torchs[key]) for key in matrices)
    assert all(torchs[key].abs().max() <= torchs[key].shape[1] ** -0.5 for key in matrices)


def test_a_projection_of_weight_norm_starts_as_the_linear_layer():
    for init in ("he_fan_out", "torch"):
        torch.manual_seed(0)
        head = HEADS["wn_fc"](6, 4)
        head.initialise(init)
        torch.manual_seed(0)
        layer = HEADS["fc"](6, 4)
        layer.initialise(init)
        assert torch.equal(head.direction, layer.fc.weight)
        assert torch.allclose(head.scale, layer.fc.weight.norm(dim=1))
        assert torch.equal(head.bias, layer.fc.bias)


class _IdentityHead(Head):
    """A head of another package that starts at the identity."""

    def __init__(self, in_features, embedding_dim):
        super().__init__()
        self.fc = nn.Linear(in_features, embedding_dim)
        nn.init.eye_(self.fc.weight)

    def forward(self, vectors):
        return self.fc(vectors)


class _DerivedHead(LinearHead):
    """A head of another package that is derived from one of ours."""


@pytest.mark.parametrize(("cls", "follows"), [(_IdentityHead, False), (_DerivedHead, True)])
def test_a_head_of_another_package_keeps_its_start_unless_derived_from_ours(cls, follows, monkeypatch):
    monkeypatch.setitem(HEADS, "other", cls)
    torch.manual_seed(0)
    before = cls(64, 8)
    torch.manual_seed(0)
    before.initialise("he_fan_out")
    model = build_model(in_channels=1, head="other", head_init="he_fan_out", embedding_dim=8)
    assert torch.equal(model.head.fc.weight, torch.eye(8, 64)) is not follows


def test_cells_planned_before_the_setting_keep_their_identity_and_arms_the_start_of_their_protocol():
    assert TrialConfig().model.head_init == _LATER_SETTINGS["model.head_init"] == "he_fan_out"
    default = resolve().config
    stored = {path: value for path, value in default.settings().items() if path != "model.head_init"}
    assert read_settings(stored) == default
    assert settings_digest(stored) == default.digest()
    assert resolve(Layer("protocol", {"model.head_init": "torch"})).config.digest() != default.digest()
    protocol = Layer("protocol", {"model.head": "bn_fc", "model.head_init": "torch"})
    config = resolve(protocol, Layer("arm", {"model.head": "wn_fc"})).config
    assert (config.model.head, config.model.head_init) == ("wn_fc", "torch")
