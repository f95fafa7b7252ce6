"""Runs of cells, between those of the sweep and of trials: the curve, with the report's numbers."""

import dataclasses
import json
import time
from pathlib import Path

import pytest
from helpers.arms import space_of_arms
from helpers.stored_runs import StoredRuns
from helpers.toys import METRIC, SETTINGS, STEEP, Driver, plan_of, space_of, write_sweep

from tune_dml.record.ledger import Ledger
from tune_dml.record.state import SweepState, read_state
from tune_dml.report import summary
from tune_dml.space import Grid, Knob
from tune_dml.tracking.descriptions import _escape_markdown
from tune_dml.tracking.tracker import Tracker


@pytest.fixture
def curve(tmp_path, uri):
    """A judged sweep of the momentum, and a new process's tracker of it."""
    failures = {("rho=0.9", 1): ("diverged", "loss is not finite")}
    few = {rho: STEEP[rho] for rho in (0.01, 0.1, 0.9)}
    results = write_sweep(tmp_path / "sweeps" / "demo", means=few, failures=failures, evidence=False)
    (results.folder / "mlflow.json").unlink()

    def make(**options):
        return Tracker(read_state(results.folder), uri, "toys", **options)

    return results, summary(results), make


def test_figures_of_a_cell_equal_those_of_the_report(curve, uri):
    _, said, tracker = curve
    assert tracker().stop().error is None
    assert tracker().attach(Path(), [], said.judgement) is None
    cells = StoredRuns(uri, "demo").cells
    assert set(cells) == {row.label for row in said.rows}
    for row in said.rows:
        shown = cells[row.label].data.metrics
        assert (shown["mean"], shown["seeds"]) == (row.mean, row.n)
        assert (shown["low"], shown["high"]) == (row.low, row.high)
    assert cells["rho=0.9"].data.metrics["seeds"] == 2
    assert "difference" not in cells["no SEC"].data.metrics
    assert cells["rho=0.1"].data.metrics["difference_low"] == said.rows[2].difference_low


def test_runs_are_nested_and_charts_get_the_knob(curve, uri):
    _, _, tracker = curve
    tracker().stop()
    seen = StoredRuns(uri, "demo")
    (parent,) = seen.parents
    assert {run.data.tags["mlflow.parentRunId"] for run in seen.cells.values()} == {parent.info.run_id}
    for run in seen.children:
        assert run.data.tags["mlflow.parentRunId"] == seen.cells[run.data.tags["cell"]].info.run_id
    values = {label: run.data.params["regularizer.rho"] for label, run in seen.cells.items()}
    assert values["no SEC"] == "(none)"
    assert all(set(run.data.params) == {"regularizer.rho"} for run in seen.cells.values())  # what a comparison draws
    assert values["rho=0.1"] == "0.1"
    assert {run.data.tags["level"] for run in seen.runs} == {"sweep", "cell", "trial"}
    (data,) = {entry.dataset.digest for run in seen.cells.values() for entry in run.inputs.dataset_inputs}
    assert data == "d" * 32


@pytest.mark.slow
def test_a_renamed_sweep_keeps_its_runs_under_the_new_name(curve, uri):
    results, _, tracker = curve
    tracker().stop()
    before = {run.info.run_id for run in StoredRuns(uri, "demo").runs}
    plan = results.folder / "plan.json"
    state = read_state(results.folder)
    dataclasses.replace(state.stored_plan, name="other").save(plan)
    moved = results.folder.rename(results.folder.with_name("other"))
    again = Tracker(read_state(moved), uri, "toys")
    assert again.stop().error is None
    seen = StoredRuns(uri, "other")
    assert {run.info.run_id for run in seen.runs} == before
    assert StoredRuns(uri, "demo").runs == []
    assert [run.info.run_name for run in seen.parents] == ["other"]
    assert "other" in again.link()
    assert again.stop().trials == 0


