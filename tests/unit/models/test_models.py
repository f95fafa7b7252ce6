"""Networks: shapes, poolings and heads against their formulas, groups, refusals."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trainables.errors import ConfigError
from trainables.models import BACKBONES, HEADS, POOLINGS, build_model, parameter_groups
from trainables.models.base import Backbone
from trainables.models.batch_norm import GlobalBatchNorm1d, freeze
from trainables.models.heads import LinearHead
from trainables.models.pooling import AvgPooling, _gem
from trainables.models.small_conv import _HalvingPool


def _images(count=6, channels=1, size=24, seed=0):
    """Return pictures (B, C, H, W) in channels-last memory, as `Views` makes them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pictures_become_raw_embeddings(pooling, head):
    model = build_model(pooling=pooling, head=head, embedding_dim=7, in_channels=1)
    embeddings = model(_images())
    assert embeddings.shape == (6, 7)
    embeddings.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert (embeddings.norm(dim=1) - 1).abs().max() > 1e-3  # they are not normalised


@pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 16), (1, 24), (3, 33), (3, 64)])
def test_small_conv_takes_grey_and_colour_of_any_size(channels, size):
    model = build_model(in_channels=channels, image_size=size, embedding_dim=5)
    assert model(_images(2, channels, size)).shape == (2, 5)


def test_bytes_and_floats_in_0_to_1_are_the_same_picture_and_float64_stays():
    model = build_model(in_channels=1)
    images = _images()
    assert torch.equal(model(images), model(images.float() / 255))
    assert build_model(in_channels=1, head="bn_fc").double()(images).dtype == torch.float64


