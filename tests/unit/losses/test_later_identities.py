"""Identities 62 to 66 and 71 of docs/specification.md: losses of later years, the chi-squared set, types of gradients."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
from helpers.losses import assert_same
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.reducers import AvgNonZeroReducer

from trainables.losses import build_loss
from trainables.losses.parts.uncertainty import ChiSquared, Entropic, ExpMinusOne, Mean, TopK, entropy
from trainables.testing import CLASSES, DIMENSION, REGULAR, batch

TWO_VIEWS = (0, 1, 2, 3, 4, 0, 1, 2, 3, 4)


def test_identity_62_supcon_of_two_views_is_nt_xent_and_pml_agrees():
    supcon = build_loss("supcon", temperature=0.2)
    assert_same(supcon, build_loss("nt_xent", temperature=0.2), *batch(TWO_VIEWS))
    assert_same(supcon, pml.SupConLoss(temperature=0.2, reducer=AvgNonZeroReducer()), *batch(REGULAR))


def test_identity_63_proxy_nca_pp_is_proxy_nca_with_the_own_class_and_a_scale():
    sizes = {"num_classes": CLASSES, "embedding_dim": DIMENSION}
    new = build_loss("proxy_nca_pp", temperature=0.25, **sizes).double()
    old = build_loss("proxy_nca", scale=2.0, include_positive=True, **sizes).double()
    old.load_state_dict(new.state_dict())
    assert_same(new, old, *batch(REGULAR))


def test_identity_64_circle_is_pml_circle_loss_but_for_the_mean():
    """Theirs averages over the anchors with both kinds of pairs and a loss, ours over all B."""
    embeddings, labels = batch(REGULAR)
    _, counts = labels.unique(return_counts=True)
    anchors = int(counts[counts > 1].sum())
    circle = pml.CircleLoss(m=0.3, gamma=10, reducer=AvgNonZeroReducer())
    scaled = lambda f, y: circle(f, y) * anchors / len(y)  # noqa: E731
    ours = build_loss("circle", margin=0.3, scale=10)
    assert_same(ours, scaled, embeddings, labels, rtol=1e-8, atol=1e-8)  # their softplus is linear beyond 20


def test_identity_65_a_cold_recall_surrogate_is_recall():
    """Rank r counts sigma((k - r) / t): 1 below k, 1/2 at k, 0 beyond, whatever the other queries."""
    embeddings, labels = batch(REGULAR)
    loss = build_loss("recall_at_k_surrogate", ks=(1, 3), rank_temperature=1e-4, k_temperature=1e-3)
    similarity = (
        torch.nn.functional.normalize(embeddings.detach()) @ torch.nn.functional.normalize(embeddings.detach()).T
    )
    expected = []
    for q in range(len(labels)):
        others = [z for z in range(len(labels)) if z != q]
        positives = [x for x in others if labels[x] == labels[q]]
        ranks = [sum(bool(similarity[q, z] >= similarity[q, x]) for z in others) for x in positives]
        for k in (1, 3) if positives else ():
            expected.append(1 - sum(1 if r < k else 0.5 if r == k else 0 for r in ranks) / min(k, len(positives)))
    torch.testing.assert_close(loss(embeddings, labels).item(), sum(expected) / len(expected), rtol=1e-6, atol=1e-6)


def test_identity_66_chi_squared_is_the_mean_at_0_the_maximum_when_large_and_between_grows():
    embeddings, labels = batch(REGULAR)
    ends = {0: build_loss("binomial"), 1e4: build_loss("dro_topk", k=1, base="binomial")}
    for radius, peer in ends.items():
        assert_same(build_loss("dro_chi2", radius=radius, base="binomial"), peer, embeddings, labels)
    radii = (0, 0.01, 0.1, 0.5, 1, 3, 10, 100)
    values = [build_loss("dro_chi2", radius=radius)(embeddings, labels).item() for radius in radii]
    assert values == sorted(values)


@pytest.mark.parametrize("radius", [1e-6, 0.01, 0.05])
def test_identity_66_chi_squared_is_mean_plus_spread_while_no_weight_is_0(radius):
    losses = torch.linspace(1, 2, 40, dtype=torch.float64)[None]
    value, p = ChiSquared(radius).worst_case(losses, torch.ones_like(losses, dtype=torch.bool))
    assert p.min() > 0
    expected = losses.mean() + math.sqrt(2 * radius) * losses.std(correction=0)
    torch.testing.assert_close(value[0], expected)
    torch.testing.assert_close((40 * p - 1).square().mean() / 2, torch.tensor(radius, dtype=torch.float64))


def test_identity_66_the_weights_of_chi_squared_satisfy_its_constraints_and_its_optimality():
    """Karush-Kuhn-Tucker: p is affine in l where it is positive, and 0 elsewhere."""
    torch.manual_seed(1)
    losses = torch.rand(3, 50, dtype=torch.float64)
    mask = torch.rand(3, 50) > 0.2
    _, p = ChiSquared(2.0).worst_case(losses, mask)
    for row in range(3):
        values, weights = losses[row, mask[row]], p[row, mask[row]]
        assert p[row, ~mask[row]].abs().max() == 0
        torch.testing.assert_close(weights.sum().item(), 1.0)
        torch.testing.assert_close((len(values) * weights - 1).square().mean().item() / 2, 2.0)
        used = weights > 0
        slope = (weights[used].max() - weights[used].min()) / (values[used].max() - values[used].min())
        intercept = weights[used].max() - slope * values[used].max()
        torch.testing.assert_close((intercept + slope * values).clamp_min(0), weights, rtol=1e-8, atol=1e-12)


def test_identity_26_dro_kl_without_zeros_tends_to_the_mean_of_the_pairs_with_a_loss():
    mean = build_loss("margin_all", denominator="nonzero")
    assert_same(build_loss("dro_kl", gamma=1e6, drop_zeros=True), mean, *batch(REGULAR), rtol=1e-5, atol=1e-6)


PATH = Path(__file__).parents[3] / "benchmarks" / "mpa_gradients.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("mpa_gradients", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("name", ["proxy_nca", "proxy_anchor", "soft_triple", "mpa", "mpa_dw", "mpa_ap"])
def test_identity_71_types_of_gradients_are_as_printed(study, name):
    assert study.measure_row(name) == study.PRINTED[name]
    assert name in study.PRINTED


def test_identity_71_influence_is_the_second_derivative(study):
    """Of SoftTriple, one cross entropy a sample: la^2 / B (diag(p) - p p^T) within a sample, 0 across."""
    similarity, labels = study.toy_batch()
    loss = study.toy_loss("soft_triple")
    table = study.influence(loss, similarity, labels)
    margin = torch.nn.functional.one_hot(labels, similarity.shape[1]) * loss.delta
    p = torch.softmax(loss.la * (similarity - margin), dim=1)
    for i, row in enumerate(p):
        expected = loss.la**2 / len(p) * (torch.diag(row) - torch.outer(row, row))
        torch.testing.assert_close(table[i, :, i], expected, rtol=1e-5, atol=1e-8)
        assert table[i][:, torch.arange(len(p)) != i].abs().max() < 1e-8


def test_entropy_is_the_mean_over_groups_with_pairs():
    p = torch.tensor([[0.25, 0.25, 0.5], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    assert entropy(p).item() == pytest.approx(1.25 * math.log(2))
    assert entropy(0.3 * p).item() == pytest.approx(1.25 * math.log(2))
    assert entropy(0 * p).item() == 0


@pytest.mark.parametrize("kind", [Mean(), TopK(2), Entropic(0.2), ExpMinusOne(0.2), ChiSquared(0.5)])
def test_each_group_is_computed_independently(kind):
    losses = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    losses *= mask
    together, alone = kind.worst_case(losses, mask), [kind.worst_case(losses[[i]], mask[[i]]) for i in range(4)]
    torch.testing.assert_close(together.value, torch.cat([one.value for one in alone]))
    torch.testing.assert_close(together.p, torch.cat([one.p for one in alone]))
