"""Runs that are written into the tables at once are those that MLflow's client makes one by one."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from helpers.stored_runs import StoredRuns
from helpers.toys import Driver, plan_of, space_of
from mlflow.tracking import MlflowClient

from tune_dml.record.judgement import CellJudgement, Judgement
from tune_dml.record.state import SweepState
from tune_dml.space import Baseline, Grid, Knob
from tune_dml.tracking import proof, runs, tables
from tune_dml.tracking.client import open_client, read_run, search_runs
from tune_dml.tracking.tables import find_runs, read_runs, write_runs
from tune_dml.tracking.tracker import SyncReport, Tracker
from tune_dml.tracking.trial_runs import PARENT_TAG, SWEEP_TAG

_OF_A_RUN = {"runs", "tags", "params", "metrics", "latest_metrics"}
_ALL = SyncReport(trials=10, rows=23)


@pytest.fixture
def many(tmp_path):
    """Ten trials that ended in every way, two of which have not, some of an arm without the knob."""
    margin = Knob("loss.margin", Grid((0.1, 0.2, 0.5, 1.0)), "m")
    baseline = Baseline("no margin", {"loss.name": "npair"})
    space = space_of(margin, name="toy_margin", baseline=baseline, fixed={"loss.name": "semihard_triplet"})
    driver = Driver(tmp_path / "sweeps" / "toy", plan_of(space=space, seeds=2))
    driver.session()
    diverging, failing, waiting, *others, last = driver.trials
    driver.run(diverging, end=False)
    driver.row(diverging, 3, **{"train/loss": math.nan, "train/top": math.inf, "train/low": -math.inf})
    driver.row(diverging, 3, **{"train/loss": 1.0})  # reported twice: as first written
    driver.ended(diverging, "diverged", reason="loss is nan\nat step 3", step=3)
    driver.started(failing)
    driver.ended(failing, "failed", reason="<b>out of memory</b>", kind="resources")
    driver.run(waiting, end=False)
    for index, trial in enumerate(others):
        driver.row(trial, 9, extra=float(index))  # behind the steps that follow
        driver.run(trial)
    driver.started(last)
    return driver


@pytest.fixture
def push(many, tmp_path, new_database, monkeypatch):
    """Syncs the sweep with a new store, or that of an earlier sync; through MLflow's client alone, where asked."""

    def sync(folder, by_client=False):
        store = tmp_path / folder
        if not store.exists():
            store.mkdir()
            new_database(store)
        uri = f"sqlite:///{store / 'mlflow.db'}"
        with monkeypatch.context() as patched:
            if by_client:
                patched.setattr(runs, "write_runs", lambda *given: False)
            return uri, Tracker(SweepState(many.folder, many.plan), uri, "toys").sync()

    return sync


def _contents(uri):
    """Every row of the tables of runs, with runs known by their names, and how many rows each table has."""
    path = uri.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as database:
        names = dict(database.execute("SELECT run_uuid, name FROM runs"))
        listed = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {table: database.execute(f'SELECT * FROM "{table}"').fetchall() for table in listed}  # noqa: S608
    assert len(set(names.values())) == len(names)
    counts = {table: len(found) for table, found in rows.items()}
    return counts, {table: sorted(_with_names(row, names, path) for row in rows[table]) for table in _OF_A_RUN}


def _with_names(row, names, path):
    text = repr(row).replace(str(Path(path).parent), "FOLDER")
    for run_id in set(names) & set(text.replace("/", "'").split("'")):
        text = text.replace(run_id, names[run_id])
    return text


def test_either_way_leaves_the_same_database(push):
    one, quick = push("quick")
    other, slow = push("slow", by_client=True)
    assert quick == slow == _ALL
    assert _contents(one) == _contents(other)


def test_either_way_reads_the_same_runs(push):
    uri, _ = push("quick")
    seen = StoredRuns(uri)
    gone, *_ = seen.children
    seen.client.delete_run(gone.info.run_id)
    ids = [run.info.run_id for run in (*seen.by_key.values(), *seen.cells.values(), gone)]
    read = read_runs(uri, [*ids, "no such run", ""])
    names = {point.name for run in read.values() for point in run.points}
    assert len(read) == len(set(ids)) - 1
    for run_id in ids:
        one = read_run(seen.client, run_id, names)
        assert (run_id in read) == (one is not None)
        if one is not None:
            assert (read[run_id].status, read[run_id].params) == (one.status, one.params)
            assert _sorted(read[run_id].points) == _sorted(one.points)
    assert any(math.isnan(point.value) for run in read.values() for point in run.points)


