"""Test metrics are only in the sealed file of their trial until the sweep is opened, once and on record."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.stored_runs import StoredRuns
from helpers.toys import METRIC, SETTINGS, Driver, opened, plan_of, rho_space, write_sweep
from helpers.trials import TASKS, config_of

import tune_dml
from trainables.context import SEALED, TrialContext, read_sealed
from trainables.errors import ConfigError
from tune_dml import operations
from tune_dml.planning.request import Session
from tune_dml.record.held_out import sealed
from tune_dml.record.held_out.sealed import sealed_metrics
from tune_dml.record.ledger import read_events, trial_folder
from tune_dml.record.results import results_of
from tune_dml.record.state import read_state
from tune_dml.running.trials.trial import run_trial

TEST = "test/recall_at_1"
SMALL = {"means": {0.01: 74.6, 0.1: 72.0}, "seeds": (0, 1)}


@pytest.fixture(autouse=True)
def _database(tmp_path, new_database):
    new_database(tmp_path)


@pytest.fixture(params=["sealed files", "an older version's ledger"])
def sweep(request, tmp_path):
    return write_sweep(tmp_path / "sweeps/toy", **SMALL, baseline=60.0, older=request.param != "sealed files")


def session_of(results, uri=None):
    folder = results.folder.parent
    return Session(folder, tracking_uri=uri or f"sqlite:///{folder.parent}/mlflow.db", experiment="toys")


def planted(results):
    """Return every test value of the sweep by trial, with all its digits."""
    state = read_state(results.folder)
    values = {key: sealed_metrics(results.folder, trial) for key, trial in state.trial_states.items()}
    assert all(TEST in figures for figures in values.values())
    return {key: {name: repr(value) for name, value in figures.items()} for key, figures in values.items()}


def stored(results):
    return StoredRuns(session_of(results).tracking_uri)


def track(results):
    """Bring MLflow up to date, as the end of a session does."""
    (results.folder / "mlflow.json").unlink(missing_ok=True)
    report = operations._tracker(read_state(results.folder), session_of(results)).stop()
    assert report.error is None


def test_a_worker_seals_and_reports_no_test_metric(tmp_path, cache_dir):
    """Checks the trial's messages to the driver and the files in its folder."""
    reported = []
    context = TrialContext(tmp_path, torch.device("cpu"), sink=lambda row: reported.append(dict(row)))
    best = {"evaluation__epoch": "best_validation"}
    config = config_of(TASKS["retrieval"], training__steps=4, training__eval_every=2, **best)
    ended = run_trial(config.settings(), context, cache_dir)
    assert ended.status == "finished"
    values = json.loads((tmp_path / SEALED).read_text())
    assert TEST in values
    assert (tmp_path / SEALED).stat().st_mode & 0o777 == 0o600
    assert "test/" not in json.dumps([ended.to_json(), reported])
    checkpoint = context.latest_checkpoint()
    assert "val/recall_at_1" in checkpoint["best"]
    assert "test/" not in json.dumps([checkpoint["best"], checkpoint["rows"]])


def test_an_unopened_sweep_shows_no_test_value_anywhere(tmp_path):
    results = write_sweep(tmp_path / "sweeps/toy", **SMALL)
    values = {text for figures in planted(results).values() for text in figures.values()}
    track(results)
    sweep = tune_dml.load_sweep("toy", storage=results.folder.parent)
    files = tune_dml.write_report(sweep, tmp_path / "report")
    table = sweep.table()
    assert not sweep.results.opened
    assert not [column for column in table.columns if column.startswith("test/")]
    assert not values & set(table.to_json(double_precision=15).replace(",", " ").split())
    for path in (*results.folder.rglob("*"), *files.folder.rglob("*"), *tmp_path.glob("mlruns/**/*")):
        if path.is_file() and path.name != SEALED:
            text = path.read_bytes().decode("utf-8", "replace")
            assert not [value for value in values if value in text], path
            # the toys' histories hold a test figure, as no worker writes it: whatever shows histories leaves it out
            assert "test/" not in text or path.name == "history.jsonl", path
    assert "opened_test" in json.loads(files.verdicts.read_text())
    seen = stored(results)
    assert len(seen.children) == len(results.trials)
    for run in seen.runs:
        assert not [name for name in run.data.metrics if name.startswith("test/")]


