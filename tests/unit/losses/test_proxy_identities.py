"""Identities 42 to 51 of the proxy losses, their state, their errors, and agreement with pytorch-metric-learning."""

import math

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import regularizers as pml_regularizers

from trainables.errors import ConfigError
from trainables.losses import LOSSES, build_loss
from trainables.losses.parts.proxies import ProxyLoss
from trainables.losses.parts.soft_maximum import log_sum_exp

C, D, B = 6, 8, 12
NAMES = sorted(name for name, cls in LOSSES.items() if issubclass(cls, ProxyLoss))
CLASSIFICATION = {"softmax", "cosface", "arcface", "sphereface"}
MULTI = ["mpa", "mpa_ap", "mpa_dw", "soft_triple"]
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 5, 5])


def build(name, *, classes=C, **knobs):
    torch.manual_seed(3)
    return build_loss(name, num_classes=classes, embedding_dim=D, **knobs).double()


def embeddings(n=B, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(n, D, generator=generator, dtype=torch.float64)).requires_grad_()


def with_proxies(loss, proxies):
    with torch.no_grad():
        loss.proxies.copy_(proxies)
    return loss


def same(found, expected, rtol=1e-10, atol=1e-13):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), rtol=rtol, atol=atol)


def similarity(loss, f):
    """S (B, C), naively."""
    s = torch.einsum("bd,ckd->bck", unit(f), unit(loss.proxies))
    return ((s / loss.gamma).softmax(dim=2) * s).sum(dim=2)


def seen(loss, f, labels):
    """Return the similarities inside the loss."""
    caught = []
    solve = loss.solve

    def spy(s, *rest):
        caught.append(s.clone())
        return solve(s, *rest)

    loss.solve = spy
    loss(f, labels)
    return caught[0]


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def test_identity_42_mpa_with_one_proxy_is_proxy_anchor():
    anchor = build("proxy_anchor", alpha=16, delta=0.2)
    mpa = with_proxies(build("mpa", proxies_per_class=1, alpha=16, delta=0.2), anchor.proxies)
    f = embeddings()
    value, truth = mpa(f, LABELS), anchor(f, LABELS)
    same(value, truth)
    found = torch.autograd.grad(value, [f, mpa.proxies])
    for mine, theirs in zip(found, torch.autograd.grad(truth, [f, anchor.proxies]), strict=True):
        same(mine, theirs)


@pytest.mark.parametrize("name", MULTI)
def test_identity_43_identical_proxies_are_one_proxy(name):
    one = build(name, proxies_per_class=1)
    many = with_proxies(build(name, proxies_per_class=4, tau=0.0), one.proxies.expand(C, 4, D))
    f = embeddings()
    value, truth = many(f, LABELS), one(f, LABELS)
    same(value, truth)
    pulls, pull = (torch.autograd.grad(v, loss.proxies)[0] for v, loss in ((value, many), (truth, one)))
    same(pulls.sum(dim=1), pull[:, 0])
    same(pulls[:, 0], pulls[:, 3])


def test_identity_44_similarity_lies_between_the_cosines_and_reaches_its_limits():
    f = embeddings()
    loss = build("mpa", proxies_per_class=3)
    cosines = torch.einsum("bd,ckd->bck", unit(f), unit(loss.proxies))
    pooled = seen(loss, f, LABELS)
    same(pooled, similarity(loss, f))
    assert (pooled <= cosines.amax(dim=2) + 1e-15).all()
    assert (pooled >= cosines.amin(dim=2) - 1e-15).all()
    for gamma, limit in ((1e-4, cosines.amax(dim=2)), (1e9, cosines.mean(dim=2))):
        same(seen(build("mpa", proxies_per_class=3, gamma=gamma), f, LABELS), limit, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MULTI)
def test_identity_45_the_regularizer_is_0_for_one_proxy_and_finite_for_coincident_ones(name):
    f = embeddings()
    same(build(name, proxies_per_class=1, tau=5.0)(f, LABELS), build(name, proxies_per_class=1, tau=0.0)(f, LABELS))
    loss, plain = build(name, proxies_per_class=3, tau=1.0), build(name, proxies_per_class=3, tau=0.0)
    for each in (loss, plain):
        with_proxies(each, each.proxies[:, :1].detach().expand(C, 3, D).clone())
    value = loss(f, LABELS)
    same(value - plain(f, LABELS), math.sqrt(1e-5) / 2, rtol=1e-8)
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, [f, loss.proxies]))


