"""Identities 12 to 17 of docs/specification.md, and pytorch-metric-learning where it computes the same formula."""

import pytest
import torch
from helpers.losses import LABELS, assert_same, evaluate, raw
from helpers.oracles.pairs import Batch
from pytorch_metric_learning import distances, losses, miners, reducers

from trainables.errors import ConfigError
from trainables.losses import LOSSES, build_loss
from trainables.losses.npair import _anchor_positive_pairs
from trainables.losses.parts.uncertainty import sample_in_proportion


def unit(angles):
    angles = torch.tensor(angles, dtype=torch.float64)
    return torch.stack((angles.cos(), angles.sin()), dim=1).requires_grad_()


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_identity_11_triplet_equals_pml_with_squared_distance_and_plain_mean(margin):
    peer = losses.TripletMarginLoss(
        margin=margin, distance=distances.LpDistance(power=2), reducer=reducers.MeanReducer()
    )
    assert_same(build_loss("triplet", margin=margin), peer, raw())


@pytest.mark.parametrize(
    ("angles", "negatives", "margin"),
    [
        ([0.0, 0.5, 0.1, 0.6, 2.0], (3, 4), 1.0),  # the closest negative beyond the positive
        ([0.0, 3.0, 0.2, 0.4], (3, 2), 0.2),  # the farthest, if none is beyond it
        ([0.0, 0.5, -0.5, 1.5], (3, 2), 1.5),  # one as far as the positive is not beyond it
    ],
)
def test_identity_12_the_negative_of_the_semihard_loss(angles, negatives, margin):
    """The first two samples are a class, seen from either end."""
    embeddings = unit(angles)
    labels = torch.tensor([0, *range(len(angles) - 1)])
    S = (embeddings @ embeddings.T).detach()
    terms = [2 * (S[anchor, n] - S[0, 1]) + margin for anchor, n in enumerate(negatives)]
    value = build_loss("semihard_triplet", margin=margin)(embeddings, labels).detach()
    torch.testing.assert_close(value, torch.stack(terms).clamp_min(0).mean())


def test_identity_13_npair_equals_pml_on_unit_vectors_times_five():
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    peer = losses.NPairsLoss(distance=distances.DotProductSimilarity(normalize_embeddings=False))
    assert_same(
        build_loss("npair", scale=25), lambda f, y: peer(5 * f / f.norm(dim=1, keepdim=True), y), raw(6), labels
    )


@pytest.mark.parametrize("beta", [40, 50])
def test_identity_14_multi_similarity_equals_pml_with_its_miner(beta):
    miner = miners.MultiSimilarityMiner(0.1)
    peer = losses.MultiSimilarityLoss(2, beta, 0.5)
    assert_same(build_loss("multi_similarity", beta=beta), lambda f, y: peer(f, y, miner(f, y)), raw())


def test_tuplet_margin_contrastive_and_lifted_structure_equal_pml():
    peer, variance = (losses.TupletMarginLoss(0.1 * 180 / torch.pi, 64), losses.IntraPairVarianceLoss(0.01, 0.01))
    assert_same(build_loss("tuplet_margin"), lambda f, y: peer(f, y) + 0.5 * variance(f, y), raw())
    peer = losses.ContrastiveLoss(0.7, 0.3, distance=distances.CosineSimilarity(), reducer=reducers.MeanReducer())
    assert_same(build_loss("contrastive"), peer, raw())
    peer = losses.GeneralizedLiftedStructureLoss(neg_margin=0.5, pos_margin=0.5, distance=distances.CosineSimilarity())
    assert_same(build_loss("lifted_structure"), lambda f, y: len(y) * peer(f, y), raw())


@pytest.mark.parametrize("name", ["triplet", "semihard_triplet", "npair", "tuplet_margin", "multi_similarity"])
def test_identity_16_without_positive_pairs_value_and_gradient_are_zero(name):
    value, gradient = evaluate(build_loss(name), raw(), torch.arange(12))
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("name", sorted(name for name, cls in LOSSES.items() if not cls.counts_classes))
def test_a_batch_without_pairs_has_no_loss(name):
    margin = {"margin": 1.0} if name == "lifted_structure" else {}
    value, gradient = evaluate(build_loss(name, **LOSSES[name].example, **margin), raw(1), torch.tensor([3]))
    assert value == 0
    assert (gradient == 0).all()


