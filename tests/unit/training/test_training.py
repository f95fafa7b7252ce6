"""The training loop: deterministic, resumes bit-identically, never trains on a loss that is not finite."""

import hashlib
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers.costly import slow_after
from helpers.trials import TASKS, Killed, config_of, poison, run, without_time

from trainables import generators, training
from trainables.context import TrialContext
from trainables.errors import ConfigError, Diverged
from trainables.losses import LOSSES, Loss
from trainables.losses.triplet import TripletLoss
from trainables.tasks.retrieval import RetrievalLearner, RetrievalTask

SMALL = {**TASKS["retrieval"], "batch.sampler": "m_per_class", "batch.batch_size": 9}
VARIANTS = {
    "plain": SMALL,
    "triplet + sec-ema": {**SMALL, "regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": 0.1},
    "proxy anchor": {**SMALL, "loss.name": "proxy_anchor"},
    "sampled dro": {**SMALL, "loss.name": "dro_kl", "loss.gamma": 0.5, "loss.samples": 20},
    "bn head": {**SMALL, "model.head": "bn_fc", "loss.name": "multi_similarity"},
    "sgd, decay": {**SMALL, "optim.name": "sgd", "optim.lr_schedule": "milestones", "optim.lr_milestones": [25]},
    **{name: TASKS[name] for name in ("face_recognition", "contrastive")},
    "random numbers of a method": {**SMALL, "loss.name": "drawing"},
}


class RandomLoss(Loss):
    """A cosine loss times random numbers, like reference code that samples its negatives by numpy."""

    name, citation, section = "drawing", "nobody", "1"

    def value(self, embeddings, labels):
        chance = np.random.random() + np.random.standard_normal() + random.random() + float(torch.rand(()))
        same = labels[:, None] == labels
        return (embeddings @ embeddings.T).where(same, -(embeddings @ embeddings.T)).tanh().mean() * chance


