"""Files of MLflow runs: the plan, provenance, the report, and the evidence of trials."""

import dataclasses
from pathlib import Path
from unittest.mock import patch

import mlflow
import pytest
import torch
from helpers.stored_runs import StoredRuns
from helpers.toys import METRIC, STEEP, Driver, plan_of, write_sweep

from trainables.context import NETWORK
from trainables.models import build_model
from trainables.models.export import export_network
from tune_dml.planning.study import Search
from tune_dml.record.ledger import trial_folder
from tune_dml.record.state import SweepState, read_state
from tune_dml.report import summary
from tune_dml.space import Knob, Range
from tune_dml.tracking import runs
from tune_dml.tracking.files import _files_under, typical_trial
from tune_dml.tracking.tracker import _FINAL_ATTEMPTS, Tracker


def left(seen):
    """Trial key -> the files in its run, by path."""
    return {key: seen.files(run) for key, run in seen.by_key.items()}


def test_the_plan_and_every_sessions_provenance_are_attached(driver, tracker, mlflow_has):
    tracker().sync()
    driver.session()
    tracker().sync()
    seen = mlflow_has()
    (run,) = seen.parents
    assert {entry.path for entry in seen.client.list_artifacts(run.info.run_id)} == {"plan.json", "sessions"}
    entries = seen.client.list_artifacts(run.info.run_id, "sessions")
    assert [entry.path for entry in entries] == ["sessions/1.json", "sessions/2.json"]


def test_attaching_again_replaces(tmp_path, driver, tracker, mlflow_has):
    driver.run(*driver.trials)
    folder = tmp_path / "report"
    (folder / "figures").mkdir(parents=True)
    for name in ("index.html", "figures/one.svg", "figures/two.svg"):
        (folder / name).write_text(name)
    files = [folder / "index.html", folder / "figures" / "one.svg", folder / "figures" / "two.svg"]
    (folder / "secret.txt").touch()  # the user's
    assert tracker().attach(folder, files) is None
    assert mlflow_has().parents[0].info.status == "FINISHED"  # nothing else writes the sweep to this store
    (folder / "index.html").write_text("new")
    assert tracker().attach(folder, files[:2]) is None
    seen = mlflow_has()
    run_id = seen.parents[0].info.run_id
    assert sorted(_files_under(seen.client, run_id, "report")) == ["report/figures/one.svg", "report/index.html"]
    place = seen.client.download_artifacts(run_id, "report/index.html", str(tmp_path / "."))
    assert Path(place).read_text() == "new"
    assert seen.client.get_experiment_by_name("toys").artifact_location.startswith(tmp_path.as_uri())


def test_an_unfinished_search_is_killed_in_a_new_store(tmp_path, uri):
    search = Search("random", num_samples=2)
    driver = Driver(tmp_path / "sweeps" / "toy", plan_of(Knob("loss.margin", Range(0.1, 1.0)), search=search))
    driver.session()
    assert Tracker(read_state(driver.folder), uri, "toys").attach(Path(), []) is None
    assert StoredRuns(uri).states() == {"parent": "KILLED"}


def test_a_report_is_printed_before_its_upload(tmp_path, command_line, capsys):
    results = write_sweep(tmp_path / "sweeps" / "demo", means=STEEP, evidence=False)
    printed: list[str] = []

    def attach(*_):
        printed.append(capsys.readouterr().out)
        return "the bucket is away"

    with patch.object(Tracker, "attach", side_effect=attach):
        code, rest, _ = command_line("report", "demo", "--storage", results.folder.parent)
    assert code == 0
    assert "Report:  " in printed[0]
    assert rest.startswith("MLflow:  the report is not attached: the bucket is away")


def test_attaching_never_raises(driver, tracker, tmp_path):
    assert "must answer" in str(tracker(uri="http://127.0.0.1:9/").attach(Path(), []))
    unborn = Driver(tmp_path / "unborn", driver.plan)
    assert Tracker(SweepState(unborn.folder, unborn.plan), "sqlite:////nowhere/x.db", "toys").attach(Path(), [])


