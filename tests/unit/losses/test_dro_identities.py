"""Identities 19 to 41 of docs/specification.md: the robust losses and what they recover."""

import copy
import math

import pytest
import torch
from helpers.losses import LABELS, assert_same, evaluate, raw
from helpers.oracles.pairs import Batch, margin_loss
from scipy.optimize import minimize

from trainables.losses import build_loss
from trainables.losses.base import normalise
from trainables.losses.parts.pair_terms import Binomial, Linear, Margin
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.robust import AnchorwiseLoss, PooledLoss
from trainables.losses.parts.uncertainty import Entropic, Mean, TopK

UNORDERED = 66
POSITIVES = 3 + 3 + 1 + 6
WIDE = {"margin": 3.0, "threshold": 0.5}  # every pair loss is positive


def close(got, expected, rtol=1e-8):
    torch.testing.assert_close(got, expected, rtol=rtol, atol=1e-12)


def pair_losses(embeddings, labels=LABELS, margin=0.2, threshold=0.5):
    batch = Batch(embeddings, labels)
    return torch.stack([margin_loss(batch, i, j, margin, threshold) for i, j in batch.unordered])


@pytest.mark.parametrize("k", [UNORDERED, UNORDERED + 1, 10**9])
def test_identity_19_topk_of_all_is_mean(k):
    assert_same(build_loss("dro_topk", k=k), build_loss("margin_all"), raw())


def test_identity_19_top_one_is_max():
    embeddings = raw()
    close(evaluate(build_loss("dro_topk", k=1), embeddings)[0], pair_losses(embeddings).max().detach())


def test_identity_20_topk_does_not_increase_in_k():
    embeddings = raw()
    values = torch.stack([evaluate(build_loss("dro_topk", k=k), embeddings)[0] for k in range(1, UNORDERED + 1)])
    losses = pair_losses(embeddings).detach()
    assert (values.diff() <= 1e-15).all()
    assert values[0] > values[-1]
    assert losses.mean() - 1e-12 <= values.min() <= values.max() <= losses.max() + 1e-12


@pytest.mark.parametrize("k", [1, 7, 40])
def test_identity_21_unordered_topk_is_ordered_top_2k(k):
    embeddings = raw()
    batch = Batch(embeddings, LABELS)
    ordered = torch.stack([margin_loss(batch, i, j, 0.2, 0.5) for i in range(12) for j in range(12) if i != j])
    close(evaluate(build_loss("dro_topk", k=k), embeddings)[0], ordered.topk(2 * k).values.mean().detach())


@pytest.mark.parametrize("base", ["margin", "binomial"])
def test_identity_22_topk_gradient_is_the_mean_of_the_selected_gradients(base):
    embeddings = raw()
    loss = build_loss("dro_topk", k=9, base=base)
    _, gradient = evaluate(loss, embeddings)
    pairs = Pairs.of(normalise(embeddings.detach()), LABELS)
    term = Margin(0.2, 0.5) if base == "margin" else Binomial(0.5, 2, 40)
    losses = term(pairs)[0].triu(1)
    selected = losses.flatten().argsort(descending=True)[:9].tolist()
    total = torch.zeros_like(gradient)
    for i, j in (divmod(index, 12) for index in selected):
        alone = build_loss("dro_topk", k=1, base=base)
        two = embeddings[[i, j]]
        total += torch.autograd.grad(alone(two, LABELS[[i, j]]), embeddings)[0] / 9
    close(gradient, total)


def test_identity_23_balanced_topk_of_everything_is_mean():
    labels = torch.tensor([0, 0, 0, 1])  # three positive and three negative pairs
    assert_same(build_loss("dro_topk_pn", k=6, **WIDE), build_loss("margin_all", **WIDE), raw(4), labels)


@pytest.mark.parametrize(("k", "positives", "negatives"), [(8, 4, 4), (26, 13, 13), (60, 13, 13), (10**6, 13, 13)])
def test_identity_24_shortage_of_positives_takes_as_many_negatives(k, positives, negatives):
    loss = build_loss("dro_topk_pn", k=k, **WIDE)
    evaluate(loss, raw())
    pairs, slopes = loss._last
    assert ((slopes != 0) & pairs.positive).sum() == positives
    assert ((slopes != 0) & pairs.negative).sum() == negatives


