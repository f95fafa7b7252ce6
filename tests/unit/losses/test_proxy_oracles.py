"""Every proxy and classification loss equals its naive loop: value and gradient of embeddings and of proxies."""

import pytest
import torch
from helpers.oracles.proxies import ORACLES

from trainables.losses import LOSSES, build_loss
from trainables.losses.parts.proxies import ProxyLoss
from trainables.methods import checked_knobs

C, D = 5, 6
MULTI = [
    {"proxies_per_class": 3},
    {"proxies_per_class": 1},
    {"proxies_per_class": 2, "gamma": 0.5, "tau": 0.0, "delta": 0.0},
    {"proxies_per_class": 4, "gamma": 0.01, "tau": 1.0},
]
KNOBS = {
    "proxy_nca": [{}, {"include_positive": True}, {"scale": 1.0}],
    "proxy_anchor": [{}, {"alpha": 8, "delta": 0.3}],
    "mpa": [*MULTI, {"proxies_per_class": 2, "alpha": 4}],
    "mpa_dw": [*MULTI, {"proxies_per_class": 2, "alpha": 4}],
    "mpa_ap": [*MULTI, {"proxies_per_class": 2, "alpha": 4}],
    "soft_triple": [*MULTI, {"proxies_per_class": 2, "la": 5, "delta": 0.2}],
    "softmax": [{}, {"scale": 10}],
    "cosface": [{}, {"margin": 0.1, "scale": 16}],
    "arcface": [{}, {"margin": 1.5, "scale": 4}, {"margin": 0}],
    "sphereface": [{}, {"margin": 1}, {"margin": 2, "annealing": 5.0}, {"margin": 3}],
    "nt_xent": [{}, {"temperature": 0.07}],
}
CASES = [(name, knobs) for name, several in KNOBS.items() for knobs in several]
LABELS = {
    "balanced": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
    "shuffled": [3, 0, 4, 1, 0, 3, 2, 4],
    "unequal, classes missing": [4, 4, 4, 4, 1, 1, 0],
    "single class": [2, 2, 2],
    "all unique": [0, 1, 2, 3, 4],
    "one sample": [3],
}


def setting(name, knobs, labels, *, dtype=torch.float64, dimension=D):
    torch.manual_seed(len(labels))
    labels = torch.tensor(labels)
    loss = build_loss(name, num_classes=C, embedding_dim=dimension, **knobs).to(dtype)
    embeddings = (2 * torch.randn(len(labels), dimension, dtype=torch.float64)).to(dtype).requires_grad_()
    return loss, embeddings, labels


def gradients(value, loss, embeddings):
    return torch.autograd.grad(value, [embeddings, *loss.parameters()])


def expected(name, knobs, loss, embeddings, labels):
    resolved, problems = checked_knobs(LOSSES[name], knobs, "loss")
    assert not problems
    proxies = {"proxies": loss.proxies} if isinstance(loss, ProxyLoss) else {}
    return ORACLES[name](embeddings, labels, **resolved, **proxies)


def test_every_loss_with_class_representatives_is_listed_here():
    assert set(KNOBS) == set(ORACLES) == {n for n, cls in LOSSES.items() if issubclass(cls, ProxyLoss)} | {"nt_xent"}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_value_and_gradients_equal_the_naive_loop(name, knobs, labels):
    loss, embeddings, labels = setting(name, knobs, labels)
    value, truth = loss(embeddings, labels), expected(name, knobs, loss, embeddings, labels)
    torch.testing.assert_close(value, truth, rtol=1e-11, atol=1e-13)
    for found, true in zip(gradients(value, loss, embeddings), gradients(truth, loss, embeddings), strict=True):
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_gradcheck(name, knobs):
    loss, embeddings, labels = setting(name, knobs, LABELS["unequal, classes missing"], dimension=3)
    assert torch.autograd.gradcheck(lambda f, *_: 3 * loss(f, labels), (embeddings, *loss.parameters()))


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_float32_agrees_with_float64(name, knobs):
    loss, embeddings, labels = setting(name, knobs, LABELS["balanced"])
    exact = loss(embeddings, labels)
    exact_gradients = gradients(exact, loss, embeddings)
    single = build_loss(name, num_classes=C, embedding_dim=D, **knobs)
    single.load_state_dict(loss.state_dict())
    embeddings = embeddings.detach().float().requires_grad_()
    value = single(embeddings, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=2e-5, atol=1e-6)
    for found, true in zip(gradients(value, single, embeddings), exact_gradients, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), true, rtol=1e-3, atol=2e-5 * float(true.abs().max().clamp_min(1)))


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_the_balanced_batch_exercises_every_loss(name, knobs):
    loss, embeddings, labels = setting(name, knobs, LABELS["balanced"])
    value = loss(embeddings, labels)
    assert abs(value) > 1e-3
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients(value, loss, embeddings))
