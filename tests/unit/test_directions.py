"""How directions turn between two looks, against a naive loop over training pictures and over training itself."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.costly import slow_after
from helpers.trials import TASKS, config_of, run

from trainables import training
from trainables.context import FolderContext
from trainables.evidence import directions
from trainables.tasks import build_learner


def naive(before, after):
    """v_i by coordinates, their mean, their biased variance."""
    lengths = []
    for old, new in zip(before.tolist(), after.tolist(), strict=True):
        a, b = math.sqrt(sum(x * x for x in old)), math.sqrt(sum(x * x for x in new))
        lengths.append(math.sqrt(sum((y / b - x / a) ** 2 for x, y in zip(old, new, strict=True))))
    mean = sum(lengths) / len(lengths)
    return mean, sum((v - mean) ** 2 for v in lengths) / len(lengths)


def test_the_spread_is_that_of_a_naive_loop():
    draw = torch.Generator().manual_seed(1)
    before, after = (torch.randn(30, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    units = [torch.nn.functional.normalize(part, dim=1) for part in (before, after)]
    found = directions.turn_statistics(*units)
    mean, variance = naive(before, after)
    assert found["direction_mean"] == pytest.approx(mean, rel=1e-12)
    assert found["direction_variance"] == pytest.approx(variance, rel=1e-10)


@pytest.mark.parametrize("degrees", [0.0, 1e-4, 60.0, 180.0])
def test_a_common_turn_has_the_chord_of_its_angle_and_no_spread(degrees):
    angle = math.radians(degrees)
    starts = torch.linspace(0, 6, 12, dtype=torch.float64)
    before, after = (torch.stack([phase.cos(), phase.sin()], dim=1) for phase in (starts, starts + angle))
    found = directions.turn_statistics(before, after)
    assert found["direction_mean"] == pytest.approx(2 * math.sin(angle / 2), abs=1e-14)
    assert found["direction_variance"] == pytest.approx(0, abs=1e-25)


def test_directions_that_are_not_finite_are_not_logged():
    assert directions.turn_statistics(torch.ones(2, 2), torch.full((2, 2), float("nan"))) == {}


@pytest.mark.parametrize(("total", "steps"), [(10, 25), (60, 25), (400, 100), (1000, 250), (4000, 1000), (16000, 1000)])
def test_looks_are_a_thousand_steps_apart_or_a_quarter_of_a_shorter_trial(total, steps):
    assert directions.interval(total, 25) == steps


def test_the_watched_pictures_are_training_pictures_and_follow_the_seed():
    pictures = np.arange(100, 2000, 2)
    found = directions.sample_pictures(pictures, seed=0)
    assert len(set(found.tolist())) == directions._SAMPLE
    assert set(found.tolist()) <= set(pictures.tolist())
    assert (directions.sample_pictures(pictures, seed=0) == found).all()
    assert (directions.sample_pictures(pictures, seed=1) != found).any()
    assert (directions.sample_pictures(pictures[:9], seed=0) == pictures[:9]).all()


@pytest.mark.parametrize("name", slow_after(1, sorted(TASKS, reverse=True)))
def test_a_trial_logs_what_a_second_look_at_its_network_finds(tmp_path, name, monkeypatch):
    """The raw embeddings before training, after 25 and after 50 steps, taken from outside."""
    config = config_of(TASKS[name])
    learner = build_learner(config, FolderContext(tmp_path / "other", torch.device("cpu")))
    watched = directions.sample_pictures(learner.split.train, seed=config.seed)
    looks = []

    def look(run):
        state = {k: v.clone() for k, v in run.learner.modules.state_dict().items() if isinstance(v, torch.Tensor)}
        learner.modules.load_state_dict({**learner.modules.state_dict(), **state})
        looks.append(learner.embed(watched)[0].double())

    update = training.update

    def watching(run):
        if not run.state.step:
            look(run)
        loss = update(run)
        if run.state.step + 1 in (25, 50):
            look(run)
        return loss

    monkeypatch.setattr(training, "update", watching)
    _, rows = run(config, tmp_path / "own")
    found = {row["step"]: row for row in rows if "train/direction_mean" in row}
    assert list(found) == [25, 50]
    for (before, after), row in zip(itertools.pairwise(looks), found.values(), strict=True):
        mean, variance = naive(before, after)
        assert row["train/direction_mean"] == pytest.approx(mean, rel=1e-5)
        assert row["train/direction_variance"] == pytest.approx(variance, rel=1e-4)
        assert 0 < row["train/direction_variance"] < 1


@pytest.mark.slow
def test_looking_changes_no_number(tmp_path, monkeypatch):
    own = {"training__steps": 30, "training__eval_every": 30, "task__linear_epochs": 1}
    config = config_of(TASKS["contrastive"], **own)  # its head keeps batch statistics
    seen, rows = run(config, tmp_path / "a")
    monkeypatch.setattr(directions, "interval", lambda total, every: 10**9)
    blind, others = run(config, tmp_path / "b")
    assert {**seen.metrics} == {**blind.metrics}
    assert [row["train/loss"] for row in rows] == [row["train/loss"] for row in others]
