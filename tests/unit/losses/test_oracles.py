"""Every loss equals its naive loop in value and all gradients, for many knobs and batches."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.oracles import ORACLES
from helpers.together import failing

from trainables.errors import ConfigError
from trainables.losses import LOSSES, build_loss
from trainables.losses.parts.proxies import ProxyLoss
from trainables.methods import check_knobs

CLASSES, DIMENSION = 5, 6
CENTRES = [{"proxies_per_class": k} for k in (3, 1)] + [
    {"proxies_per_class": 2, "gamma": 0.5, "tau": 0.0, "delta": 0.0},
    {"proxies_per_class": 4, "gamma": 0.01, "tau": 1.0},
]
KNOBS = {
    "triplet": [{}, {"margin": 0.05}, {"margin": 0}],
    "semihard_triplet": [{}, {"margin": 1.0}],
    "npair": [{}, {"scale": 64}],
    "multi_similarity": [{}, {"beta": 50, "epsilon": 0.0, "base": 0.2}],
    "tuplet_margin": [{}, {"ipv_weight": 0}, {"margin": 0.5, "scale": 8, "ipv_epsilon": 0.2}],
    "contrastive": [{}, {"margin": 0.6, "threshold": 0.1}],
    "margin_all": [{}, {"margin": 0.6, "threshold": 0.1}, {"denominator": "nonzero"}],
    "binomial": [{}, {"threshold": 0.0, "beta_pos": 5, "beta_neg": 3}],
    "margin_semihard": [{"threshold": 0.3, "margin": 0.6}, {"threshold": 0.2, "sampling_seed": 7}],
    "margin_dws": [{}, {"sampling_seed": 7, "dws_normalise": "global"}],
    "lifted_structure": [{}, {"reduction": "mean", "margin": 0.5, "threshold": -2.0}],
    "hap2s": [{}, {"gamma": 0.05, "margin": 0}],
    "dro_topk": [
        {"k": 5, "base": "binomial"},
        {"k": 20, "denominator": "nonzero"},
        *({"k": k} for k in (1, 30, 10**6)),
    ],
    "dro_topk_pn": [{"k": 2}, {"k": 8, "base": "binomial"}, {"k": 24}, {"k": 10**6}],
    "dro_kl": [
        *({"gamma": 0.5}, {"gamma": 0.01, "base": "binomial"}, {"gamma": 0.1, "drop_zeros": True}),
        *({"gamma": 0.1, "weights": "expm1"}, {"gamma": 0.3, "samples": 20}),
        {"gamma": 0.3, "samples": 7, "weights": "expm1", "sampling_seed": 3},
    ],
    "dro_kl_grouped": [{"gamma": 1}, {"gamma": 0.05, "drop_zeros": False}, {"gamma": 0.01, "reduction": "sum"}],
    "proxy_nca": [{}, {"include_positive": True}, {"scale": 1.0}],
    "proxy_anchor": [{}, {"alpha": 8, "delta": 0.3}],
    **{name: [*CENTRES, {"proxies_per_class": 2, "alpha": 4}] for name in ("mpa", "mpa_dw", "mpa_ap")},
    "soft_triple": [*CENTRES, {"proxies_per_class": 2, "la": 5, "delta": 0.2}],
    "softmax": [{}, {"scale": 10}],
    "cosface": [{}, {"margin": 0.1, "scale": 16}],
    "arcface": [{}, {"margin": 1.5, "scale": 4}, {"margin": 0}],
    "sphereface": [{}, {"margin": 1}, {"margin": 2, "annealing": 5.0}, {"margin": 3}],
    "nt_xent": [{}, {"temperature": 0.07}],
    "supcon": [{}, {"temperature": 0.5}],
    "circle": [{}, {"margin": 0.25, "scale": 20}, {"margin": 0}],
    "recall_at_k_surrogate": [{}, {"ks": (1, 2), "rank_temperature": 0.1}, {"ks": (3,), "k_temperature": 0.5}],
    "dro_chi2": [
        *({"radius": r} for r in (0.5, 0.05, 0, 5)),
        {"radius": 0.3, "base": "binomial"},
        {"radius": 1.0, "drop_zeros": True},
    ],
    "proxy_nca_pp": [{}, {"temperature": 1.0}],
}
CASES = {name: KNOBS.get(name, [LOSSES[name].example]) for name in ORACLES}
BALANCED, UNEQUAL = [0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 1, 1, 2, 3, 3, 4]
LABELS = {
    "balanced": BALANCED,
    "shuffled": [2, 0, 1, 0, 2, 1],
    "unequal": UNEQUAL,
    "classes missing": [4, 4, 4, 4, 1, 1, 0],
    "two": [0, 0, 1, 1],
    "two views": [0, 1, 2, 3, 0, 1, 2, 3],
    "single class": [3, 3, 3, 3],
    "all unique": [0, 1, 2, 3],
    "one sample": [3],
}


def setting(name, knobs, labels, dtype=torch.float64):
    """Return a loss, raw embeddings around a common direction (cosines on both sides of the thresholds), and labels."""
    torch.default_generator.manual_seed(len(labels))  # all devices' takes longer than most losses
    loss = build_loss(name, num_classes=CLASSES, embedding_dim=DIMENSION, **knobs).double().to(dtype)
    embeddings = torch.randn(len(labels), DIMENSION, dtype=torch.float64) + 1
    return loss, embeddings.to(dtype).requires_grad_(), torch.tensor(labels)


def gradients(value, loss, embeddings):
    return torch.autograd.grad(value, [embeddings, *loss.parameters()])


def oracle(name, knobs, loss, embeddings, labels):
    resolved, problems = check_knobs(LOSSES[name], knobs, "loss")
    assert not problems
    return ORACLES[name](embeddings, labels, **resolved, **dict(loss.named_parameters())) + 0 * embeddings.sum()


def equals_the_naive_loop(name, knobs, batch):
    loss, embeddings, labels = setting(name, knobs, LABELS[batch])
    value, expected = loss(embeddings, labels), oracle(name, knobs, loss, embeddings, labels)
    torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)
    pulls = zip(gradients(value, loss, embeddings), gradients(expected, loss, embeddings), strict=True)
    for pull, wanted in pulls:
        torch.testing.assert_close(pull, wanted, rtol=1e-9, atol=1e-12)


def each_case(check, name, *cases):
    """Return the failures of a loss, over each of its knobs and each case."""
    calls = {(str(knobs), *case): partial(check, name, knobs, *case) for knobs in CASES[name] for case in cases}
    return failing({" ".join(map(str, key)): call for key, call in calls.items()})


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_equal_the_naive_loop(name):
    assert each_case(equals_the_naive_loop, name, *((labels,) for labels in LABELS)) == []


@pytest.mark.parametrize("name", [name for name in ORACLES if not issubclass(LOSSES[name], ProxyLoss)])
def test_labels_of_pairs_are_any_whole_numbers(name):
    loss, embeddings, labels = setting(name, CASES[name][0], [5, 5, -1, -1, 9, 9, 100, 100])
    torch.testing.assert_close(loss(embeddings, labels), oracle(name, CASES[name][0], loss, embeddings, labels))


def agrees_with_float64(name, knobs):
    loss, embeddings, labels = setting(name, knobs, UNEQUAL)
    single, narrow, _ = setting(name, knobs, UNEQUAL, torch.float32)
    exact, value = loss(embeddings, labels), single(narrow, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=2e-5, atol=1e-6)
    pulls = zip(gradients(value, single, narrow), gradients(exact, loss, embeddings), strict=True)
    for pull, wanted in pulls:
        assert pull.dtype == torch.float32
        torch.testing.assert_close(pull.double(), wanted, rtol=1e-3, atol=2e-5 * max(1.0, wanted.abs().max().item()))


@pytest.mark.parametrize("name", CASES)
def test_float32_agrees_with_float64(name):
    assert each_case(agrees_with_float64, name, ()) == []


def is_exercised(name, knobs):
    loss, embeddings, labels = setting(name, knobs, BALANCED)
    value = loss(embeddings, labels)
    assert abs(value) > 1e-3
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients(value, loss, embeddings))


@pytest.mark.parametrize("name", CASES)
def test_the_balanced_batch_exercises_every_loss(name):
    assert each_case(is_exercised, name, ()) == []


def test_inputs_that_are_no_tensors_are_named():
    with pytest.raises(ConfigError, match="embeddings: must be a tensor, but got 'list'"):
        build_loss("triplet")([[1.0, 2.0]], np.zeros(1))
