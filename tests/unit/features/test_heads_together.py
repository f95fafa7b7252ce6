"""Heads that train together have the rows, checkpoints and ends of single heads, bit for bit."""

import json
import time

import pytest
import torch
from helpers import features
from helpers.features import stored

from trainables.context import TrialContext
from trainables.errors import ConfigError, Diverged
from trainables.resolve import Layer, resolve
from trainables.together import train_together
from trainables.training import Outcome, train, training
from tune_dml.planning.request import Resources
from tune_dml.running.trials.messages import split_messages
from tune_dml.running.trials.trial import TrialRuntime, _run_group, _split_group, _train_here

HEAD = features.HEAD | {"batch.instances_per_class": 3, "training.steps": 60, "training.eval_every": 30}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("heads") / "features")


def config(root, **more):
    return resolve(Layer("test", {**HEAD, "data.root": str(root), **more})).config


class Trial:
    """A trial with its own folder and the rows that it reported."""

    def __init__(self, folder, config, until=None):
        self.config, self.rows = config, []
        self.context = TrialContext(folder, torch.device("cpu"), sink=self.rows.append, until=until)

    def said(self):
        """Return the rows without times, then the checkpoint without times."""
        rows = [{name: value for name, value in row.items() if name != "time/seconds"} for row in self.rows]
        saved = self.context.latest_checkpoint()
        return rows, saved and {part: saved[part] for part in ("task", "optimizer", "step", "best", "cosines")}


def alike(one, other):
    """Return whether two structures are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one if key != "time/seconds")
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


MIXES = {
    "one loss": [{"loss.scale": scale, "seed": seed} for scale in (5, 25) for seed in (0, 1)],
    "many losses": [
        {"loss.name": name}
        for name in ("triplet", "proxy_anchor", "multi_similarity", "margin_dws", "soft_triple", "semihard_triplet")
    ],
    "regularizers": [
        {"regularizer.name": "sec", "regularizer.eta": eta, "regularizer.rho": rho} for eta, rho in ((0, 1), (1, 0.1))
    ],
    "optimizers and heads": [
        {"optim.name": "sgd", "optim.lr": 0.1},
        {"optim.name": "adam", "optim.weight_decay": 1e-3},
        {"optim.lr": 1e-3, "optim.clip_norm": 0.1},
        {"model.head": "bn_fc", "optim.lr_schedule": "cosine"},
        {"training.precision": "float64"},
    ],
    "lengths": [{"training.steps": steps, "training.eval_every": steps} for steps in (30, 45, 60)],
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_heads_trained_together_equal_single_heads_bit_for_bit(root, tmp_path, mix):
    configs = [config(root, **more) for more in mix]
    alone = [Trial(tmp_path / f"alone{number}", each) for number, each in enumerate(configs)]
    outcomes = [train(trial.config, trial.context) for trial in alone]
    group = [Trial(tmp_path / f"group{number}", each) for number, each in enumerate(configs)]
    together = train_together([training(trial.config, trial.context) for trial in group])
    assert [outcome.metrics for outcome in outcomes] == [outcome.metrics for outcome in together]
    assert all(alike(one.said(), other.said()) for one, other in zip(alone, group, strict=True))


def test_a_head_that_diverges_or_fails_ends_alone(root, tmp_path):
    lost = {"optim.lr": 1e30, "loss.name": "contrastive", "model.head": "bn_fc"}
    configs = [config(root), config(root, **lost), config(root, **{"batch.batch_size": 90})]
    group = [Trial(tmp_path / str(number), each) for number, each in enumerate(configs)]
    kept, diverged, wrong = train_together([training(trial.config, trial.context) for trial in group])
    assert kept.metrics == train(configs[0], Trial(tmp_path / "alone", configs[0]).context).metrics
    with pytest.raises(Diverged) as alone:
        train(configs[1], Trial(tmp_path / "lost", configs[1]).context)
    assert (str(diverged), diverged.step) == (str(alone.value), alone.value.step)
    assert isinstance(wrong, ConfigError)


def test_an_error_of_no_single_trial_ends_all_trials(root, tmp_path):
    trial = Trial(tmp_path / "a", config(root))
    trial.context.at_work = lambda: (_ for _ in ()).throw(SystemExit)
    with pytest.raises(SystemExit):
        train_together([training(trial.config, trial.context)])


def test_a_paused_head_resumes_in_its_group(root, tmp_path):
    chosen = config(root)
    whole = train(chosen, Trial(tmp_path / "whole", chosen).context)
    paused = Trial(tmp_path / "cut", chosen, until=30)
    (pause,) = train_together([training(chosen, paused.context)])
    assert (pause.metrics, pause.step) == ({}, 30)
    again = Trial(tmp_path / "cut", chosen)
    other = Trial(tmp_path / "other", config(root, seed=1))
    ended, _ = train_together([training(trial.config, trial.context) for trial in (again, other)])
    assert ended.metrics == whole.metrics


def test_the_seconds_of_a_group_add_up(root, tmp_path):
    begun = time.perf_counter()
    trials = [Trial(tmp_path / str(seed), config(root, seed=seed)) for seed in range(4)]
    ends = train_together([training(trial.config, trial.context) for trial in trials])
    elapsed = time.perf_counter() - begun
    assert all(isinstance(end, Outcome) and end.seconds > 0 for end in ends)
    assert sum(end.seconds for end in ends) <= elapsed


def request(root, number, **more):
    settings = {**config(root, seed=number, **more).settings(), "seed": number}

    return {"key": f"t{number}", "label": "", "seed": number, "settings": json.dumps(settings), "until": None}


def test_only_heads_of_our_methods_train_together(root, tmp_path, monkeypatch):
    """A third party's method may change its process for the trials that follow."""
    runtime = TrialRuntime(tmp_path, tmp_path, Resources(workers=1))
    heads = [request(root, number) for number in range(10)]
    pictures = request(root, 10) | {"settings": json.dumps({"data.name": "glyphs"})}
    sizes = [len(part) for part in _split_group([*heads, pictures, *heads[:2]], runtime)]
    assert sizes == [5, 5, 1, 2]
    monkeypatch.setattr("tune_dml.running.trials.trial.foreign_packages", lambda settings: {"theirs"})
    assert [len(part) for part in _split_group(heads, runtime)] == [1] * 10