def test_identity_46_the_regularizer_of_two_antipodal_proxies_is_1():
    loss, plain = (build("mpa", proxies_per_class=2, tau=tau) for tau in (1.0, 0.0))
    first = torch.randn(C, 1, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for each in (loss, plain):
        with_proxies(each, torch.cat([first, -2 * first], dim=1))
    same(loss(embeddings(), LABELS) - plain(embeddings(), LABELS), 1.0, rtol=1e-5)
    same(loss.diagnostics()["proxy_spread"], 2.0, rtol=1e-5)


def test_identity_47_soft_triple_with_one_centre_is_cosface():
    cosface = build("cosface", scale=20.0, margin=0.3)
    triple = with_proxies(build("soft_triple", proxies_per_class=1, la=20.0, delta=0.3, tau=0.0), cosface.proxies)
    f = embeddings()
    same(triple(f, LABELS), cosface(f, LABELS))
    logits = 20 * (unit(f) @ unit(cosface.proxies[:, 0]).T - 0.3 * torch.nn.functional.one_hot(LABELS, C).double())
    same(triple(f, LABELS), torch.nn.functional.cross_entropy(logits, LABELS))


def test_identity_48_two_classes_data_wise_and_all_pairs_is_never_more():
    labels = torch.tensor([0, 1, 1, 0])
    loss = build("mpa_dw", classes=2, proxies_per_class=2, tau=0.0)
    f = embeddings(4)
    S, rows = similarity(loss, f), torch.arange(4)
    softplus = torch.nn.functional.softplus
    expected = softplus(-32 * (S[rows, labels] - 0.1)) + softplus(32 * (S[rows, 1 - labels] + 0.1))
    same(loss(f, labels), expected.mean(), rtol=1e-8)
    for seed in range(20):
        for alpha in (1, 32):
            knobs = {"proxies_per_class": 2, "tau": 0.0, "alpha": alpha}
            f = embeddings(seed=seed)
            assert build("mpa_ap", **knobs)(f, LABELS) <= build("mpa_dw", **knobs)(f, LABELS) + 1e-12


def test_identity_49_all_pairs_gradient_weights_sum_to_the_closed_form():
    alpha, delta = 8.0, 0.1
    loss, f = build("mpa_ap", proxies_per_class=2, alpha=alpha, delta=delta, tau=0.0), embeddings()
    S, own = similarity(loss, f).detach(), LABELS[:, None]
    slopes = loss.solve(S, LABELS, f.detach().norm(dim=1)).slopes
    shifted = (S + delta).scatter(1, own, delta - S.gather(1, own))
    weights = slopes.scatter(1, own, -slopes.gather(1, own))  # with respect to S' instead of S
    total = (alpha * shifted).exp().sum(dim=1)
    same(weights.sum(dim=1), alpha * (1 - 1 / (1 + total)) / B)
    assert (slopes.gather(1, own) < 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_identity_50_proxy_length_does_not_matter_and_gradients_are_orthogonal(name):
    loss, f = build(name), embeddings()
    value = loss(f, LABELS)
    slope = torch.autograd.grad(value, loss.proxies)[0]
    lengths = torch.rand(*loss.proxies.shape[:2], 1, generator=torch.Generator().manual_seed(0)).double() * 9 + 0.5
    scaled = with_proxies(build(name), loss.proxies * lengths)
    value_scaled = scaled(f, LABELS)
    same(value_scaled, value)
    same(torch.autograd.grad(value_scaled, scaled.proxies)[0] * lengths, slope, rtol=1e-8, atol=1e-12)
    assert (slope * loss.proxies).sum(dim=2).abs().max() < 1e-12 * max(1.0, slope.abs().max().item())
    assert slope.abs().max() > 1e-6


@pytest.mark.parametrize("labels", [[1, 1, 4, 4, 4], [2, 2, 2]], ids=["classes missing", "single class"])
def test_identity_51_class_wise_mpa_counts_the_classes_it_should(labels):
    alpha, delta = 4.0, 0.1
    labels = torch.tensor(labels)
    loss, f = build("mpa", proxies_per_class=2, alpha=alpha, delta=delta, tau=0.0), embeddings(len(labels))
    S, y = similarity(loss, f), labels.tolist()
    pull = [sum(torch.exp(-alpha * (S[i, c] - delta)) for i in range(len(y)) if y[i] == c) for c in set(y)]
    others = [c for c in range(C) if set(y) != {c}]
    push = [sum(torch.exp(alpha * (S[i, c] + delta)) for i in range(len(y)) if y[i] != c) for c in others]
    assert len(others) == (C if len(set(y)) > 1 else C - 1)
    same(loss(f, labels), sum(map(torch.log1p, pull)) / len(pull) + sum(map(torch.log1p, push)) / len(push))


@pytest.mark.parametrize("alpha", [1e-3, 32, 256, 1e4])
def test_extreme_scales_are_finite_in_float32(alpha):
    f = embeddings().detach().float()
    for sign in (1, -1):
        for name in ("proxy_anchor", "mpa", "mpa_dw", "mpa_ap"):
            loss = build(name, alpha=alpha).float()
            with_proxies(loss, sign * unit(f)[:C, None].expand_as(loss.proxies))
            g = f.clone().requires_grad_()
            value = loss(g, torch.arange(B) % C)
            assert value.isfinite()
            assert all(x.isfinite().all() for x in torch.autograd.grad(value, [g, loss.proxies]))


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_proxy_gets_no_gradient_and_changes_no_other(name):
    loss, f = build(name), embeddings()
    with torch.no_grad():
        loss.proxies[2, 0] = 0
    value = loss(f, LABELS)
    pull, slope = torch.autograd.grad(value, [f, loss.proxies])
    assert value.isfinite()
    assert pull.isfinite().all()
    assert slope.isfinite().all()
    assert slope[2, 0].abs().max() == 0


@pytest.mark.parametrize("name", sorted(CLASSIFICATION))
@pytest.mark.parametrize("sign", [1, -1])
def test_targets_at_the_poles_are_finite(name, sign):
    loss = build(name).float()
    f = (7 * sign * loss.proxies[:, 0].detach()).requires_grad_()  # exactly on, or opposite of, its class weight
    value = loss(f, torch.arange(C))
    assert value.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, [f, loss.proxies]))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_class_is_finite(name):
    loss, f = build(name, classes=1), embeddings(3)
    value = loss(f, torch.zeros(3, dtype=torch.long))
    assert value.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, [f, loss.proxies]))


