"""A head on stored features is tested when its sweep is opened, with the test metrics of its trial."""

import json

import numpy as np
import pytest
import torch
from helpers.features import HEAD, stored
from helpers.stored_runs import StoredRuns

import tune_dml
from trainables import training
from trainables.context import SEALED, UNTESTED, TrialContext, read_sealed
from trainables.errors import ConfigError
from trainables.evidence.stored import Hits, hits_file
from trainables.models.pooled import pooled_features
from trainables.resolve import Layer, resolve
from trainables.tasks import build_learner
from trainables.training import evaluate_test, train
from tune_dml import operations
from tune_dml.planning.request import Session
from tune_dml.record.ledger import read_events, trial_folder

SWEEP = """
parameters: {{loss.scale: {{values: [5, 25]}}}}
metric: {{name: val/recall_at_1, goal: maximize}}
dataset: features
data_root: {root}
seeds: 2
fixed: {fixed}
"""


def config(root, **more):
    return resolve(Layer("test", {**HEAD, "data.root": str(root), **more})).config


def context(folder, *, defers_test):
    return TrialContext(folder, torch.device("cpu"), defers_test=defers_test)


@pytest.mark.parametrize(
    "more", [{}, {"model.head": "bn_fc"}, {"evaluation.matched_classes": True}, {"evaluation.epoch": "best_validation"}]
)
def test_a_stored_head_gives_the_test_metrics_of_its_trial(tmp_path, more):
    chosen = config(stored(tmp_path / "f"), **more)
    at_once, later = tmp_path / "at_once", tmp_path / "later"
    metrics = [train(chosen, context(place, defers_test=place == later)).metrics for place in (at_once, later)]
    assert metrics[0] == metrics[1]
    assert not (later / SEALED).exists()
    assert not (later / hits_file("test")).exists()
    assert (later / UNTESTED).stat().st_mode & 0o777 == 0o600
    assert not (at_once / UNTESTED).exists()
    evaluate_test(chosen, context(later, defers_test=False), (later / UNTESTED).read_bytes())
    assert read_sealed(later) == read_sealed(at_once)
    assert "test/recall_at_1" in read_sealed(later)
    assert np.array_equal(Hits.read(later / hits_file("test")).hit, Hits.read(at_once / hits_file("test")).hit)


@pytest.mark.parametrize("more", [{"evaluation.keep": "embeddings"}, {"model.pooling": "gem_learned"}])
def test_trials_that_train_more_than_a_head_test_at_their_end(tmp_path, more):
    place = tmp_path / "t"
    train(config(stored(tmp_path / "f"), **more), context(place, defers_test=True))
    assert "test/recall_at_1" in read_sealed(place)
    assert not (place / UNTESTED).exists()


@pytest.mark.parametrize("damage", [lambda content: content[:100], lambda content: b"{}"])
def test_a_damaged_head_is_refused_in_one_line(tmp_path, damage):
    chosen, place = config(stored(tmp_path / "f")), tmp_path / "t"
    train(chosen, context(place, defers_test=True))
    with pytest.raises(ConfigError, match=r"untested\.pt: the stored head must be whole"):
        evaluate_test(chosen, context(place, defers_test=False), damage((place / UNTESTED).read_bytes()))
    assert not (place / SEALED).exists()


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("more", [{}, {"model.pooling": "gem"}, {"training.precision": "float64"}])
def test_pooled_features_equal_those_of_the_network(tmp_path, views, more):
    learner = build_learner(
        config(stored(tmp_path / "f", views=views), **more), context(tmp_path / "t", defers_test=False)
    )
    assert pooled_features(learner.pictures, learner.network, torch.device("cpu")) is not None
    fast = [learner.batch(learner.network, 3), learner.embed(learner.split.test)]
    learner._pooled = None
    slow = [learner.batch(learner.network, 3), learner.embed(learner.split.test)]
    for one, other in zip(fast, slow, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


@pytest.mark.slow
def test_opening_tests_the_heads_once_and_needs_the_data_of_the_sweep(
    tmp_path, monkeypatch, ray_session, new_database, command_line
):
    new_database(tmp_path)
    root = stored(tmp_path / "f")
    fixed = {name: value for name, value in HEAD.items() if not name.startswith("data.name")}
    (tmp_path / "heads.yaml").write_text(SWEEP.format(root=root, fixed=json.dumps(fixed)))
    here = {"storage": tmp_path / "sweeps", "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    done = tune_dml.run_sweep("heads.yaml", name="heads", **here)
    folders = [trial_folder(done.folder, trial.key) for trial in done.results.trials]
    assert all((folder / UNTESTED).exists() and not (folder / SEALED).exists() for folder in folders)
    root.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="folder of features must exist"):
        tune_dml.open_sweep("heads", **here)
    assert not [event for event in read_events(done.folder) if event.kind == "opened"]
    (tmp_path / "away").rename(root)

    def first_only(config, context, head, **options):
        if any((folder / SEALED).exists() for folder in folders):
            raise KeyboardInterrupt
        evaluate_test(config, context, head, **options)

    with monkeypatch.context() as patched:
        patched.setattr(training, "evaluate_test", first_only)
        with pytest.raises(KeyboardInterrupt):
            tune_dml.open_sweep("heads", **here)
    command_line("sync", "heads", "--storage", here["storage"], "--tracking-uri", here["tracking_uri"])
    told = []
    opened = operations.open_test("heads", Session(**here), progress=lambda *done: told.append(done))
    assert told == [(1, 3), (2, 3), (3, 3)]  # the interrupted opening has tested one of four
    table = opened.table().set_index("trial")
    for run in StoredRuns(here["tracking_uri"], "heads").children:
        assert (
            run.data.metrics["test/recall_at_1"] == table["test/recall_at_1"][run.data.tags["tune_dml.trial_key"][-16:]]
        )
    for folder, trial in zip(folders, done.results.trials, strict=True):
        place = tmp_path / "alone" / trial.key
        train(done.results.plan.trial(trial.cell, trial.seed).config, context(place, defers_test=False))
        assert table["test/recall_at_1"][trial.key] == read_sealed(place)["test/recall_at_1"]
        assert not (folder / UNTESTED).exists()
