"""MLflow shows everything in the ledger, unchanged and with its true state."""

import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from helpers.toys import MARGINS, METRIC, Driver, plan_of, seal, space_of

from tune_dml.programs.command import Program
from tune_dml.record.held_out.sealed import record_opening
from tune_dml.record.ledger import trial_folder
from tune_dml.record.state import SweepState, read_state
from tune_dml.tracking import SyncReport, Tracker
from tune_dml.tracking.client import log_in_batches
from tune_dml.tracking.projection import MetricPoint, Projection


def test_runs_have_the_expected_hierarchy_and_parameters(driver, tracker, mlflow_has):
    driver.run(*driver.trials)
    assert tracker().stop() == SyncReport(trials=4, rows=8)
    seen = mlflow_has()
    (parent,) = seen.parents
    assert set(seen.by_key) == {trial.key for trial in driver.trials}
    trial = driver.trials[0]
    run = seen.by_key[trial.key]
    assert run.info.run_name == "m=0.1, seed 0"
    expected = {
        "mlflow.parentRunId": seen.cells["m=0.1"].info.run_id,
        "tune_dml.trial_key": f"toy-{driver.plan.identity()}-{trial.key}",
        **{"sweep": "toy", "cell": "m=0.1", "seed": "0", "dataset": "digits", "git_commit": "0" * 40},
        **{"paper": "A. Author, A Title, ICML 2020", "table": "table 3"},
        **{"tune_dml.status": "finished", "tune_dml.attempts": "1", "tune_dml.host": "node-1"},
    }
    assert expected.items() <= run.data.tags.items()
    assert parent.info.run_name == "toy"
    assert parent.data.tags["tune_dml.sweep_id"] == f"toy-{driver.plan.identity()}"
    assert parent.data.tags["tune_dml.finished"] == "4"
    assert parent.info.status == "FINISHED"
    params = run.data.params
    assert set(params) == {*trial.cell.settings, "seed"}
    shown = {"data.name": "digits", "optim.lr_milestones": "[1, 2]", "loss.margin": "0.1", "seed": "0"}
    assert shown.items() <= params.items()
    assert parent.data.params["loss.margin"] == "[0.1, 1.0]"


@pytest.mark.slow
def test_long_parameters_are_cut_with_a_mark(tmp_path, tracker, mlflow_has, driver):
    note = {"loss.note": "x" * 9000}
    driver.plan = replace(
        driver.plan, cells=tuple(replace(cell, settings={**cell.settings, **note}) for cell in driver.plan.cells)
    )
    driver.run(driver.trials[0])
    assert tracker().sync().error is None
    value = mlflow_has().children[0].data.params["loss.note"]
    assert len(value) == 500
    assert value.endswith("x… (9000 characters)")


def test_metrics_keep_their_step_and_time_and_test_metrics_are_left_out(driver, tracker, mlflow_has):
    trial = driver.trials[0]
    driver.started(trial)
    driver.row(trial, 100, **{"train/loss": 0.5, "test/recall_at_1": 41.0, "odd name!": 1.0, "note": "words"})
    tracker().sync()
    seen = mlflow_has()
    run = seen.by_key[trial.key]
    assert run.data.metrics == {"val/recall_at_1": 150.0, "train/loss": 0.5, "odd name_": 1.0}
    assert seen.history(run) == [(100, 1_700_000_100_000, 150.0)]


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({}, {"val/map_at_2", "val/map_at_4", "test/map_at_2", "test/map_at_4"}),
        ({"metric": "val/map_at_4"}, {"val/map_at_2", "test/map_at_2"}),
        ({"program": Program(("python", "x.py"), ".")}, set()),
    ],
)
def test_only_our_metrics_that_resemble_others_are_left_out(tmp_path, changes, left_out):
    driver = Driver(tmp_path / "toy", plan_of(space=space_of(MARGINS, **changes)))
    rows = {f"{part}/map_at_{k}": 1.0 for part in ("val", "test") for k in (2, 4)}
    trial = driver.trials[0]
    driver.ended(trial, step=1, metrics={"val/recall_at_1": 2.0, **seal(driver.folder, trial.key, rows)})
    record_opening(read_state(driver.folder), "the best")
    projection = Projection(read_state(driver.folder))
    projection.update()
    run = projection.runs[trial.key]
    points = (*run.every_point(), *run.sealed_points(driver.folder))
    assert {point.name for point in points} == {"val/recall_at_1", *rows} - left_out


