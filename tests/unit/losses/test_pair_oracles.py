"""Every pair-based loss equals its naive loop in value and gradient, for many knobs and batch shapes."""

import pytest
import torch
from helpers.oracles.pairs import ORACLES

from trainables.losses import LOSSES, build_loss
from trainables.methods import checked_knobs

KNOBS = {
    "triplet": [{}, {"margin": 0.05}, {"margin": 0}],
    "semihard_triplet": [{}, {"margin": 1.0}],
    "npair": [{}, {"scale": 64}],
    "multi_similarity": [{}, {"beta": 50, "epsilon": 0.0, "base": 0.2}],
    "tuplet_margin": [{}, {"ipv_weight": 0}, {"margin": 0.5, "scale": 8, "ipv_epsilon": 0.2}],
    "contrastive": [{}, {"margin": 0.6, "threshold": 0.1}],
    "margin_all": [{}, {"margin": 0.6, "threshold": 0.1}],
    "binomial": [{}, {"threshold": 0.0, "beta_pos": 5, "beta_neg": 3}],
    "margin_semihard": [{"threshold": 0.3, "margin": 0.6}, {"threshold": 0.2, "sampling_seed": 7}],
    "margin_dws": [{}, {"sampling_seed": 7, "dws_normalise": "global"}],
    "lifted_structure": [{}, {"reduction": "mean", "margin": 0.5, "threshold": -2.0}],
    "hap2s": [{}, {"gamma": 0.05, "margin": 0}],
    "dro_topk": [
        {"k": 1},
        {"k": 5, "base": "binomial"},
        {"k": 30, "denominator": "nonzero"},
        {"k": 60},
        {"k": 10**6},
    ],
    "dro_topk_pn": [{"k": 2}, {"k": 8, "base": "binomial"}, {"k": 40}, {"k": 10**6}],
    "dro_kl": [
        {"gamma": 0.5},
        {"gamma": 0.01, "base": "binomial"},
        {"gamma": 0.1, "drop_zeros": True},
        {"gamma": 0.1, "weights": "expm1"},
        {"gamma": 0.3, "samples": 20},
        {"gamma": 0.3, "samples": 7, "weights": "expm1", "sampling_seed": 3},
    ],
    "dro_kl_grouped": [
        {"gamma": 1},
        {"gamma": 0.05, "drop_zeros": False},
        {"gamma": 0.01, "reduction": "sum"},
    ],
}
LABELS = {
    "balanced": [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3],
    "shuffled": [2, 0, 1, 3, 0, 2, 1, 3, 2, 0, 1, 3],
    "unequal": [0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 4],
    "pairs": [5, 5, -1, -1, 9, 9, 100, 100],
    "two": [0, 0, 1, 1],
    "single class": [3, 3, 3, 3],
    "all unique": [0, 1, 2, 3],
}


def embeddings_of(n, *, seed=0, spread=1.0, d=6):
    """Raw embeddings around a common direction, so that cosines cover both sides of the thresholds."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return (noise + spread * torch.ones(d, dtype=torch.float64)).requires_grad_()


def value_and_gradient(function, embeddings):
    value = function(embeddings)
    return value.detach(), torch.autograd.grad(value, embeddings)[0]


def test_every_pair_loss_is_listed_here():
    assert set(KNOBS) == set(ORACLES)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
@pytest.mark.parametrize(("name", "knobs"), [(n, k) for n, all_knobs in KNOBS.items() for k in all_knobs])
def test_value_and_gradient_equal_the_naive_loop(name, knobs, labels):
    labels = torch.tensor(labels)
    resolved, problems = checked_knobs(LOSSES[name], knobs, "loss")
    assert not problems
    embeddings = embeddings_of(len(labels), seed=len(labels))
    value, gradient = value_and_gradient(lambda f: build_loss(name, **knobs)(f, labels), embeddings)
    expected, expected_gradient = value_and_gradient(
        lambda f: ORACLES[name](f, labels, **resolved) + 0 * f.sum(), embeddings
    )
    torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_float32_agrees_with_float64(name):
    labels = torch.tensor(LABELS["unequal"])
    embeddings = embeddings_of(len(labels))
    knobs = KNOBS[name][0]
    exact, exact_gradient = value_and_gradient(lambda f: build_loss(name, **knobs)(f, labels), embeddings)
    single = embeddings.detach().float().requires_grad_()
    value, gradient = value_and_gradient(lambda f: build_loss(name, **knobs)(f, labels), single)
    assert value.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "knobs"), [(n, k) for n, all_knobs in KNOBS.items() for k in all_knobs])
def test_the_balanced_batch_exercises_every_loss(name, knobs):
    labels = torch.tensor(LABELS["balanced"])
    value, gradient = value_and_gradient(
        lambda f: build_loss(name, **knobs)(f, labels), embeddings_of(len(labels), seed=len(labels))
    )
    assert value > 1e-3
    assert gradient.abs().max() > 1e-4