@pytest.mark.slow
def test_the_run_of_a_sweep_shows_the_answer(curve, uri, tmp_path):
    _, said, tracker = curve
    tracker().stop()
    before = StoredRuns(uri, "demo")
    assert before.parents[0].data.metrics["trials_finished"] == 11
    page = tmp_path / "report.html"
    page.touch()
    for _ in range(2):
        assert tracker().attach(tmp_path, [page], said.judgement) is None
    after = StoredRuns(uri, "demo")
    (parent,) = after.parents
    note = parent.data.tags["mlflow.note.content"]
    assert "rho matters on glyphs" in note
    assert "After 12 of 12 trials" in note
    assert f"runs/{parent.info.run_id}/artifacts/report/report.html" in note
    assert "weights are not stored" in note
    assert parent.data.metrics["best_mean"] == max(row.mean for row in said.rows)
    assert len(after.history(parent, "best_mean")) == 1
    assert len(after.runs) == len(before.runs)
    experiment = after.client.get_experiment_by_name("toys").tags
    assert "level` cell" in experiment["mlflow.note.content"]
    assert experiment["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(experiment["mlflow.sharedViewState.demo"])
    assert view["selectedColumns"][:2] == ["params.`regularizer.rho`", "metrics.`mean`"]
    query = (view["searchFilter"], view["orderByKey"])
    found = after.client.search_runs([parent.info.experiment_id], query[0], order_by=[f"{query[1]} DESC"])
    assert [run.data.tags["level"] for run in found] == ["cell"] * 4
    assert all(run.inputs.dataset_inputs for run in after.children)
    tracker().stop()
    assert StoredRuns(uri, "demo").parents[0].data.tags["mlflow.note.content"] == note


@pytest.mark.slow
def test_replays_add_no_point_to_the_curve(curve, uri):
    results, said, tracker = curve
    tracker().attach(Path(), [], said.judgement)
    before = StoredRuns(uri, "demo").snapshot()
    (results.folder / "mlflow.json").unlink()
    tracker().stop()
    assert tracker().attach(Path(), [], said.judgement) is None
    assert StoredRuns(uri, "demo").snapshot() == before


@pytest.mark.slow
def test_an_older_versions_trials_are_moved_below_their_cells(curve, uri):
    """They were directly under the sweep, with fewer tags; their points stay."""
    _, _, tracker = curve
    tracker().stop()
    seen = StoredRuns(uri, "demo")
    (parent,) = seen.parents
    for run in seen.children:
        seen.client.set_tag(run.info.run_id, "mlflow.parentRunId", parent.info.run_id)
        for tag in ("tune_dml.sweep_run", "level", "metric"):
            seen.client.delete_tag(run.info.run_id, tag)
    for run in seen.cells.values():
        seen.client.delete_run(run.info.run_id)
    points = {run.info.run_id: seen.history(run) for run in seen.children}
    assert tracker().stop().error is None
    after = StoredRuns(uri, "demo")
    assert {run.info.run_id: after.history(run) for run in after.children} == points
    for run in after.children:
        assert run.data.tags["mlflow.parentRunId"] == after.cells[run.data.tags["cell"]].info.run_id
        assert run.data.tags["level"] == "trial"


def test_each_figure_is_shown_once(driver, tracker, mlflow_has):
    trial = driver.trials[0]
    driver.started(trial)
    many = {f"train/m{number}": 1.0 for number in range(40)}
    same = {f"val/{name}_at_1": 1.0 for name in ("precision", "map", "ndcg")}
    driver.row(trial, 1, **same, **many, **{"val/map_at_r": 1.0, "val/f1": 1.0})
    driver.ended(trial, step=1, metrics={METRIC: 51.0, **same})
    tracker().sync()
    metrics = mlflow_has().by_key[trial.key].data.metrics
    assert len([name for name in metrics if not name.startswith("val/")]) == 24
    assert {METRIC, "val/map_at_r", "val/f1"} <= metrics.keys()
    assert not set(same) & set(metrics)


@pytest.mark.slow
def test_arms_keep_their_order_of_colours(tmp_path, uri):
    plan = plan_of(space=space_of_arms(fixed={**SETTINGS, "batch.instances_per_class": 3}), seeds=1)
    driver = Driver(tmp_path / "toy", plan)
    driver.session()
    for trial in driver.trials:
        driver.run(trial, rows=1)
    colours = ["#111111", "#222222", "#333333"]
    assert Tracker(SweepState(driver.folder, plan), uri, "toys", colour_of=colours.__getitem__).stop().error is None
    seen = StoredRuns(uri)
    by_arm = {run.data.tags["arm"]: run.data.tags["mlflow.runColor"] for run in seen.runs if "arm" in run.data.tags}
    assert by_arm == dict(zip([arm.name for arm in plan.arms], colours, strict=True))
    assert {run.data.params["regularizer.rho"] for run in seen.runs if run.data.tags.get("arm") == "L2"} == {"(none)"}


def test_odd_names_reach_the_store_as_text(tmp_path, uri):
    knob = Knob("loss.margin", Grid((0.1, 1.0)), "<i>m</i>\nargin")
    driver = Driver(tmp_path / "toy", plan_of(space=space_of(knob, title="<script>\n"), seeds=1))
    driver.session()
    driver.run(driver.trials[0])
    assert Tracker(SweepState(driver.folder, driver.plan), uri, "toys").stop().error is None
    (cell,) = StoredRuns(uri).cells.values()
    assert "<i>" not in cell.data.tags["mlflow.note.content"]
    assert _escape_markdown("<b>x</b>\n[y](z)") == r"&lt;b&gt;x&lt;/b&gt; \[y\]\(z\)"


@pytest.mark.slow
def test_sync_lists_repairs_and_verifies_differences(curve, uri):
    results, said, tracker = curve
    first = tracker().reconcile(said.judgement)
    assert first.is_equal
    seen = StoredRuns(uri, "demo")
    run = seen.children[0]
    seen.client.delete_run(run.info.run_id)
    seen.client.update_run(seen.cells["rho=0.01"].info.run_id, status="RUNNING")
    key = next(trial.key for trial in results.trials if trial.cell.label == "rho=0.1")
    with Ledger(results.folder) as ledger:
        ledger.report(key, {"step": 4000, "time": time.time(), METRIC: 1.0})
    again = tracker().reconcile(said.judgement)
    assert len(again.before) == 3
    assert any("its run is missing" in line for line in again.before)
    assert any("is RUNNING, should be FINISHED" in line for line in again.before)
    assert any("1 of" in line and "points are missing" in line for line in again.before)
    assert again.is_equal
    assert again.counts.runs == 1 + 4 + 12
    assert tracker().reconcile(said.judgement) == dataclasses.replace(again, before=())


def test_sync_attaches_the_report_that_an_absent_store_missed(curve, uri):
    results, said, tracker = curve
    (results.folder / "report").mkdir()
    (results.folder / "report" / "report.html").write_text("the report")
    assert tracker().reconcile(said.judgement).error is None
    seen = StoredRuns(uri, "demo")
    (parent,) = seen.parents
    assert [file.path for file in seen.client.list_artifacts(parent.info.run_id, "report")] == ["report/report.html"]
    assert "report.html" in parent.data.tags["mlflow.note.content"]