def test_names_that_mlflow_refuses_are_replaced(driver, tracker, mlflow_has):
    settings = {"/q": 1, "x//y": 2, "..": 3, "x/" * 200: 4}
    driver.plan = replace(
        driver.plan, cells=tuple(replace(cell, settings={**cell.settings, **settings}) for cell in driver.plan.cells)
    )
    trial = driver.trials[0]
    driver.started(trial)
    driver.row(trial, 100, **{"/abs": 0.0, "x//y": 1.0, "./z": 2.0, "a/../b": 3.0, "..x": 4.0, "end/": 5.0, "": 6.0})
    assert tracker().sync().error is None
    run = mlflow_has().by_key[trial.key]
    assert set(run.data.metrics) == {METRIC, "_/abs", "x/_/y", "_/z", "a/_/b", "_x", "end/_", "_"}
    assert {"_/q": "1", "x/_/y": "2", "_": "3"}.items() <= run.data.params.items()


def test_non_finite_metrics_arrive_once(driver, tracker, mlflow_has):
    trial = driver.trials[0]
    driver.started(trial)
    for step, value in enumerate((math.nan, math.inf, -math.inf)):
        driver.row(trial, step, **{"train/loss": value})
    for _ in range(2):
        (driver.folder / "mlflow.json").unlink(missing_ok=True)
        assert tracker().sync().error is None
    seen = mlflow_has()
    values = [value for _, _, value in seen.history(seen.by_key[trial.key], "train/loss")]
    assert math.isnan(values[0])
    assert values[1] > 1e300  # MLflow clips infinities to the largest number
    assert values[2] < -1e300
    assert len(values) == 3


def test_points_and_parameters_go_in_batches():
    sent = []
    client = SimpleNamespace(log_batch=lambda run, *parts: sent.append([len(part) for part in parts]))
    many = [MetricPoint("loss", 1.0, step, 0) for step in range(1700)], {f"p{n}": "" for n in range(150)}, {"tag": ""}
    log_in_batches(client, "run", *many)
    assert sent == [[800, 100, 1], [800, 50, 0], [100, 0, 0]]
    log_in_batches(client, "run", many[0][:1], many[1], {})
    assert sent[3:] == [[1, 100, 0], [0, 50, 0]]


def test_final_metrics_are_logged_at_the_scored_step(driver, tracker, mlflow_has):
    first, second = driver.trials[:2]
    driver.ended(first, step=7, metrics={"val/recall_at_1": 9.0})
    driver.started(second)
    driver.row(second, 1, **{"train/seen": 1.0})
    driver.row(second, 2)
    metrics = {"val/recall_at_1": 51.0, "train/seen": 1.0, "train/only_at_the_end": 41.0}
    driver.ended(second, step=1, metrics=metrics)
    for _ in range(2):
        (driver.folder / "mlflow.json").unlink(missing_ok=True)
        tracker().sync()
    seen = mlflow_has()
    assert [row[0::2] for row in seen.history(seen.by_key[first.key])] == [(7, 9.0)]
    run = seen.by_key[second.key]
    assert [row[0::2] for row in seen.history(run)] == [(1, 51.0), (2, 52.0)]
    assert [row[0::2] for row in seen.history(run, "train/only_at_the_end")] == [(1, 41.0)]
    assert len(seen.history(run, "train/seen")) == 1