@pytest.mark.parametrize(
    ("labels", "taken"), [([0, 0, 0, 0], 2), ([0, 1, 2, 3], 2), ([0, 0, 0, 0, 1], 2 + 2), ([0, 0, 0, 1], 2 + 2)]
)
def test_identity_24_a_missing_sign_omits_its_half(labels, taken):
    loss = build_loss("dro_topk_pn", k=4, **WIDE)
    evaluate(loss, raw(len(labels)), torch.tensor(labels))
    slopes = loss._last[1]
    assert (slopes != 0).sum() == taken
    close(slopes.abs().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_identity_25_kl_is_the_maximum_over_the_simplex():
    embeddings, labels = raw(4), torch.tensor([0, 0, 1, 1])
    losses = pair_losses(embeddings, labels, **WIDE).detach().numpy()

    def negative_objective(p):
        return 0.3 * sum(x * math.log(x * len(p)) for x in p) - p @ losses

    found = minimize(
        negative_objective,
        [1 / 6] * 6,
        bounds=[(1e-12, 1)] * 6,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        tol=1e-14,
    )
    value, _ = evaluate(build_loss("dro_kl", gamma=0.3, **WIDE), embeddings, labels)
    assert found.success
    assert value.item() == pytest.approx(-found.fun, rel=1e-8)


def test_identity_26_kl_lies_between_mean_and_max_and_falls_with_gamma():
    embeddings = raw()
    losses = pair_losses(embeddings).detach()
    gammas = [1e-4, 1e-2, 0.1, 1.0, 10.0, 1e6]
    values = torch.stack([evaluate(build_loss("dro_kl", gamma=gamma), embeddings)[0] for gamma in gammas])
    assert (values.diff() < 0).all()
    assert abs(values[-1] - losses.mean()) < 1e-5
    assert 0 <= losses.max() - values[0] <= 1e-4 * math.log(UNORDERED)
    for gamma in (1e6, 1e12):  # gamma multiplies the rounding of a logarithm near 0
        assert abs(evaluate(build_loss("dro_kl", gamma=gamma), embeddings.float())[0] - losses.mean()) < 1e-6
        assert abs(evaluate(build_loss("dro_kl", gamma=gamma), embeddings)[0] - losses.mean()) < 1 / gamma


def test_identity_27_gradient_holds_the_weights_constant():
    embeddings = raw()
    _, gradient = evaluate(build_loss("dro_kl", gamma=0.2), embeddings)
    losses = pair_losses(embeddings)
    p = torch.softmax(losses / 0.2, dim=0)
    held = torch.autograd.grad((p.detach() * losses).sum(), embeddings, retain_graph=True)[0]
    through = torch.autograd.grad((p * losses).sum(), embeddings)[0]
    close(gradient, held)
    assert (gradient - through).norm() > 0.05 * gradient.norm()


def test_identity_30_a_constant_added_to_every_loss_is_added_to_the_value():
    embeddings = raw()
    value, gradient = evaluate(build_loss("dro_kl", gamma=0.3, margin=3, threshold=0.5), embeddings)
    shifted, same = evaluate(build_loss("dro_kl", gamma=0.3, margin=4.5, threshold=0.5), embeddings)
    close(shifted, value + 1.5)
    close(same, gradient)


def test_identity_31_sampling_is_unbiased_within_three_standard_errors():
    embeddings = raw()
    _, exact = evaluate(build_loss("dro_kl", gamma=0.2), embeddings)
    loss = build_loss("dro_kl", gamma=0.2, samples=30, sampling_seed=1)
    draws = torch.stack([evaluate(loss, embeddings)[1] for _ in range(600)])
    error = (draws.mean(dim=0) - exact).abs() / (draws.std(dim=0) / math.sqrt(600) + 1e-12)
    # 72 components: the largest of 72 standard normal deviates stays below 3.6 in 97.7 % of the seeds.
    assert error.square().mean().sqrt() < 1.5
    assert error.max() < 3.6


@pytest.mark.parametrize(
    ("name", "knobs"),
    [("dro_kl", {"gamma": 0.2, "samples": 9}), ("margin_dws", {}), ("margin_semihard", {"margin": 0.6})],
)
def test_identity_31_random_losses_repeat_with_their_seed_and_continue_from_a_checkpoint(name, knobs):
    embeddings = raw()
    first, second = (build_loss(name, sampling_seed=3, **knobs) for _ in range(2))
    trace = [evaluate(first, embeddings)[0].item() for _ in range(6)]
    assert [evaluate(second, embeddings)[0].item() for _ in range(3)] == trace[:3]
    assert len(set(trace)) > 1
    restored = build_loss(name, sampling_seed=99, **knobs)
    restored.load_state_dict(second.state_dict())
    copied = copy.deepcopy(second)
    for loss in (restored, copied, second):
        assert [evaluate(loss, embeddings)[0].item() for _ in range(3)] == trace[3:]


@pytest.mark.parametrize("knobs", [{}, {"samples": 5}, {"weights": "expm1"}, {"samples": 5, "weights": "expm1"}])
def test_identity_31_without_any_loss_value_and_gradient_are_zero(knobs):
    embeddings = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]].requires_grad_()
    value, gradient = evaluate(build_loss("dro_kl", gamma=0.2, **knobs), embeddings, torch.tensor([0, 0, 1, 1]))
    assert abs(value) < 1e-15
    assert (gradient == 0).all()


