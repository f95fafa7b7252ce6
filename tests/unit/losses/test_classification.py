"""Margin functions of the classification losses: values, slopes, limits."""

import math

import pytest
import torch

from trainables.losses import build_loss

ANGLES = torch.linspace(1e-3, math.pi - 1e-3, 997, dtype=torch.float64)


def build(name, **knobs):
    torch.manual_seed(0)
    return build_loss(name, num_classes=5, embedding_dim=6, **knobs).double()


def psi(name, angles=ANGLES, **knobs):
    value, slope = build(name, **knobs).target(angles.cos()[:, None])
    return value[:, 0], slope[:, 0]


@pytest.mark.parametrize("margin", [1, 2, 3, 4, 5])
def test_sphereface_target_is_its_formula_continuous_and_falling(margin):
    value, _ = psi("sphereface", margin=margin)
    k = (margin * ANGLES / math.pi).floor()
    torch.testing.assert_close(value, (-1) ** k * (margin * ANGLES).cos() - 2 * k, rtol=0, atol=1e-9)
    assert (value.diff() < 0).all()
    assert value.diff().abs().max() < 0.02


def test_sphereface_annealing_goes_from_the_margin_to_the_plain_cosine():
    plain, margin = ANGLES.cos(), psi("sphereface")[0]
    torch.testing.assert_close(psi("sphereface", annealing=3.0)[0], (3 * plain + margin) / 4)
    torch.testing.assert_close(psi("sphereface", annealing=1e9)[0], plain, rtol=0, atol=1e-7)


def test_arcface_target_adds_to_the_angle_until_it_would_turn():
    margin = 0.5
    value, _ = psi("arcface", margin=margin)
    turn = math.pi - margin
    torch.testing.assert_close(value[turn > ANGLES], (ANGLES + margin).cos()[turn > ANGLES], rtol=0, atol=1e-6)
    assert (value.diff() < 0).all()


@pytest.mark.parametrize(
    ("name", "knobs"),
    [("sphereface", {"margin": m}) for m in (1, 2, 4)]
    + [
        ("sphereface", {"annealing": 2.0}),
        ("arcface", {}),
        ("arcface", {"margin": 1.5}),
        ("cosface", {}),
        ("softmax", {}),
    ],
)
def test_slopes_are_the_derivatives_of_the_targets(name, knobs):
    cosine = ANGLES.cos()[::10].clone()[:, None]
    loss, h = build(name, **knobs), 1e-7
    slope = loss.target(cosine)[1]
    numeric = (loss.target(cosine + h)[0] - loss.target(cosine - h)[0]) / (2 * h)
    away = (slope - numeric).abs() > 1e-4 * slope.abs().clamp_min(1)
    assert away.sum() <= 1  # a step of the arcface target may fall between the two points


@pytest.mark.parametrize("name", ["softmax", "sphereface", "cosface", "arcface"])
@pytest.mark.parametrize("sign", [1, -1])
def test_targets_at_the_poles_are_finite(name, sign):
    loss = build_loss(name, num_classes=5, embedding_dim=6)
    f = (7 * sign * loss.proxies[:, 0].detach()).requires_grad_()  # exactly on, or opposite of, its class weight
    value = loss(f, torch.arange(5))
    assert value.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, [f, loss.proxies]))


def test_margins_of_zero_are_the_normalised_softmax():
    f = torch.randn(7, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(7) % 5
    plain = build("softmax")(f, labels)
    for name in ("cosface", "arcface"):
        torch.testing.assert_close(build(name, margin=0)(f, labels), plain, rtol=1e-6, atol=0)


def test_sphereface_uses_the_norm_and_nothing_else_does():
    f = torch.randn(7, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(7) % 5
    for name in ("softmax", "cosface", "arcface"):
        torch.testing.assert_close(build(name)(5 * f, labels), build(name)(f, labels))
    loss = build("sphereface", margin=1)
    cosines = torch.nn.functional.normalize(f) @ torch.nn.functional.normalize(loss.proxies[:, 0]).T
    for c in (1, 5):
        expected = torch.nn.functional.cross_entropy(c * f.norm(dim=1, keepdim=True) * cosines, labels)
        torch.testing.assert_close(loss(c * f, labels), expected)
