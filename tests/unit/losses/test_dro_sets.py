"""Uncertainty sets by themselves, and what a robust loss tells about its worst case."""

import math

import pytest
import torch
from helpers.oracles.pairs import Batch

from trainables.losses import build_loss
from trainables.losses.parts.pair_terms import Margin
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import Entropic, Mean, TopK

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3])
UNORDERED = 66
WIDE = {"margin": 3.0, "threshold": 0.5}  # every pair loss is positive


def raw():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 6, generator=generator, dtype=torch.float64) + 0.5


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("uncertainty", [Mean(), TopK(5), Entropic(0.3)], ids=lambda u: type(u).__name__)
def test_identity_28_p_is_a_distribution_and_uniform_for_equal_losses(uncertainty):
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(3, 20, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 20, generator=generator) < 0.7
    p = uncertainty.worst_case(losses, mask).p
    close(p.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert (p >= 0).all()
    assert (p[~mask] == 0).all()
    if not isinstance(uncertainty, TopK):
        equal = uncertainty.worst_case(torch.full_like(losses, 0.4), mask)
        close(equal.p, mask / mask.sum(dim=1, keepdim=True).double())
        close(equal.value, torch.full((3,), 0.4, dtype=torch.float64))


def test_topk_ties_go_to_the_first_pairs():
    p = TopK(3).worst_case(torch.tensor([[1.0, 2.0, 1.0, 1.0, 1.0]]), torch.tensor([[True, True, False, True, True]])).p
    assert (p > 0).tolist() == [[True, True, False, True, False]]


def test_identity_29_kl_is_unchanged_by_duplicating_every_pair():
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(1, 20, generator=generator, dtype=torch.float64)
    mask = torch.ones_like(losses, dtype=torch.bool)
    twice = Entropic(0.3).worst_case(losses.repeat(1, 2), mask.repeat(1, 2))
    once = Entropic(0.3).worst_case(losses, mask)
    close(twice.value, once.value)
    close(twice.p[:, :20] + twice.p[:, 20:], once.p)


class Pooled(PooledLoss):
    """A pooled method chosen by the test."""

    name = "test"


def test_diagnostics_describe_the_worst_case():
    embeddings = raw()
    loss = build_loss("dro_topk", k=8, **WIDE)
    assert loss.diagnostics() == {}
    loss(embeddings, LABELS)
    seen = loss.diagnostics()
    assert seen["effective_k"].item() == pytest.approx(8)
    assert seen["p_entropy"].item() == pytest.approx(math.log(8))
    assert seen["active_pairs"].item() == pytest.approx(8 / UNORDERED)
    assert all(value.ndim == 0 and not value.requires_grad for value in seen.values())
    batch = Batch(embeddings, LABELS)
    positive = torch.stack([batch.S[pair] for pair in batch.positives]).mean()
    assert seen["positive_cosine"].item() == pytest.approx(positive.item())
    mean = Pooled(Margin(3.0, 0.5), Mean())
    mean(embeddings, LABELS)
    assert mean.diagnostics()["effective_k"].item() == pytest.approx(UNORDERED)
    balanced = build_loss("dro_topk_pn", k=8, **WIDE)
    balanced(embeddings, LABELS)
    assert balanced.diagnostics()["effective_k"].item() == pytest.approx(8)