def test_identity_32_expm1_weights_skip_zero_losses_and_tend_to_softmax():
    embeddings = raw()
    loss = build_loss("dro_kl", gamma=0.2, weights="expm1")
    evaluate(loss, embeddings)
    (p,) = loss._p
    losses = Margin(0.2, 0.5)(Pairs.of(normalise(embeddings.detach()), LABELS))[0].reshape(1, -1)
    assert ((losses == 0) & torch.ones(12, 12).triu(1).bool().reshape(1, -1)).any()
    assert (p[losses == 0] == 0).all()
    close(p.sum(), torch.tensor(1.0, dtype=torch.float64))
    hard = {"gamma": 0.02, **WIDE}
    close(
        evaluate(build_loss("dro_kl", weights="expm1", **hard), embeddings)[1],
        evaluate(build_loss("dro_kl", **hard), embeddings)[1],
    )


def test_identity_33_grouped_kl_with_gamma_one_has_the_gradient_of_lifted_structure():
    embeddings = raw()
    lifted = build_loss("lifted_structure")
    _, expected = evaluate(lifted, embeddings)
    _, gradient = evaluate(build_loss("dro_kl_grouped", gamma=1, reduction="sum", **WIDE), embeddings)
    S = lifted._last[0]
    brackets = torch.logsumexp((0.5 - S.similarity).masked_fill(~S.positive, -torch.inf), 1) + torch.logsumexp(
        (S.similarity - 0.5).masked_fill(~S.negative, -torch.inf), 1
    )
    assert (brackets > 0).all()
    close(gradient, expected)


class Anchorwise(AnchorwiseLoss):
    """A new method in one line: pair loss and set are chosen by the test."""

    name = "test"


ALPHA, BETA, LAMBDA = 2.0, 40.0, 0.5


def test_identity_34_a_null_pair_and_linear_losses_give_multi_similarity():
    embeddings = raw()
    value, gradient = evaluate(build_loss("multi_similarity", epsilon=2.0), embeddings)  # slack 2 keeps every pair
    robust = Anchorwise(Linear(LAMBDA), Entropic(1 / ALPHA, null=True), Entropic(1 / BETA, null=True))
    got, got_gradient = evaluate(robust, embeddings)
    close(got_gradient, gradient)
    batch = Batch(embeddings, LABELS)
    counts = [math.log(len(P) + 1) / ALPHA + math.log(len(N) + 1) / BETA for P, N in zip(batch.P, batch.N, strict=True)]
    close(got + sum(counts) / 12, value)


def test_identity_35_with_margin_losses_the_thresholds_move_apart():
    embeddings = raw()
    margin = 3.0
    robust = Anchorwise(Margin(margin, LAMBDA), Entropic(1 / ALPHA, null=True), Entropic(1 / BETA, null=True))
    _, gradient = evaluate(robust, embeddings)
    batch = Batch(embeddings, LABELS)
    total = batch.zero
    for i in range(12):
        pull = torch.stack([batch.zero] + [-ALPHA * (batch.S[i, p] - (LAMBDA + margin)) for p in batch.P[i]])
        push = torch.stack([batch.zero] + [BETA * (batch.S[i, n] - (LAMBDA - margin)) for n in batch.N[i]])
        total = total + torch.logsumexp(pull, 0) / ALPHA + torch.logsumexp(push, 0) / BETA
    close(gradient, torch.autograd.grad(total / 12, embeddings)[0])


@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_identity_36_grouped_kl_has_the_gradient_of_hap2s(gamma):
    embeddings = raw()
    _, hap2s = evaluate(build_loss("hap2s", gamma=gamma, margin=2.0), embeddings)  # margin 2: every hinge is active
    _, grouped = evaluate(build_loss("dro_kl_grouped", gamma=gamma, reduction="sum", **WIDE), embeddings)
    close(grouped, 12 * hap2s)