def test_runs_have_the_state_of_their_trials(driver, tracker, mlflow_has):
    finished, diverged, failed, running = driver.trials
    driver.run(finished)
    for trial in (diverged, failed, running):
        driver.started(trial)
    driver.ended(diverged, "diverged", reason="the loss is nan", step=3)
    driver.ended(failed, "failed", reason="out of memory: CUDA", kind="out_of_memory")
    one = tracker()
    one.sync()

    while_running = {
        **{finished.key: "FINISHED", diverged.key: "FAILED", failed.key: "FAILED"},
        **{running.key: "RUNNING", "parent": "RUNNING"},
    }
    assert mlflow_has().states() == while_running
    tags = mlflow_has().by_key[failed.key].data.tags
    assert tags["tune_dml.reason"] == "out of memory: CUDA"
    assert tags["tune_dml.kind"] == "out_of_memory"
    assert one.stop().error is None
    assert mlflow_has().states() == while_running | {running.key: "KILLED", "parent": "KILLED"}
    assert mlflow_has().by_key[running.key].data.tags["tune_dml.status"] == "interrupted"
    driver.session()  # resumed
    two = tracker()
    two.sync()
    assert mlflow_has().states() == while_running | {running.key: "KILLED"}
    driver.started(running)
    two.sync()
    assert mlflow_has().states() == while_running
    assert mlflow_has().by_key[running.key].data.tags["tune_dml.attempts"] == "2"
    driver.ended(running)
    two.stop()
    assert mlflow_has().states() == while_running | {running.key: "FINISHED", "parent": "FAILED"}
    driver.session()  # failed ones are tried again
    driver.event("reset", failed.key)
    driver.started(failed)
    driver.ended(failed)
    tracker().stop()
    assert mlflow_has().states()[failed.key] == "FINISHED"
    assert mlflow_has().states()["parent"] == "FINISHED"  # a diverged trial is a result
    assert not mlflow_has().by_key[failed.key].data.tags["tune_dml.reason"]


def test_a_driver_that_was_killed_leaves_no_run_running(driver, tracker, mlflow_has):
    driver.started(driver.trials[0])
    tracker().sync()  # and then kill -9
    driver.session()
    tracker().sync()
    assert mlflow_has().by_key[driver.trials[0].key].info.status == "KILLED"


def test_an_interrupted_search_is_killed_though_its_known_trials_ended(driver, tracker, mlflow_has):
    driver.run(*driver.trials)
    tracker().stop(interrupted=True)
    assert mlflow_has().parents[0].info.status == "KILLED"


@pytest.mark.slow
def test_proposed_cells_and_further_seeds_join_the_same_parent(driver, tracker, mlflow_has):
    driver.run(driver.trials[0])
    tracker().stop()
    parent = mlflow_has().parents[0]
    driver.plan = driver.plan.extend(seeds=[2])  # another identity
    driver.session()
    cell = replace(driver.plan.cells[0], index=2, label="m=5", knobs={"loss.margin": 5.0}, digest="d2")
    driver.event("cell", cell=asdict(cell))
    proposed = driver.plan.trial(cell, 2)
    driver.run(proposed)
    (driver.folder / "mlflow.json").unlink()
    assert tracker().stop().error is None
    seen = mlflow_has()
    assert [run.info.run_id for run in seen.parents] == [parent.info.run_id]
    assert seen.parents[0].data.tags["tune_dml.sweep_id"] == f"toy-{driver.plan.identity()}"
    assert seen.parents[0].data.tags["tune_dml.trials"] == "9"
    assert seen.by_key[proposed.key].info.run_name == "m=5, seed 2"
    assert len(seen.children) == 2


@pytest.mark.slow
def test_a_restarted_sweep_of_the_same_name_is_another_sweep(tmp_path, driver, tracker, uri, mlflow_has):
    driver.run(driver.trials[0])
    tracker().stop()
    again = Driver(tmp_path / "elsewhere" / "toy", driver.plan)
    again.session()
    again.run(again.trials[0])
    assert Tracker(SweepState(again.folder, again.plan), uri, "toys").stop().error is None
    assert (len(mlflow_has().parents), len(mlflow_has().children)) == (2, 2)


def test_a_truncated_last_line_waits_for_its_rest(driver, tracker, mlflow_has):
    trial = driver.trials[0]
    driver.started(trial)
    driver.row(trial, 1)
    path = trial_folder(driver.folder, trial.key) / "history.jsonl"
    with path.open("a") as file:
        file.write('{"step": 2, "val/rec')
    one = tracker()
    assert one.sync().rows == 1
    driver.row(trial, 2)  # the writer cuts the torn line off
    assert one.sync().rows == 1
    seen = mlflow_has()
    assert [row[0] for row in seen.history(seen.by_key[trial.key])] == [1, 2]


def test_a_sweep_without_events_has_no_runs(tmp_path, driver, uri, mlflow_has):
    assert Tracker(SweepState(tmp_path / "none", driver.plan), uri, "toys").stop() == SyncReport()
    assert not mlflow_has().runs