def test_an_embedding_does_not_depend_on_the_rest_of_the_batch():
    model = build_model(in_channels=1, pooling="gem").double()
    images = _images(9)
    together = model(images)
    alone = torch.cat([model(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-12)


def test_gem_and_its_gradient_are_those_of_the_formula_also_on_dead_and_huge_maps():
    features = torch.rand(2, 3, 4, 5, dtype=torch.float64) + 0.1
    assert torch.allclose(_gem(features, 1.0), features.mean(dim=(2, 3)))
    assert torch.allclose(_gem(features, 500.0), features.amax(dim=(2, 3)), rtol=1e-2)
    naive = features.clamp_min(1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3)
    assert torch.allclose(_gem(features, 3.0), naive, rtol=1e-12)
    features = (torch.rand(1, 2, 3, 3, dtype=torch.float64) + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: _gem(x, 3.0), features)
    dead = torch.zeros(1, 2, 3, 3, requires_grad=True)
    _gem(dead, 3.0).sum().backward()
    assert dead.grad.isfinite().all()
    huge = torch.full((1, 1, 3, 3), 1e30)
    assert torch.allclose(_gem(huge, 3.0), torch.tensor(1e30))


def test_learned_gem_trains_its_exponent():
    model = build_model(in_channels=1, pooling="gem_learned", pooling_parameters={"p": 2.0})
    assert model.pooling.p.item() == 2.0
    model(_images()).sum().backward()
    assert model.pooling.p.grad.abs() > 0


def test_wn_fc_is_weight_normalisation():
    head = HEADS["wn_fc"](5, 3)
    with torch.no_grad():
        head.scale.copy_(torch.tensor([1.0, 2.0, 0.5]))
    head.eval()
    x = torch.randn(4, 5)
    weight = head.scale[:, None] * head.direction / head.direction.norm(dim=1, keepdim=True)
    assert torch.allclose(head(x), head.bn(x) @ weight.T + head.bias)
    other = copy.deepcopy(head)
    with torch.no_grad():
        other.direction.mul_(3)
    assert torch.allclose(head(x), other(x), atol=1e-6)


def test_fc_bn_has_unit_variance_in_training():
    model = build_model(in_channels=1, head="fc_bn", embedding_dim=4)
    embeddings = model(_images(64))
    assert torch.allclose(embeddings.mean(dim=0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(embeddings.var(dim=0, correction=0), torch.ones(4), atol=1e-2)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_global_batch_norm_equals_torch_in_one_process(shift):
    ours, theirs = GlobalBatchNorm1d(6).double(), nn.BatchNorm1d(6).double()
    theirs.load_state_dict(ours.state_dict())
    for step in range(4):
        x = torch.randn(8, 6, dtype=torch.float64) * (step + 1) + shift
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        (ours(a) ** 3).sum().backward()
        (theirs(b) ** 3).sum().backward()
        assert torch.allclose(a.grad, b.grad, atol=1e-9)
    for key, value in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[key], value), key
    ours.eval()
    theirs.eval()
    assert torch.allclose(ours(x), theirs(x))


def test_a_batch_of_one_is_finite_where_torch_refuses():
    layer = GlobalBatchNorm1d(3)
    x = torch.randn(1, 3, requires_grad=True)
    out = layer(x)
    assert torch.equal(out, torch.zeros(1, 3))
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert layer.running_var.isfinite().all()


def test_frozen_batch_norm_survives_train_and_may_keep_gamma_and_beta_training():
    model = build_model(in_channels=1, head="bn_fc", freeze_bn=True, freeze_bn_affine=True)
    model.backbone.layers.append(nn.BatchNorm2d(64))
    model.train()
    norm = model.backbone.layers[-1]
    assert not norm.training
    assert model.head.bn.training
    before = norm.running_mean.clone()
    model(_images())
    assert torch.equal(norm.running_mean, before)
    assert model.head.bn.running_mean.abs().sum() > 0
    assert not any(parameter.requires_grad for parameter in norm.parameters())
    assert all(
        parameter not in set(parameter_groups(model).get("backbone_no_decay", [])) for parameter in norm.parameters()
    )
    layer = nn.Sequential(nn.BatchNorm1d(3))
    freeze(layer)
    assert not layer[0].training
    assert layer[0].weight.requires_grad


@pytest.mark.parametrize("head", HEADS)
def test_groups_hold_every_trainable_parameter_once(head):
    model = build_model(in_channels=1, head=head, pooling="gem_learned")
    groups = parameter_groups(model)
    assert sorted(groups) == ["backbone", "backbone_no_decay", "head", "head_no_decay"]
    grouped = [id(p) for group in groups.values() for p in group]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert all(p.ndim > 1 for key in ("backbone", "head") for p in groups[key])
    assert id(model.pooling.p) in {id(p) for p in groups["head_no_decay"]}


def test_all_problems_are_reported_together():
    with pytest.raises(ConfigError) as error:
        build_model(backbone="smal_conv", pooling="average", head="bnfc", embedding_dim=0)
    assert len(error.value.problems) == 4
    with pytest.raises(ConfigError) as error:
        build_model(image_size=8, backbone_parameters={"width": 5}, pooling="gem", pooling_parameters={"p": -1})
    places = [problem.place for problem in error.value.problems]
    assert places == ["data.size", "model.width", "model.pooling.p"]
    with pytest.raises(ConfigError, match=r"model\.head\.width: unknown setting"):
        build_model(head="mlp", head_parameters={"width": 5})


def test_every_model_part_is_on_the_page_of_backbones_and_every_backbone_cites_its_source():
    page = (Path(__file__).parents[3] / "docs" / "backbones.md").read_text()
    assert [name for name in (*BACKBONES, *POOLINGS, *HEADS) if f"`{name}`" not in page] == []
    assert all(cls.citation and cls.minimum_size for cls in BACKBONES.values())


@pytest.mark.parametrize(
    ("backbone", "norm"), [("bn_inception", "inception_5b_1x1_bn"), ("efficientnet_lite0", "_bn1")]
)
def test_a_large_backbone_trains_on_grey_pictures_with_frozen_statistics(backbone, norm):
    model = build_model(backbone=backbone, in_channels=1, embedding_dim=4, freeze_bn=True)
    layer = getattr(model.backbone, norm)
    before = layer.running_mean.clone()
    model.train()
    model(_images(2, size=64)).square().sum().backward()
    assert torch.equal(layer.running_mean, before)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("backbone", ["bn_inception", "efficientnet_lite0"])
def test_published_networks_take_grey_and_colour_only(backbone):
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        build_model(backbone=backbone, in_channels=4)


@pytest.mark.parametrize("backbone", ["resnet18", "efficientnet_lite0"])
def test_pictures_are_scaled_around_zero(backbone):
    network = BACKBONES[backbone](in_channels=1)
    ends = network.to_input(torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None])
    assert {tuple(end.unique().tolist()) for end in ends} == {(-1.0,), (1.0,)}


@pytest.mark.parametrize("size", [(24, 24), (7, 5), (2, 3)])
def test_halving_without_gradients_gives_the_same_numbers(size):
    pictures = torch.randn(3, 4, *size, generator=torch.Generator().manual_seed(0)).relu()  # zeros tie
    pictures[0, 0, 0, 0] = torch.nan
    halved = _HalvingPool(2)
    expected = halved(pictures)
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.no_grad():
            found = halved(pictures.contiguous(memory_format=layout))
        assert torch.equal(found.nan_to_num(9.0), expected.nan_to_num(9.0))


class WiderHead(LinearHead):
    name = "wider"

    def __init__(self, in_features, embedding_dim):
        super().__init__(in_features, embedding_dim + 1)


class MapPooling(AvgPooling):
    name = "map"

    def forward(self, features):
        return features


class PairPooling(AvgPooling):
    name = "pair"

    def forward(self, features):
        return super().forward(features), None


@pytest.mark.parametrize(
    ("registry", "kind", "cls", "said"),
    [
        (HEADS, "head", WiderHead, r"output of the head wider: must be .* \(B, 8\), but got \(2, 9\)"),
        (POOLINGS, "pooling", MapPooling, r"output of the pooling map: must be .* \(B, 64\), but got \(2, 64, 2, 2\)"),
        (POOLINGS, "pooling", PairPooling, "output of the pooling pair: must be .*, but got 'tuple'"),
    ],
)
def test_heads_and_poolings_must_return_vectors(monkeypatch, registry, kind, cls, said):
    monkeypatch.setitem(registry.data, cls.name, cls)
    model = build_model(**{kind: cls.name}, embedding_dim=8, in_channels=1)
    with pytest.raises(ConfigError, match=said):
        model(torch.zeros(2, 1, 16, 16))


class FixedFilter(Backbone):
    """A backbone without parameters."""

    name = "fixed"

    def __init__(self, *, in_channels: int):
        super().__init__()
        self.out_channels = in_channels

    def forward(self, images):
        return images[:, :, ::2, ::2]


def test_a_backbone_may_have_no_parameters(monkeypatch):
    monkeypatch.setitem(BACKBONES.data, "fixed", FixedFilter)
    embed = build_model(backbone="fixed", in_channels=1, embedding_dim=5)
    images = torch.full((2, 1, 16, 16), 51, dtype=torch.uint8)
    assert embed(images).shape == (2, 5)
    assert torch.equal(embed.backbone.to_input(images), images / 255)