def test_identity_37_grouped_kl_goes_from_group_means_to_batch_hard():
    embeddings = raw()
    batch = Batch(embeddings, LABELS)
    mean, hard = batch.zero, batch.zero
    for i in range(12):
        for group in (batch.P[i], batch.N[i]):
            losses = torch.stack([margin_loss(batch, i, j, 3.0, 0.5) for j in group])
            mean, hard = mean + losses.mean() / 12, hard + losses.max() / 12
    assert evaluate(build_loss("dro_kl_grouped", gamma=1e6, **WIDE), embeddings)[0] == pytest.approx(
        mean.item(), rel=1e-6
    )
    assert evaluate(build_loss("dro_kl_grouped", gamma=1e-6, **WIDE), embeddings)[0] == pytest.approx(
        hard.item(), rel=1e-5
    )


@pytest.mark.parametrize("gamma", [1.0, 0.001])
@pytest.mark.parametrize("labels", [[0] * 6, list(range(6)), [0, 0, 0, 0, 0, 1]])
def test_identity_38_an_empty_group_contributes_nothing(labels, gamma):
    embeddings = raw(6)
    loss = build_loss("dro_kl_grouped", gamma=gamma, drop_zeros=False)
    value, gradient = evaluate(loss, embeddings, torch.tensor(labels))
    batch = Batch(embeddings, torch.tensor(labels))
    total = 0.0
    for i in range(6):
        for group in (batch.P[i], batch.N[i]):
            if group:
                losses = torch.stack([margin_loss(batch, i, j, 0.2, 0.5) for j in group])
                total += gamma * (torch.logsumexp(losses / gamma, 0).item() - math.log(len(group))) / 6
    assert value.item() == pytest.approx(total, rel=1e-10)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["dro_kl", "dro_kl_grouped"])
@pytest.mark.parametrize("gamma", [1e-3, 1e-6])
def test_identity_39_tiny_gamma_is_finite_in_single_precision(name, gamma):
    embeddings = torch.tensor([[1.0, 0], [-1.0, 0], [1.0, 0.01], [-1.0, 0.02]], requires_grad=True)  # losses to 1.7
    value, gradient = evaluate(build_loss(name, gamma=gamma), embeddings, torch.tensor([0, 0, 1, 1]))
    assert value.isfinite()
    assert gradient.isfinite().all()
    if name == "dro_kl":
        assert value == pytest.approx(1.7, abs=0.01)


def test_identity_40_margin_gradient_is_the_signed_cosine_gradient_or_nothing():
    close_pair, far_pair = torch.tensor([[1.0, 0.1], [1.0, 0.0]]), torch.tensor([[1.0, 0.1], [0.0, 1.0]])
    for two, label, sign in ((close_pair, 0, 0), (close_pair, 1, 1), (far_pair, 0, -1), (far_pair, 1, 0)):
        embeddings = two.double().requires_grad_()
        _, gradient = evaluate(build_loss("margin_all"), embeddings, torch.tensor([0, label]))
        cosine = torch.nn.functional.cosine_similarity(embeddings[0], embeddings[1], dim=0)
        close(gradient, sign * torch.autograd.grad(cosine, embeddings)[0])


@pytest.mark.parametrize(("label", "b", "slope"), [(0, 2.0, -1.0), (1, 40.0, 1.0)])
def test_identity_41_binomial_at_the_threshold(label, b, slope):
    embeddings = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64, requires_grad=True)
    value, gradient = evaluate(build_loss("binomial"), embeddings, torch.tensor([0, label]))
    close(value, torch.tensor(2 / b * math.log(2), dtype=torch.float64))
    cosine = torch.nn.functional.cosine_similarity(embeddings[0], embeddings[1], dim=0)
    close(gradient, slope * torch.autograd.grad(cosine, embeddings)[0])


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
    embeddings = raw().detach()
    loss = build_loss("dro_topk", k=8, **WIDE)
    assert loss.diagnostics() == {}
    loss(embeddings, LABELS)
    seen = loss.diagnostics()
    assert seen["effective_k"].item() == pytest.approx(8)
    assert seen["p_entropy"].item() == pytest.approx(math.log(8))
    assert seen["active_pairs"].item() == pytest.approx(8 / UNORDERED)
    assert seen["positive_pairs"].item() == pytest.approx(
        len(Batch(embeddings, LABELS).positives) / len(LABELS) / (len(LABELS) - 1)
    )
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


def test_a_batch_without_loss_has_no_effective_pair():
    """With all pairs satisfied no pair has weight, rather than one pair all of it."""
    loss = build_loss("dro_kl", gamma=0.5, drop_zeros=True)
    loss(torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]))
    assert (loss.diagnostics()["p_entropy"], loss.diagnostics()["effective_k"]) == (0, 0)