@pytest.mark.parametrize("tag", [SWEEP_TAG, PARENT_TAG])
def test_either_way_finds_the_same_runs(push, tag):
    uri, _ = push("quick")
    seen = StoredRuns(uri)
    gone, *_ = seen.children
    seen.client.delete_run(gone.info.run_id)
    (parent,) = seen.parents
    experiment, sweep = parent.info.experiment_id, parent.info.run_id
    other = seen.client.create_run(seen.client.create_experiment("other"), tags={tag: sweep})
    found = find_runs(uri, experiment, tag, sweep)
    by_client = search_runs(open_client(uri), experiment, f"tags.`{tag}` = '{sweep}'")
    assert {run.id: run for run in found} == {run.id: run for run in by_client}
    assert not {gone.info.run_id, other.info.run_id} & {run.id for run in found}
    assert len(found) > 1
    assert {run.has_data for run in found} == ({True, False} if tag == SWEEP_TAG else {True})


def test_another_process_finds_all_there_and_tells_nothing(many, push, monkeypatch):
    uri, _ = push("quick")
    label = many.plan.cells[0].label
    judgement = Judgement(("said",), {"best": 1.0}, {label: CellJudgement({"low": 0.5}, "better")}, "", "")
    told = []

    def tell():
        one = Tracker(SweepState(many.folder, many.plan), uri, "toys")
        assert one.sync().error is None
        assert one.attach([], "report", judgement) is None
        return [len(told), told.clear()][0]

    log_batch = MlflowClient.log_batch
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *given: told.append(given[1]) or log_batch(*given))
    assert tell() == 2  # the judgement, of the cell and of the sweep
    assert tell() == 0


def _sorted(points):
    return sorted((point.name, point.step, point.time, repr(point.value)) for point in points)


def test_what_is_read_at_once_proves_what_the_client_does(many, push, monkeypatch):
    uri, _ = push("quick")
    judgement = Judgement((), {}, {}, "", "")
    by_client = []
    for read in (read_runs, lambda uri, ids: by_client.append(len(ids))):
        with monkeypatch.context() as patched:
            patched.setattr(proof, "read_runs", read)
            StoredRuns(uri).client.delete_run(StoredRuns(uri).by_key[many.trials[1].key].info.run_id)
            found = Tracker(SweepState(many.folder, many.plan), uri, "toys").reconcile(judgement)
        assert found.equal, found
        assert [line.rpartition(": ")[2] for line in found.before if "missing" in line]
    assert sum(by_client) == 2 * (1 + len(many.plan.cells) + len(many.trials))


def test_many_runs_are_not_made_one_by_one(push, monkeypatch):
    made = []
    monkeypatch.setattr(runs.RunPusher, "_push_trial", lambda self, trial, run, push: made.append(trial))
    push("quick")
    assert not made


def test_what_comes_later_is_added_by_the_client(many, push):
    uri, _ = push("quick")
    many.row(many.trials[2], 3)
    many.ended(many.trials[2], step=3, metrics={})
    assert [push("quick")[1].rows for _ in range(2)] == [1, 0]
    run = StoredRuns(uri).by_key[many.trials[2].key]
    assert [row[0] for row in StoredRuns(uri).history(run)] == [1, 2, 3]
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize("arrived", [False, True])
def test_a_death_beside_the_transaction_doubles_nothing(many, push, monkeypatch, arrived):
    def dying(*given):
        if arrived:
            write_runs(*given)
        raise ConnectionError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(runs, "write_runs", dying)
        uri, report = push("quick")
        assert report.error == "killed"
    assert push("quick")[1].error is None
    (clean, _) = push("clean")
    assert _contents(uri) == _contents(clean)
    assert len(StoredRuns(uri).children) == len(many.trials)


def test_what_the_tables_refuse_is_the_clients_to_judge(push, monkeypatch):
    monkeypatch.setattr(tables, "_latest", lambda run: [("no such run", "m", 1, 1, 1.0, False)])
    uri, report = push("quick")
    assert report == _ALL
    assert _contents(uri) == _contents(push("slow", by_client=True)[0])


def test_a_database_that_another_one_writes_to_is_waited_for_and_then_left_as_it_is(push, monkeypatch):
    monkeypatch.setattr(tables, "_PATIENCE", 0.01)
    uri, _ = push("quick", by_client=True)
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            write_runs(uri, "1", [])


def test_other_tables_are_left_to_the_client(push, monkeypatch):
    monkeypatch.setattr(tables, "_REVISION", "of another version of MLflow")
    uri, report = push("quick")
    assert report == _ALL
    assert len(StoredRuns(uri).children) == _ALL.trials
    assert read_runs(uri, []) is None
    assert find_runs(uri, "1", SWEEP_TAG, "") is None


def test_other_stores_are_left_to_the_client():
    assert not write_runs("http://127.0.0.1:5000", "1", [])
    assert read_runs("http://127.0.0.1:5000", []) is None
    assert find_runs("http://127.0.0.1:5000", "1", SWEEP_TAG, "") is None


def test_a_deleted_experiment_takes_no_runs(push):
    uri, _ = push("quick")
    client = StoredRuns(uri).client
    (experiment,) = [found for found in client.search_experiments() if found.name == "toys"]
    assert write_runs(uri, experiment.experiment_id, [])
    client.delete_experiment(experiment.experiment_id)
    assert not write_runs(uri, experiment.experiment_id, [])