@pytest.mark.slow
def test_files_of_trials_are_stored_once_after_replays(driver, tracker, mlflow_has):
    first, second, third, going = driver.trials
    for trial in (first, second, going):
        driver.leave(trial, evidence="{}", sheet=f"picture of {trial.key}")
    driver.run(first, second, third)
    driver.started(going)  # its files so far are not final
    expected = {
        trial.key: {"evidence/evidence.json": "{}", "evidence/sheet.jpg": f"picture of {trial.key}"}
        for trial in (first, second)
    } | {third.key: {}, going.key: {}}
    one = tracker()
    assert one.sync().error is None
    assert left(mlflow_has()) == expected
    one.sync()
    tracker().sync()
    (driver.folder / "mlflow.json").unlink()
    tracker().sync()
    assert left(mlflow_has()) == expected
    driver.ended(going)
    assert tracker().stop().error is None
    assert left(mlflow_has())[going.key]["evidence/sheet.jpg"] == f"picture of {going.key}"


def test_files_are_sent_once(driver, tracker, monkeypatch):
    for trial in driver.trials:
        driver.leave(trial, evidence="{}")
        driver.run(trial)
    tracker().sync()
    one = tracker()
    one.sync()
    monkeypatch.setattr(one._runs.client, "log_artifacts", lambda *arguments: pytest.fail("sent again"))
    driver.session()
    one.sync()
    other = tracker()
    other._runs.client = one._runs.client
    assert other.sync().error is None


@pytest.mark.slow
def test_metrics_do_not_wait_for_files(driver, tracker, mlflow_has, monkeypatch):
    for trial in driver.trials[:2]:
        driver.leave(trial, evidence="{}")
        driver.run(trial)
    asked: list[str] = []
    make = runs.open_client

    def opened(uri):
        found = make(uri)

        def refuse(run_id, *rest):
            asked.append(run_id)
            raise ConnectionError("the bucket is away")

        found.log_artifacts = refuse
        return found

    monkeypatch.setattr(runs, "open_client", opened)
    said: list[str] = []
    one = tracker(say=said.append)
    report = one.sync()
    assert report.error == "the bucket is away"
    assert report.waiting == 2
    assert one.sync().error is None  # not computed again before the end
    assert len(asked) == 1
    assert one.stop().error == "the bucket is away"
    assert len(said) == 1  # not "up to date again" in between
    assert len(asked) == 1 + _FINAL_ATTEMPTS
    seen = mlflow_has()
    assert {run.info.status for run in seen.children} == {"FINISHED"}
    assert left(seen) == {trial.key: {} for trial in driver.trials[:2]}
    monkeypatch.setattr(runs, "open_client", make)
    assert tracker().sync().error is None
    assert all(left(mlflow_has()).values())


@pytest.fixture(scope="module")
def network():
    """One for all, some pictures, and its file: writing that takes half a second."""
    made = build_model(embedding_dim=8, in_channels=1, image_size=16).eval()
    pictures = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    return made, pictures, export_network(made, pictures)


@pytest.fixture
def kept(tmp_path, uri, network):
    """Return a sweep whose best configuration kept its networks, and a function that attaches its report."""
    results = write_sweep(tmp_path / "sweeps" / "demo", means={0.1: STEEP[0.1], 0.9: STEEP[0.9]}, evidence=False)
    (results.folder / "mlflow.json").unlink()
    judgement = summary(results).judgement
    for trial in results.trials:
        if trial.cell.label == judgement.best:
            (trial_folder(results.folder, trial.key) / NETWORK).write_bytes(network[2])

    def attach(judgement=judgement):
        assert Tracker(read_state(results.folder), uri, "toys").attach(Path(), [], judgement) is None
        seen = StoredRuns(uri, "demo")
        (experiment,) = {run.info.experiment_id for run in seen.runs}
        return seen, seen.client.search_logged_models([experiment])

    return results, judgement, attach


@pytest.mark.slow
def test_the_best_network_is_stored_once_and_loads_without_our_code(kept, network, uri, monkeypatch):
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
def test_a_new_best_network_replaces_the_old_one(kept):
    results, judgement, attach = kept
    attach()
    other = next(cell.label for cell in results.cells if cell.label != judgement.best)
    seen, models = attach(dataclasses.replace(judgement, best=other))
    assert "weights are not stored" in seen.parents[0].data.tags["mlflow.note.content"]
    for trial in results.trials:
        if trial.cell.label == other:
            source = next(t for t in results.trials if t.cell.label == judgement.best)
            content = (trial_folder(results.folder, source.key) / NETWORK).read_bytes()
            (trial_folder(results.folder, trial.key) / NETWORK).write_bytes(content)
    _, models = attach(dataclasses.replace(judgement, best=other))
    assert [model.tags["cell"] for model in models] == [other]


def test_the_network_is_that_of_the_seed_closest_to_the_mean(kept):
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