@pytest.mark.parametrize("name", NAMES)
def test_labels_and_dimensions_out_of_range_are_config_errors(name):
    loss = build(name)
    for bad in (-1, C):
        for _ in range(2):  # the second time as well
            with pytest.raises(ConfigError, match=rf"must lie in \[0, {C}\)"):
                loss(embeddings(2), torch.tensor([0, bad]))
        loss(embeddings(2), torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match="dimension of the proxies"):
        loss(torch.randn(2, D + 1).double(), torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match=r"num_classes.*at least 1"):
        build(name, classes=0)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_proxies_and_frozen_embeddings(name):
    loss, f = build(name), embeddings()
    both = torch.autograd.grad(loss(f, LABELS), [f, loss.proxies])
    loss.proxies.requires_grad_(False)
    assert torch.equal(torch.autograd.grad(loss(f, LABELS), f)[0], both[0])
    loss.proxies.requires_grad_(True)
    assert torch.equal(torch.autograd.grad(loss(f.detach(), LABELS), loss.proxies)[0], both[1])


@pytest.mark.parametrize("name", NAMES)
def test_int32_labels_and_backward_under_autocast(name):
    loss, f = build(name).float(), embeddings().detach().float().requires_grad_()
    truth = torch.autograd.grad(loss(f, LABELS), loss.proxies)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(loss(f, LABELS.int()), loss.proxies)[0]
    same(found, truth, rtol=0, atol=0)


@pytest.mark.parametrize("name", MULTI)
def test_proxy_usage_starts_even_and_detects_unused_proxies(name):
    loss, K = build(name, proxies_per_class=2, gamma=0.01), 2
    start = loss.diagnostics()
    same(start["proxy_usage_entropy"], 1.0)
    assert start["dead_proxies"] == 0
    loss.usage[0] = torch.tensor([0.006, 0.994])  # dead below a hundredth of the fair half
    assert loss.diagnostics()["dead_proxies"] == 0
    loss.usage[0] = torch.tensor([0.004, 0.996])
    same(loss.diagnostics()["dead_proxies"], 1 / (2 * C))
    with_proxies(loss, torch.eye(D, dtype=torch.float64)[: C * K].repeat(2, 1)[: C * K].view(C, K, D))
    f = unit(loss.proxies[:, 0]).detach().repeat(2, 1)  # every sample sits on the first proxy of its class
    for _ in range(100):
        loss(f, torch.arange(C).repeat(2))
    found = loss.diagnostics()
    assert found["dead_proxies"] == 0.5
    assert found["proxy_usage_entropy"] < 0.01
    same(found["proxy_spread"], math.sqrt(2), rtol=1e-5)
    before = loss.usage.clone()
    loss.eval()(f, torch.arange(C).repeat(2))
    assert torch.equal(loss.usage, before)


