"""The best configuration is a LoggedModel of MLflow where its networks were kept, and one alone."""

import dataclasses

import mlflow
import pytest
import torch
from helpers.stored_runs import StoredRuns
from helpers.toys import METRIC, STEEP, write_sweep

from trainables.context import NETWORK
from trainables.models import build_model
from trainables.models.exported import exported
from tune_dml.record.ledger import trial_folder
from tune_dml.record.state import read_state
from tune_dml.report import summary
from tune_dml.tracking.best_model import typical_trial
from tune_dml.tracking.tracker import Tracker


@pytest.fixture(scope="module")
def network():
    """One for all, some pictures, and its file: writing that takes half a second."""
    made = build_model(embedding_dim=8, in_channels=1, image_size=16).eval()
    pictures = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    return made, pictures, exported(made, pictures)


@pytest.fixture
def kept(tmp_path, uri, network):
    """A sweep whose best configuration kept its networks, and a function that attaches what a report says of it."""
    results = write_sweep(tmp_path / "sweeps" / "demo", means={0.1: STEEP[0.1], 0.9: STEEP[0.9]}, evidence=False)
    (results.folder / "mlflow.json").unlink()
    judgement = summary(results).judgement
    for trial in results.trials:
        if trial.cell.label == judgement.best:
            (trial_folder(results.folder, trial.key) / NETWORK).write_bytes(network[2])

    def attach(judgement=judgement):
        assert Tracker(read_state(results.folder), uri, "toys").attach([], "report", judgement) is None
        seen = StoredRuns(uri, "demo")
        (experiment,) = {run.info.experiment_id for run in seen.runs}
        return seen, seen.client.search_logged_models([experiment])

    return results, judgement, attach


@pytest.mark.slow
def test_it_is_there_once_and_loads_without_our_code(kept, network, uri, monkeypatch):
    (_, judgement, attach), (made, pictures, _) = kept, network
    attach()
    seen, models = attach()
    (model,) = models
    assert str(model.status) == "READY"
    assert model.tags["cell"] == judgement.best
    source = next(run for run in seen.children if run.info.run_id == model.source_run_id)
    assert source.data.tags["cell"] == judgement.best
    (parent,) = seen.parents
    assert [output.model_id for output in parent.outputs.model_outputs] == [model.model_id]
    assert f"models:/{model.model_id}" in parent.data.tags["mlflow.note.content"]
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", uri)
    loaded = mlflow.pytorch.load_model(f"models:/{model.model_id}")
    with torch.no_grad():
        torch.testing.assert_close(loaded(pictures), made(pictures))


@pytest.mark.slow
def test_another_best_takes_its_place_and_one_without_networks_has_none(kept):
    results, judgement, attach = kept
    attach()
    other = next(cell.label for cell in results.cells if cell.label != judgement.best)
    seen, models = attach(dataclasses.replace(judgement, best=other))
    assert "no weights are kept" in seen.parents[0].data.tags["mlflow.note.content"]
    for trial in results.trials:
        if trial.cell.label == other:
            source = next(t for t in results.trials if t.cell.label == judgement.best)
            content = (trial_folder(results.folder, source.key) / NETWORK).read_bytes()
            (trial_folder(results.folder, trial.key) / NETWORK).write_bytes(content)
    _, models = attach(dataclasses.replace(judgement, best=other))
    assert [model.tags["cell"] for model in models] == [other]


def test_the_seed_closest_to_the_mean_stands_for_all(kept):
    results, judgement, _ = kept
    state = read_state(results.folder)
    trials = [state.trial(trial.key) for trial in results.trials if trial.cell.label == judgement.best]
    mean = sum(trial.metrics[METRIC] for trial in trials) / len(trials)
    expected = min(trials, key=lambda trial: abs(trial.metrics[METRIC] - mean))
    assert typical_trial(results.folder, trials, METRIC) is expected
    (trial_folder(results.folder, expected.key) / NETWORK).unlink()
    others = [trial for trial in trials if trial is not expected]
    assert typical_trial(results.folder, trials, METRIC) in others
    assert typical_trial(results.folder / "elsewhere", trials, METRIC) is None