def test_opening_records_who_when_and_for_which_selection(sweep, monkeypatch):
    monkeypatch.setattr(sealed.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(sealed.socket, "gethostname", lambda: "node-7")
    done = operations.open_test("toy", session_of(sweep), selection="table 2 of the paper")
    (event,) = [event for event in read_events(sweep.folder) if event.kind == "opened"]
    assert event.body() == {"user": "ada", "host": "node-7", "cell": "rho=0.01", "selection": "table 2 of the paper"}
    assert done.results.opening.time == event.time
    assert "by ada on node-7, for the selection of rho=0.01 (table 2 of the paper)" in str(done.results.opening)
    assert done.results.opened


@pytest.mark.slow
def test_opened_test_metrics_are_in_tables_reports_and_mlflow_exactly_once(sweep, tmp_path):
    track(sweep)
    values = planted(sweep)
    done = operations.open_test("toy", session_of(sweep))
    assert done.tracking.error is None
    table = done.table().set_index("trial")
    assert {key: repr(number) for key, number in table[TEST].items()} == {k: v[TEST] for k, v in values.items()}
    for _ in range(2):  # again, and after the bookkeeping is lost
        seen = stored(sweep)
        for key, run in seen.by_key.items():
            shown = {name: repr(value) for name, value in run.data.metrics.items() if name.startswith("test/")}
            assert shown == values[key]
            assert len(seen.history(run, TEST)) == 1
        track(sweep)
    files = tune_dml.write_report(done, tmp_path / "report")
    data = json.loads(files.verdicts.read_text())
    assert repr(data["trials"][0]["metrics"][TEST]) == values[data["trials"][0]["trial"]][TEST]
    assert data["opened_test"]["opening"]["cell"] == "rho=0.01"


@pytest.mark.slow
def test_a_trial_that_mlflow_lacks_gets_its_run_with_its_test_metrics(sweep):
    track(sweep)
    key, run = next(iter(stored(sweep).by_key.items()))
    stored(sweep).client.delete_run(run.info.run_id)
    assert operations.open_test("toy", session_of(sweep)).tracking.error is None
    assert TEST in stored(sweep).by_key[key].data.metrics


@pytest.mark.slow
def test_an_unreachable_mlflow_gets_test_metrics_later(sweep, tmp_path):
    track(sweep)
    away = operations.open_test("toy", session_of(sweep, "http://127.0.0.1:9"))
    assert away.results.opened
    assert away.tracking.error
    track(sweep)
    assert all(TEST in run.data.metrics for run in stored(sweep).children)


@pytest.mark.parametrize("text", ["{", "[]", '{"test/x": "1"}', "[" * 100_000], ids=range(4))
def test_damaged_test_figures_are_named(tmp_path, text):
    (tmp_path / SEALED).write_text(text)
    with pytest.raises(ConfigError, match=rf"{SEALED}: the test figures of a trial must be readable"):
        read_sealed(tmp_path)


def test_opening_twice_changes_nothing(sweep):
    first = operations.open_test("toy", session_of(sweep), selection="one")
    before = (sweep.folder / "ledger.jsonl").read_bytes()
    second = operations.open_test("toy", session_of(sweep), selection="two")
    assert second.results.opening == first.results.opening
    assert (sweep.folder / "ledger.jsonl").read_bytes() == before


def test_a_sweep_without_a_finished_trial_cannot_be_opened(tmp_path):
    empty = Driver(tmp_path / "sweeps/empty", plan_of(space=rho_space(fixed=SETTINGS)))
    empty.session()
    before = (empty.folder / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="only a cell that has finished a trial, without diverging"):
        operations.open_test("empty", session_of(empty))
    assert (empty.folder / "ledger.jsonl").read_bytes() == before


def test_only_finished_trials_have_test_metrics(tmp_path):
    results = write_sweep(tmp_path / "toy", **SMALL, failures={("rho=0.1", 1): ("diverged", "nan")})
    trial = next(trial for trial in results.trials if trial.status == "diverged")
    source, target = (trial_folder(results.folder, each.key) / SEALED for each in (results.trials[0], trial))
    shutil.copy(source, target)
    again = {item.key: item for item in opened(results).trials}
    assert TEST not in again[trial.key].metrics
    assert TEST in again[results.trials[0].key].metrics


def test_the_selected_cell_is_the_best_of_those_that_did_not_diverge(tmp_path):
    failures = {("rho=0.01", 0): ("diverged", "nan"), ("rho=0.1", 1): ("failed", "lost")}
    results = write_sweep(tmp_path / "sweeps/toy", **SMALL, sd=0.01, seed_sd=5.0, failures=failures)
    assert operations.open_test("toy", session_of(results)).results.opening.cell == "rho=0.1"


def test_write_report_opens_on_request(sweep, tmp_path):
    loaded = tune_dml.load_sweep("toy", storage=sweep.folder.parent)
    files = tune_dml.write_report(loaded, Path("report"), unseal_test=True)
    assert json.loads(files.verdicts.read_text())["opened_test"]["chosen"] == "rho=0.01"
    assert results_of(sweep.folder).opening.cell == "rho=0.01"
    assert METRIC in loaded.table()