CUTS = [(name, 20) for name in VARIANTS if name != "plain"]
CUTS += [("triplet + sec-ema", 25), ("sampled dro", 40), ("contrastive", 25), ("random numbers of a method", 40)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train a variant without interruption, once; return its end, rows and folder."""

    @cache
    def trained(variant):
        folder = tmp_path_factory.mktemp("whole")
        return *run(config_of(VARIANTS[variant]), folder), folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LOSSES.data, "drawing", RandomLoss)
        yield trained


@pytest.mark.parametrize(("variant", "killed_at"), slow_after(1, CUTS))
def test_a_killed_trial_resumes_bit_identically(whole, tmp_path, variant, killed_at):
    """Killed when a checkpoint is written, or five steps later; rows come every 20 steps, directions are looked at every 25."""
    config = config_of(VARIANTS[variant])
    uncut, rows, folder = whole(variant)
    with pytest.raises(Killed):
        run(config, tmp_path, stop_after=killed_at)
    np.random.standard_normal(3)  # of which the second half of a pair stays behind
    resumed, again = run(config, tmp_path)
    assert resumed.metrics == uncut.metrics
    by_step = {row["step"]: without_time(row) for row in rows}
    for row in again:
        assert without_time(row) == by_step[row["step"]]
    assert {row["step"] for row in again} >= {step for step in by_step if step > killed_at // 20 * 20}
    state, other = last_checkpoint(folder), last_checkpoint(tmp_path)
    for name, tensor in state["task"].items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, other["task"][name]), name


def last_checkpoint(folder):
    return TrialContext(folder, torch.device("cpu")).latest_checkpoint()


@pytest.mark.parametrize("variant", slow_after(1, ["plain", "random numbers of a method"]))
def test_the_same_seed_gives_the_same_numbers_and_another_seed_does_not(whole, tmp_path, variant):
    one, rows, _ = whole(variant)
    two, others = run(config_of(VARIANTS[variant]), tmp_path / "b")
    other, _ = run(config_of(VARIANTS[variant], seed=1), tmp_path / "c")
    assert one.metrics == two.metrics
    assert list(map(without_time, others)) == list(map(without_time, rows))
    assert one.metrics != other.metrics


def test_generator_states_survive_a_checkpoint(tmp_path):
    np.random.standard_normal(1)
    torch.save(generators.states(), tmp_path / "states.pt")
    expected = np.random.standard_normal(3), random.random(), torch.rand(3)
    generators.restore(torch.load(tmp_path / "states.pt", weights_only=True))
    again = np.random.standard_normal(3), random.random(), torch.rand(3)
    assert all(np.array_equal(one, other) for one, other in zip(expected, again, strict=True))


def test_identity_02_eta_zero_is_the_baseline_bit_for_bit(whole, tmp_path):
    plain, rows, folder = whole("plain")
    zero, with_sec = run(config_of(SMALL, regularizer__name="sec", regularizer__eta=0.0), tmp_path)
    assert [row["train/loss"] for row in rows] == [row["train/loss"] for row in with_sec]
    assert zero.metrics["val/recall_at_1"] == plain.metrics["val/recall_at_1"]
    weights = [last_checkpoint(where)["task"] for where in (folder, tmp_path)]
    for name in weights[0]:
        if name.startswith("network."):
            assert torch.equal(weights[0][name], weights[1][name])


def test_rows_carry_mechanism_figures_and_steps_grow(whole):
    last, rows, _ = whole("triplet + sec-ema")
    assert [row["step"] for row in rows] == [20, 25, 40, 50, 60]
    assert last.metrics["val/recall_at_1"] == rows[-1]["val/recall_at_1"]
    for row in rows:
        assert {"train/loss", "train/norm_mean", "train/norm_variance", "train/mu", "train/eta"} <= set(row)
    assert "val/recall_at_1" in rows[0]
    assert "val/recall_at_1" not in rows[1]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"seed": 1}, {"regularizer__eta": 0.25}, {"training__micro_batch": 3}])
def test_a_checkpoint_of_another_trial_is_skipped(whole, tmp_path, change):
    """As after copying a folder; a resumed trial may have another micro-batch."""
    _, _, folder = whole("triplet + sec-ema")
    (tmp_path / "checkpoint.pt").write_bytes((folder / "checkpoint.pt").read_bytes())
    said, resumed = [], []
    context = TrialContext(tmp_path, torch.device("cpu"), say=said.append, on_resume=resumed.append)
    training.train(config_of(VARIANTS["triplet + sec-ema"], **change), context)
    assert bool(resumed) == ("training__micro_batch" in change)
    assert [text.endswith("bytes, of another trial) and is skipped") for text in said] == [True] * (not resumed)


@pytest.mark.parametrize("cause", ["huge learning rate", "nan weights"])
def test_a_loss_that_is_not_finite_ends_the_trial_with_step_and_statistics(tmp_path, monkeypatch, cause):
    settings = {"optim__lr": 1e18, "optim__name": "sgd"} if cause == "huge learning rate" else {}
    if cause == "nan weights":
        poison(monkeypatch, after=6)
    with pytest.raises(Diverged) as error:
        run(config_of(SMALL, **settings), tmp_path)
    assert error.value.step <= 20
    assert ("as weights are not finite" in str(error.value)) == (cause == "nan weights")
    assert "loss" in error.value.statistics or "val/mean_cosine" in error.value.statistics


def test_an_infinite_loss_with_finite_weights_is_named_as_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(TripletLoss, "value", lambda self, embeddings, labels: embeddings.sum() * float("nan"))
    with pytest.raises(Diverged, match="the loss is nan at step 0") as error:
        run(config_of({**SMALL, "loss.name": "triplet"}), tmp_path)
    assert "weights" not in str(error.value)


def test_a_method_that_raises_stop_iteration_does_not_end_the_training_as_if_complete(tmp_path, monkeypatch):
    """Such as `next` of an iterator that is at its end."""
    monkeypatch.setattr(TripletLoss, "value", lambda self, embeddings, labels: next(iter(())))
    with pytest.raises(StopIteration):
        run(config_of({**SMALL, "loss.name": "triplet"}), tmp_path)


def test_a_missing_headline_metric_is_reported_at_the_first_evaluation(tmp_path, monkeypatch):
    named = RetrievalTask.metrics
    monkeypatch.setattr(RetrievalTask, "metrics", lambda self: [*named(self), "val/of_nothing"])
    with pytest.raises(ConfigError, match=r"task retrieval: validate must return every metric .* \['val/of_nothing'\]"):
        run(config_of(SMALL), tmp_path)


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ({"test/leak": 1.0}, r"must begin with val/, but got \['test/leak'\]. .*which seals them"),
        ({"mine": 1.0}, r"must begin with val/, but got \['mine'\]"),
        ({"val/classes": np.ones(3)}, "val/classes: must be a single number, but got 'ndarray'"),
        ({"val/none": None}, "val/none: must be a single number, but got 'NoneType'"),
        ({"val/mine": torch.tensor(2.0)}, None),
    ],
)
def test_a_validation_returns_named_numbers(tmp_path, monkeypatch, figure, said):
    validate = RetrievalLearner.validate

    def with_figure(self):
        evaluation = validate(self)
        return replace(evaluation, figures={**evaluation.figures, **figure})

    monkeypatch.setattr(RetrievalLearner, "validate", with_figure)
    if said is None:
        assert type(run(config_of(SMALL), tmp_path)[1][-1]["val/mine"]) is float
        return
    with pytest.raises(ConfigError, match=f"task retrieval.*{said}"):
        run(config_of(SMALL), tmp_path)


def collapsing(monkeypatch, *, until=10**9):
    """Until step `until`, the head gives all pictures one embedding; then its initial weights return."""
    update, kept = training.update, {}

    def collapse(run):
        head = dict(run.learner.network.head.named_parameters())
        kept.setdefault("head", {name: value.detach().clone() for name, value in head.items()})
        loss = update(run)
        with torch.no_grad():
            for name, value in head.items():
                flat = torch.full_like(value, 1.0 if value.ndim == 1 else 0.0)
                value.copy_(flat if run.state.step < until else kept["head"][name])
        return loss

    monkeypatch.setattr(training, "update", collapse)


@pytest.mark.parametrize("eval_every", slow_after(1, [20, 5, 60]))
def test_a_trial_that_is_collapsed_at_the_end_has_diverged(tmp_path, monkeypatch, eval_every):
    collapsing(monkeypatch)
    rule = r"collapsed by the end: mean pairwise cosine 1\.0000, 1\.0000, 1\.0000"
    with pytest.raises(Diverged, match=rule) as error:
        run(config_of(SMALL, training__eval_every=eval_every), tmp_path)
    assert error.value.step == 60
    assert "val/recall_at_1" in error.value.statistics


def test_close_embeddings_that_find_the_class_of_most_queries_have_not_collapsed(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_watched_cosine", lambda run: 0.9995)
    outcome, _ = run(config_of(SMALL), tmp_path)
    assert outcome.metrics["val/recall_at_1"] >= training._HIGH_RECALL


@pytest.mark.parametrize("until", slow_after(1, [44, 29, 59]))
def test_a_trial_that_recovers_has_finished(tmp_path, monkeypatch, until):
    collapsing(monkeypatch, until=until)
    _, rows = run(config_of(SMALL, training__eval_every=5), tmp_path)
    cosines = [row["val/mean_cosine"] for row in rows if "val/mean_cosine" in row]
    assert sum(cosine > training._COLLAPSE for cosine in cosines) >= until // 5
    assert cosines[-1] <= training._COLLAPSE


@pytest.mark.parametrize(
    ("cosines", "verdict"),
    [
        ((1.0, 1.0, 1.0), True),
        ((0.9999, 0.9998, 0.9999), True),
        ((0.9999, 0.9998, 0.9997), False),  # slowly leaving: an honest small learning rate
        ((1.0, 1 - 1e-8, 1 - 2e-8), True),  # rounding is no recovery
        ((1.0, 1.0, 0.9), False),
        ((0.9, 1.0, 1.0), False),
        ((1.0,), False),  # too short to tell a collapsed network from an untrained one
    ],
)
def test_collapse_is_defined_by_cosine_trend_and_recall(cosines, verdict):
    assert training._has_collapsed(list(cosines)) is verdict


@pytest.mark.slow
@pytest.mark.parametrize("steps", [80, 400])
def test_status_and_metrics_do_not_depend_on_evaluation_frequency(tmp_path, monkeypatch, steps):
    """One embedding for all pictures until shortly before the end, then a recovery."""
    collapsing(monkeypatch, until=0.85 * steps)
    ends = set()
    for every in (steps // 16, steps // 8, steps // 4, steps // 2, steps):
        outcome, _ = run(config_of(SMALL, training__steps=steps, training__eval_every=every), tmp_path / str(every))
        weights = last_checkpoint(tmp_path / str(every))["task"]
        whole = b"".join(part.numpy().tobytes() for part in weights.values() if isinstance(part, torch.Tensor))
        ends.add((tuple(sorted(outcome.metrics.items())), hashlib.sha256(whole).hexdigest()))
    assert len(ends) == 1, ends


@pytest.mark.slow
def test_a_paused_trial_resumes_without_change(whole, tmp_path):
    uncut, rows, _ = whole("triplet + sec-ema")
    config, seen = config_of(VARIANTS["triplet + sec-ema"]), []
    context = TrialContext(tmp_path, torch.device("cpu"), sink=lambda row: seen.append(dict(row)))
    for step in (20, 20, 40):  # twice: a waiting trial is not evaluated again
        paused = training.train(config, replace(context, until=step))
        assert (paused.metrics, paused.step) == ({}, step)
        assert max(row["step"] for row in seen) == step
    assert training.train(config, context).metrics == uncut.metrics
    by_step = {row["step"]: without_time(row) for row in seen}
    assert by_step == {row["step"]: without_time(row) for row in rows}


def test_a_resumed_trial_keeps_its_evaluations(tmp_path, monkeypatch):
    collapsing(monkeypatch)
    config = config_of(SMALL, training__eval_every=10)
    with pytest.raises(Killed):
        run(config, tmp_path, stop_after=50)
    with pytest.raises(Diverged, match=r"1\.0000, 1\.0000, 1\.0000"):
        run(config, tmp_path)


def test_more_classes_in_a_batch_than_exist_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="class"):
        run(config_of(SMALL, batch__batch_size=90), tmp_path)
