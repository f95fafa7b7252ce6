"""A real sweep's test metrics stay sealed until it is opened, and its winner is measured again on fresh seeds."""

import json

import pytest
from helpers.stored_runs import StoredRuns
from helpers.toys import event_of

import tune_dml
from trainables.context import SEALED, read_sealed
from tune_dml.record.ledger import Ledger, read_events, trial_folder
from tune_dml.report.analysis.cell import best_cells

pytestmark = pytest.mark.slow

TEST = "test/recall_at_1"


@pytest.fixture(scope="module")
def here(a_copy, cache_dir):
    store = f"sqlite:///{a_copy}/mlflow.db"
    return {"storage": a_copy / "sweeps", "tracking_uri": store, "cache_dir": cache_dir, "max_concurrent": 1}


def test_test_metrics_of_a_sweep_are_only_in_sealed_files(a_copy, here):
    results = tune_dml.load_sweep("rho1", storage=here["storage"]).results
    values = set()
    for trial in results.trials:
        file = trial_folder(results.folder, trial.key) / SEALED
        assert file.stat().st_mode & 0o777 == 0o600
        assert TEST in read_sealed(file.parent)
        values |= {repr(value) for value in read_sealed(file.parent).values() if len(repr(value)) > 12}
    seen = {repr(value) for trial in results.trials for value in trial.metrics.values()}
    assert len(values - seen) > len(results.trials)
    for path in a_copy.rglob("*"):
        if path.is_file() and path.name != SEALED and "rho1" in path.parts:
            text = path.read_bytes().decode("utf-8", "replace")
            assert TEST not in text, path
            assert not [value for value in values - seen if value in text], path
    runs = StoredRuns(here["tracking_uri"], "rho1").children
    assert len(runs) == 12
    assert not [name for run in runs for name in run.data.metrics if name.startswith("test/")]


def test_the_winner_is_confirmed_resumed_and_extended(here):
    before = tune_dml.load_sweep("rho1", storage=here["storage"])
    plan = (before.folder / "plan.json").read_bytes()
    baseline, best = before.results.cells[0], next(cell for cell in best_cells(before.results) if not cell.baseline)
    with Ledger(before.folder) as ledger:  # a driver that died at its start
        ledger.write(event_of("confirm", cells=[baseline.digest, best.digest], seeds=[1000, 1001]))
        ledger.write(event_of("started", before.results.plan.trial(best, 1001).key, host="gone"))
    assert tune_dml.load_sweep("rho1", storage=here["storage"]).results.confirmed[3].status == "running"
    more = tune_dml.confirm_sweep("rho1", top=1, seeds=3, **here)  # continues with these, and adds a seed
    assert not more.interrupted
    assert more.exit_code == 0
    assert [(trial.cell.baseline, trial.seed, trial.status, trial.attempts) for trial in more.results.confirmed] == [
        (True, 1000, "finished", 1),
        (False, 1000, "finished", 1),
        (True, 1001, "finished", 1),
        (False, 1001, "finished", 2),
        (True, 1002, "finished", 1),
        (False, 1002, "finished", 1),
    ]
    length = len(read_events(before.folder))
    again = tune_dml.confirm_sweep("rho1", top=1, seeds=2, **here)
    assert [event.kind for event in read_events(before.folder)[length:]] == ["session"]
    assert (before.folder / "plan.json").read_bytes() == plan
    assert more.table()["trial"].tolist() == before.table()["trial"].tolist()
    assert again.results.trials == before.results.trials
    runs = StoredRuns(here["tracking_uri"], "rho1").children
    assert len(runs) == 18
    apart = [run for run in runs if run.data.tags.get("tune_dml.confirmation") == "true"]
    assert {run.info.status for run in apart} == {"FINISHED"}
    assert sorted(run.data.tags["seed"] for run in apart) == ["1000", "1000", "1001", "1001", "1002", "1002"]
    assert all(run.data.params["loss.name"] == "triplet" for run in apart)
    assert not [name for run in runs for name in run.data.metrics if name.startswith("test/")]


def test_the_command_line_opens_and_reports(a_copy, here, command_line, monkeypatch):
    monkeypatch.chdir(a_copy)
    code, out, _ = command_line("open", "rho1", "--selection", "the table", "--yes", "--json")
    seen = json.loads(out)
    assert code == 0
    assert (seen["already"], seen["selection"], seen["mlflow_error"]) == (False, "the table", None)
    code, out, _ = command_line("open", "rho1")
    assert code == 0
    assert "are open already, opened on" in " ".join(out.split())
    seen = StoredRuns(here["tracking_uri"], "rho1")
    assert len(seen.by_key) == 18
    for key, run in seen.by_key.items():
        ((_, _, value),) = seen.history(run, TEST)
        assert value == read_sealed(trial_folder(here["storage"] / "rho1", key))[TEST]
    code, out, _ = command_line("report", "rho1", "--json")
    assert code == 0
    data = json.loads((a_copy / "sweeps/rho1/report/verdicts.json").read_text())
    assert data["opened_test"]["opening"]["selection"] == "the table"
    assert [cell["fresh"]["n"] for cell in data["confirmation"]["cells"]] == [3, 3]
    assert any("fresh seeds" in verdict for verdict in json.loads(out)["verdicts"])