def test_a_group_reports_its_heads_in_sequence(root, tmp_path, monkeypatch):
    """Five train together, then the others; times add up, and each sends the messages of a single head."""
    requests = [request(root, number, **({"optim.lr": 1e30} if number == 3 else {})) for number in range(10)]
    runtime = TrialRuntime(tmp_path, tmp_path / "trials", Resources(workers=1), stall_limit=60.0)
    (tmp_path / "trials").mkdir()
    sent = []
    _run_group(requests, runtime, lambda message: sent.append((time.monotonic(), message)))
    told = [(at, each) for at, message in sent for each in split_messages(message)]
    ends = {each["key"]: (at - each["age"], each["ended"]) for at, each in told if "ended" in each}
    starts = {each["key"]: at - each["begun"] for at, each in told if "begun" in each}
    assert list(ends) == [each["key"] for each in requests]
    assert list(starts) == list(ends)[1:]
    moments = [ends["t0"][0], *(moment for key in list(ends)[1:] for moment in (starts[key], ends[key][0]))]
    assert moments == pytest.approx(sorted(moments), abs=0.01)
    assert sent[-1][1]["over"]
    assert any("over" not in message and len(split_messages(message)) > 5 for _, message in sent), "the first five wait"
    (tmp_path / "alone").mkdir()
    for each in (requests[0], requests[3], requests[9]):
        said = []
        _train_here(each, TrialRuntime(tmp_path, tmp_path / "alone", Resources(workers=1)), said.append)
        rows = [row for _, message in told if message["key"] == each["key"] for row in message.get("rows", [])]
        own = [row for message in said for row in message.get("rows", [])]
        assert [row | {"time/seconds": 0} for row in rows] == [row | {"time/seconds": 0} for row in own]
        (end,) = (message["ended"] for message in said if "ended" in message)
        assert repr(ends[each["key"]][1] | {"seconds": 0}) == repr(end | {"seconds": 0})  # NaN included
