"""Directions, norms and maps of the same pictures over training, against naive loops and training itself."""

import io
import itertools
import json
import math

import numpy as np
import pytest
import torch
from helpers.costly import slow_after
from helpers.trials import TASKS, Killed, config_of, learner_of, run
from PIL import Image

from trainables import training
from trainables.evidence import watched
from trainables.evidence.feature_maps import _CHANNELS, _heat, _most_active, draw_feature_maps
from trainables.evidence.record import Evidence, Snapshot

LONGER = {"training__steps": 60, "training__eval_every": 20}


def evidence_in(folder):
    return Evidence.read(folder / "evidence")


def test_followed_pictures_are_spread_over_the_watched_and_are_all_of_few():
    assert watched._followed_rows(256).tolist() == [17 * i for i in range(16)]
    assert watched._followed_rows(3).tolist() == [0, 1, 2]


def test_a_snapshot_has_the_norms_and_the_histogram_of_the_turns():
    before, after = (torch.randn(40, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    units = [torch.nn.functional.normalize(part) for part in (before, after)]
    first, second = watched.snapshot(0, before, None, units[0]), watched.snapshot(25, 3 * after, *units)
    assert first.turns is None
    assert first.norms == pytest.approx(before.norm(dim=1)[watched._followed_rows(40)].tolist(), abs=1e-5)
    assert second.norms == pytest.approx((3 * after).norm(dim=1)[watched._followed_rows(40)].tolist(), abs=1e-5)
    spread = watched.turn_statistics(*units)
    assert sum(second.turns.counts) == 40
    assert second.turns.mean == pytest.approx(spread["direction_mean"])
    assert second.turns.variance == pytest.approx(spread["direction_variance"])
    assert watched.snapshot(25, torch.full((4, 2), torch.inf), None, torch.ones(4, 2)) is None


def test_snapshots_are_bounded_and_keep_the_first_and_the_last():
    snapshots = []
    for step in range(1000):
        snapshots = watched.append_snapshot(snapshots, Snapshot(step, (1.0,), None))
    assert len(snapshots) <= watched._MAX_SNAPSHOTS
    assert (snapshots[0].step, snapshots[-1].step) == (0, 999)
    assert watched.append_snapshot(snapshots, None) is snapshots
    stored = json.dumps(training._SNAPSHOTS.dump_python(snapshots))
    assert training._SNAPSHOTS.validate_python(json.loads(stored)) == snapshots


@pytest.mark.parametrize("name", slow_after(1, sorted(TASKS, reverse=True)))
def test_a_trial_leaves_the_norms_of_the_same_pictures_and_a_resumed_one_the_same(tmp_path, name):
    config = config_of(TASKS[name], **LONGER)
    _, rows = run(config, tmp_path / "whole")
    found = evidence_in(tmp_path / "whole").watched
    learner = learner_of(config, tmp_path / "other")
    assert set(found.pictures) <= set(learner.split.train.tolist())
    assert [snapshot.step for snapshot in found.snapshots] == [0, 25, 50]
    turned = {row["step"]: row["train/direction_variance"] for row in rows if "train/direction_variance" in row}
    assert {snapshot.step: snapshot.turns.variance for snapshot in found.snapshots[1:]} == pytest.approx(turned)
    assert {len(snapshot.norms) for snapshot in found.snapshots} == {len(found.pictures)}
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", stop_after=40)
    run(config, tmp_path / "cut")
    assert evidence_in(tmp_path / "cut").watched == found


@pytest.mark.slow
def test_feature_maps_are_drawn_on_request_and_change_no_result(tmp_path):
    config = config_of(TASKS["retrieval"], **LONGER, evaluation__feature_maps=True)
    plain = config_of(TASKS["retrieval"], **LONGER)
    assert plain.digest() == config.digest()
    seen, _ = run(config, tmp_path / "maps")
    blind, _ = run(plain, tmp_path / "none")
    assert seen.metrics == blind.metrics
    assert not (tmp_path / "none" / "evidence" / "maps.jpg").exists()
    drawn = (tmp_path / "maps" / "evidence" / "maps.jpg").read_bytes()
    assert len(drawn) <= 60_000
    Image.open(io.BytesIO(drawn)).load()


def test_the_most_active_channels_come_first_and_the_picture_shows_where(tmp_path):
    maps = torch.zeros(1, 9, 2, 2)
    maps[0, :, 0, 0] = torch.tensor([1.0, 5, 3, 9, 2, 9, 4, 0, 6])
    assert _most_active(maps[0]) == [3, 5, 8, 1, 6, 2]
    corner = np.asarray(_heat(maps[0, 3].double().numpy()).convert("L"), dtype=float)
    assert corner[5, 5] > 200 > 60 > corner[-5, -5]
    assert np.ptp(np.asarray(_heat(np.ones((2, 2))))) < 50  # a constant channel is dark all over
    learner = learner_of(config_of(TASKS["retrieval"]), tmp_path)
    numbers = learner.split.validation[:3]
    found = learner.feature_maps(numbers, learner.pictures)
    assert found.ndim == 4
    assert torch.equal(learner.network.pooling(found), learner.network.features(learner.views.evaluation(numbers)))
    width, _ = Image.open(io.BytesIO(draw_feature_maps(found, numbers, learner.pictures))).size
    assert width > (1 + _CHANNELS) * 64


def naive(before, after):
    """v_i by coordinates, their mean, their biased variance."""
    lengths = []
    for old, new in zip(before.tolist(), after.tolist(), strict=True):
        a, b = math.sqrt(sum(x * x for x in old)), math.sqrt(sum(x * x for x in new))
        lengths.append(math.sqrt(sum((y / b - x / a) ** 2 for x, y in zip(old, new, strict=True))))
    mean = sum(lengths) / len(lengths)
    return mean, sum((v - mean) ** 2 for v in lengths) / len(lengths)


def test_the_spread_equals_that_of_a_naive_loop():
    draw = torch.Generator().manual_seed(1)
    before, after = (torch.randn(30, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    units = [torch.nn.functional.normalize(part, dim=1) for part in (before, after)]
    found = watched.turn_statistics(*units)
    mean, variance = naive(before, after)
    assert found["direction_mean"] == pytest.approx(mean, rel=1e-12)
    assert found["direction_variance"] == pytest.approx(variance, rel=1e-10)


@pytest.mark.parametrize("degrees", [0.0, 1e-4, 60.0, 180.0])
def test_a_common_rotation_has_its_chord_and_no_spread(degrees):
    angle = math.radians(degrees)
    starts = torch.linspace(0, 6, 12, dtype=torch.float64)
    before, after = (torch.stack([phase.cos(), phase.sin()], dim=1) for phase in (starts, starts + angle))
    found = watched.turn_statistics(before, after)
    assert found["direction_mean"] == pytest.approx(2 * math.sin(angle / 2), abs=1e-14)
    assert found["direction_variance"] == pytest.approx(0, abs=1e-25)


def test_directions_that_are_not_finite_are_not_logged():
    assert watched.turn_statistics(torch.ones(2, 2), torch.full((2, 2), float("nan"))) == {}


@pytest.mark.parametrize(("total", "steps"), [(10, 25), (60, 25), (400, 100), (1000, 250), (4000, 1000), (16000, 1000)])
def test_snapshots_are_1000_steps_or_a_quarter_of_training_apart(total, steps):
    assert watched.interval(total, 25) == steps


def test_the_watched_pictures_are_training_pictures_and_follow_the_seed():
    pictures = np.arange(100, 2000, 2)
    found = watched.sample_pictures(pictures, seed=0)
    assert len(set(found.tolist())) == watched._SAMPLE
    assert set(found.tolist()) <= set(pictures.tolist())
    assert (watched.sample_pictures(pictures, seed=0) == found).all()
    assert (watched.sample_pictures(pictures, seed=1) != found).any()
    assert (watched.sample_pictures(pictures[:9], seed=0) == pictures[:9]).all()


@pytest.mark.parametrize("name", slow_after(1, sorted(TASKS, reverse=True)))
def test_a_trial_logs_the_measured_rotation_of_embeddings(tmp_path, name, monkeypatch):
    """The raw embeddings before training, after 25 and after 50 steps, taken from outside."""
    config = config_of(TASKS[name])
    learner = learner_of(config, tmp_path / "other")
    pictures = watched.sample_pictures(learner.split.train, seed=config.seed)
    looks = []

    def look(run):
        state = {k: v.clone() for k, v in run.learner.modules.state_dict().items() if isinstance(v, torch.Tensor)}
        learner.modules.load_state_dict({**learner.modules.state_dict(), **state})
        looks.append(learner.embed(pictures)[0].double())

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
def test_snapshots_change_no_number(tmp_path, monkeypatch):
    own = {"training__steps": 30, "training__eval_every": 30, "task__linear_epochs": 1}
    config = config_of(TASKS["contrastive"], **own)  # its head keeps batch statistics
    seen, rows = run(config, tmp_path / "a")
    monkeypatch.setattr(watched, "interval", lambda total, every: 10**9)
    blind, others = run(config, tmp_path / "b")
    assert {**seen.metrics} == {**blind.metrics}
    assert [row["train/loss"] for row in rows] == [row["train/loss"] for row in others]