def test_usage_follows_its_recursion_and_skips_absent_classes():
    loss, f = build("mpa", proxies_per_class=3), embeddings(3)
    labels = torch.tensor([1, 1, 4])
    shares = (torch.einsum("bd,ckd->bck", unit(f), unit(loss.proxies)) / loss.gamma).softmax(dim=2).detach()
    loss(f, labels)
    same(loss.usage[1], 0.9 / 3 + 0.1 * (shares[0, 1] + shares[1, 1]) / 2, rtol=1e-6)
    same(loss.usage[4], 0.9 / 3 + 0.1 * shares[2, 4], rtol=1e-6)
    same(loss.usage[0], torch.full((3,), 1 / 3).double(), rtol=1e-7)


def test_proxies_are_seeded_and_drawn_as_their_papers_do():
    many = {name: build_loss(name, num_classes=500, embedding_dim=64).proxies for name in NAMES}
    for name, proxies in many.items():
        classes, K, dimension = proxies.shape
        if name == "soft_triple":
            assert proxies.abs().max() <= (classes * K) ** -0.5
        else:
            variance = {True: 2 / (classes + dimension), False: 2 / (classes * K)}[name in CLASSIFICATION]
            assert proxies.var().item() == pytest.approx(variance, rel=0.05)
    assert torch.equal(build("mpa").proxies, build("mpa").proxies)


SPARSE = {"weight_regularizer": pml_regularizers.SparseCentersRegularizer(C, 3), "weight_reg_weight": 0.2}
PML = {  # their class and its weights, our knobs, their knobs
    "proxy_anchor": (pml.ProxyAnchorLoss, "proxies", {}, {"margin": 0.1, "alpha": 32}),
    "proxy_nca": (pml.ProxyNCALoss, "proxies", {"include_positive": True}, {"softmax_scale": 9}),
    "soft_triple": (pml.SoftTripleLoss, "fc", {"proxies_per_class": 3}, {"centers_per_class": 3, **SPARSE}),
    "cosface": (pml.CosFaceLoss, "W", {}, {"margin": 0.35, "scale": 64}),
    "arcface": (pml.ArcFaceLoss, "W", {"margin": 1.2}, {"margin": math.degrees(1.2), "scale": 64}),
    "sphereface": (pml.SphereFaceLoss, "W", {}, {"margin": 4, "scale": 1}),
}


@pytest.mark.parametrize("name", PML)
def test_agrees_with_pytorch_metric_learning(name):
    kind, weights, own, knobs = PML[name]
    ours, theirs = build(name, **own), kind(num_classes=C, embedding_size=D, **knobs).double()
    proxies = ours.proxies.detach().flatten(0, 1)
    getattr(theirs, weights).data.copy_(proxies if weights == "proxies" else proxies.T)
    f = embeddings()
    value, truth = ours(f, LABELS), theirs(f, LABELS)
    tolerance = 1e-5 if name == "soft_triple" else 1e-9  # theirs has no 1e-5 under the root
    same(value, truth.detach(), rtol=tolerance)
    same(torch.autograd.grad(value, f)[0], torch.autograd.grad(truth, f)[0], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("one", [True, False])
def test_log_sum_exp_of_masked_and_empty_rows(one):
    x = torch.tensor([[0.5, -torch.inf, 3.0], [-torch.inf] * 3, [800.0, 799.0, -900.0]], dtype=torch.float64)
    value, weights = log_sum_exp(x.clone(), dim=1, add_one=one)
    y = torch.cat([x, torch.zeros(3, 1)], dim=1) if one else x
    same(value[[0, 2]], y[[0, 2]].logsumexp(dim=1))
    same(weights[[0, 2]], y[[0, 2]].softmax(dim=1)[:, :3])
    assert value[1] == (0 if one else -torch.inf)
    assert weights[1].abs().max() == 0