def test_identity_17_tuplet_margin_without_margin_compares_cosines():
    embeddings = raw()
    b = Batch(embeddings, LABELS)
    terms = [
        torch.logsumexp(torch.stack([b.zero] + [8 * (b.S[a, n] - b.S[a, p]) for n in b.N[a]]), dim=0)
        for a, p in b.positives
    ]
    value = build_loss("tuplet_margin", margin=0, scale=8, ipv_weight=0)(embeddings, LABELS)
    torch.testing.assert_close(value, torch.stack(terms).mean(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("labels", [LABELS.tolist(), [0, 1, 2], [4], [7, 1, 7, 1, 3], [2, 2]])
def test_padding_does_not_change_npair(labels, monkeypatch):
    def padded(embeddings, labels):
        with monkeypatch.context() as patch:
            always = lambda y, padded: _anchor_positive_pairs(y, padded=True)  # noqa: E731
            patch.setattr("trainables.losses.npair._anchor_positive_pairs", always)
            return build_loss("npair")(embeddings, labels)

    assert_same(padded, build_loss("npair"), raw(len(labels)), torch.tensor(labels))


@pytest.mark.parametrize("normalise", ["row", "global"])
def test_distance_weighted_negatives_per_anchor(normalise):
    """In 512 dimensions one close pair starves the other anchors of a globally normalised sampler, not of ours."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(40, 512, generator=generator)
    embeddings[20] = embeddings[0] + 0.1 * embeddings[20]
    labels = torch.arange(40) // 4
    loss = build_loss("margin_dws", dws_normalise=normalise, threshold=-0.9, margin=0.5)  # every negative has a loss
    loss(embeddings.requires_grad_(), labels)
    pairs, slopes = loss._last
    drawn = torch.where(pairs.negative, slopes, 0)
    anchors = (drawn > 0).any(dim=1).sum()
    if normalise == "row":
        torch.testing.assert_close(drawn.sum(dim=1), torch.full((40,), 0.5 / 40))  # 3 of 240 pairs each
    else:
        assert anchors <= 4


def test_a_weight_of_0_is_never_drawn():
    cumulative = torch.tensor([[0.0, 0.0, 1.0, 1.0, 4.0, 4.0]])
    drawn = sample_in_proportion(cumulative, torch.tensor([[0.0, 0.2, 0.25, 1 - 2**-24]]))
    assert drawn.tolist() == [[2, 2, 4, 4]]


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("triplet", {"margin": -1}),
        ("semihard_triplet", {"margin": -0.1}),
        ("npair", {"scale": 0}),
        ("multi_similarity", {"alpha": 0}),
        ("multi_similarity", {"beta": -1}),
        ("tuplet_margin", {"margin": 2}),
        ("margin_all", {"threshold": -1.5}),
        ("margin_all", {"threshold": 1.5}),
        ("margin_semihard", {"margin": 0}),
        ("margin_dws", {"dws_normalise": "batch"}),
        ("hap2s", {"gamma": 0}),
        ("binomial", {"beta_pos": 0}),
        ("dro_topk", {}),
        ("dro_topk", {"k": 0}),
        ("dro_topk", {"k": 8, "base": "triplet"}),
        ("dro_topk", {"k": 8, "threshold": 3}),
        ("dro_topk_pn", {"k": 7}),
        ("dro_kl", {"gamma": 0}),
        ("dro_kl", {"gamma": -0.5}),
        ("dro_kl", {"gamma": 0.5, "samples": 0}),
        ("dro_kl_grouped", {"gamma": 0.1, "reduction": "max"}),
    ],
)
def test_knobs_outside_their_domain_are_refused_by_name(name, knobs):
    with pytest.raises(ConfigError) as error:
        build_loss(name, **knobs)
    places = [problem.place for problem in error.value.problems]
    wrong = list(knobs)[-1] if knobs else "k"
    assert places == [f"loss.{wrong}"]


@pytest.mark.parametrize(("threshold", "limit"), [(-1.5, -1.0), (1.5, 1.0)])
def test_pairs_that_never_have_a_loss_are_refused_with_their_limit(threshold, limit):
    with pytest.raises(ConfigError) as error:
        build_loss("margin_all", threshold=threshold, margin=0.5)
    assert [problem.value for problem in error.value.problems] == [limit]
    assert build_loss("margin_all", threshold=threshold, margin=0.6)


@pytest.mark.parametrize("labels", [[0, 1, 2] * 2, [0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 2]])
def test_nt_xent_equals_pml_for_any_labels(labels):
    assert_same(
        build_loss("nt_xent", temperature=0.2), losses.NTXentLoss(temperature=0.2), raw(6), torch.tensor(labels)
    )


def test_nt_xent_equals_the_self_supervised_wrapper_of_pml_and_is_finite_if_cold():
    peer = losses.SelfSupervisedLoss(losses.NTXentLoss(temperature=0.5))
    assert_same(build_loss("nt_xent"), lambda f, y: peer(f[:4], f[4:]), raw(8), torch.arange(4).repeat(2))
    embeddings = raw().detach().float().requires_grad_()
    value, gradient = evaluate(build_loss("nt_xent", temperature=1e-4), embeddings, torch.arange(6).repeat(2))
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_a_flat_side_of_the_binomial_loss_keeps_its_digits_in_float32():
    embeddings = raw()
    for beta_neg in (40.0, 1e4):
        loss = build_loss("binomial", beta_pos=0.01, beta_neg=beta_neg)
        torch.testing.assert_close(
            loss(embeddings.float(), LABELS).double(), loss(embeddings, LABELS), rtol=1e-6, atol=0
        )
