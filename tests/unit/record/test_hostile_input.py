"""Damaged or edited files, folders and plans give one clear line each, in every verb that shows the sweep."""

import json
import re
from dataclasses import replace

import pytest
from helpers.toys import MARGINS, Driver, plan_of

from trainables.errors import ConfigError
from trainables.registries import source_digest
from tune_dml.planning.continuation import continuation_problems
from tune_dml.planning.files.sweep_file import read_mapping
from tune_dml.planning.request import Session
from tune_dml.record.contradictions import describe_edited_code, find_contradictions
from tune_dml.record.imported import ImportRequest, read_csv
from tune_dml.record.results import results_of
from tune_dml.record.state import packages_of, read_state
from tune_dml.record.study import study_of
from tune_dml.tracking.projection import Projection
from tune_dml.tracking.sync_state import SyncState, with_last_store


def test_an_alias_that_is_used_twice_is_read(tmp_path):
    (tmp_path / "fine.yaml").write_text("a: &a [1, 2]\nb: *a\n")
    assert read_mapping(tmp_path / "fine.yaml") == {"a": [1, 2], "b": [1, 2]}


def test_files_of_a_killed_removal_are_removed(tmp_path, plan, output_of):
    Driver(tmp_path / "toy", plan)
    for name in (".toy.removed", "toy2"):
        (tmp_path / name / "trials").mkdir(parents=True)
    output_of("rm", "toy", "--yes", "--storage", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy2"]


def test_a_huge_field_of_a_table_is_named(tmp_path):
    (tmp_path / "runs.csv").write_text(f"loss.margin,recall\n0.1,{'9' * 140_000}\n")
    with pytest.raises(ConfigError, match=r"runs.csv:2: the line must be readable as CSV"):
        read_csv(tmp_path / "runs.csv", ImportRequest("runs", metric="recall"))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff\x00", b'{"runs": []}', b"[]", b'{"uri": "x", "runs": {}}', b"[" * 100_000),
        b'{"uri": "sqlite:///x.db", "experiment": "toy", "experiment_id": "1", "runs": {}, "rows": {"a": "x"}}',
        b'{"uri": "sqlite:///x.db", "experiment": "toy", "experiment_id": "1", "runs": {"a": "b"}, "rows": {"a": []}}',
    ],
    ids=range(8),
)
def test_a_damaged_mlflow_state_file_is_ignored_and_hides_no_result(tmp_path, plan, content):
    """A partial file must not count: rows would be written twice."""
    driver = Driver(tmp_path, plan)
    driver.run(driver.trials[0])
    expected = results_of(tmp_path).trials
    (tmp_path / "mlflow.json").write_bytes(content)
    assert (results_of(tmp_path).trials, results_of(tmp_path).parent_run_id) == (expected, "")
    assert not SyncState.read(tmp_path, "sqlite:///x.db", "toy").runs
    assert with_last_store(Session(), tmp_path).tracking_uri is None or b"experiment" in content


@pytest.mark.parametrize("time", ["1e300", "NaN", "Infinity", "-1"])
def test_events_and_rows_of_impossible_times_are_skipped_with_a_note(tmp_path, plan, time):
    """Calendars, Optuna and MLflow would refuse them, and nothing of the sweep would be exported."""
    driver = Driver(tmp_path, plan)
    driver.session()
    driver.run(driver.trials[0])
    history = tmp_path / "trials" / driver.trials[0].key / "history.jsonl"
    history.write_text(f'{{"step": 9, "time": {time}, "val/recall_at_1": 1.0}}\n' + history.read_text())
    ended = f'"key": "{driver.trials[1].key}", "body": {{"status": "finished"'
    with (tmp_path / "ledger.jsonl").open("a") as ledger:
        ledger.write(f'{{"kind": "ended", "time": {time}, {ended}}}}}\n')
        ledger.write(f'{{"kind": "ended", "time": 1.0, {ended}, "seconds": {time}}}}}\n')
    results = results_of(tmp_path)
    assert [trial.status for trial in results.trials] == ["finished", "missing", "missing", "missing"]
    assert len(results.notes) == 2
    (exported,) = study_of(results).trials
    assert list(exported.intermediate_values) == [1, 2]


@pytest.fixture
def plan():
    return plan_of(MARGINS)


@pytest.mark.parametrize("value", [0.7, float("nan")])
@pytest.mark.parametrize("what", ["settings", "knobs"])
def test_a_plan_changed_by_hand_is_reported_and_not_resumed(tmp_path, plan, what, value, cache_dir):
    """The remaining trials would train with other settings under the same names."""
    plan.save(tmp_path / "plan.json")
    body = json.loads((tmp_path / "plan.json").read_text())
    body["cells"][1][what]["loss.margin"] = value
    (tmp_path / "plan.json").write_text(json.dumps(body))
    (said,) = results_of(tmp_path).notes
    assert "plan.json was changed since it was stored: loss.margin=1 has settings that do not match" in said
    problems = of(read_state(tmp_path), cache_dir)
    assert any("was changed since" in problem.rule for problem in problems)


def test_a_missing_package_of_methods_is_named(tmp_path, plan, cache_dir):
    """Otherwise its loss would be called unknown, and a similar name suggested."""
    driver = Driver(tmp_path, plan)
    driver.event("session", provenance={"methods": {"gone-dml": "1.2, source 3f2a", "numpy": "2, source 1b2c"}})
    assert not [problem for problem in of(read_state(tmp_path), cache_dir) if problem.place == "methods"]
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(re.sub('"loss.name": "[^"]*"', '"loss.name": "of_gone"', plan_file.read_text()))
    missing = [problem for problem in of(read_state(tmp_path), cache_dir) if problem.place == "methods"]
    assert [problem.value for problem in missing] == ["gone-dml 1.2, source 3f2a"]


def of(state, cache_dir):
    return continuation_problems(state.plan, cache_dir, None, packages_of(state))


def test_results_outside_the_plan_are_reported_and_ignored(tmp_path, plan):
    driver = Driver(tmp_path, replace(plan, seeds=(0,)))
    for trial in plan.trials():
        driver.ended(trial)
    state = read_state(tmp_path)
    (said,) = find_contradictions(state)
    assert "ledger.jsonl has 2 trial(s) that plan.json does not have" in said
    projection = Projection(state)
    projection.update()
    assert projection.runs.keys() == state.trials.keys()
    assert projection.parent_tags()["tune_dml.finished"] == "2"


def test_trials_of_different_code_are_reported(tmp_path, plan):
    """The method changed during the sweep, or before a resume. Failed trials do not count."""
    driver = Driver(tmp_path, plan)
    old, new = {"own.loss": "1", "own.parts": "1"}, {"own.loss": "2", "own.late": "1"}
    first, second, third, fourth = driver.trials
    driver.ended(first, "failed", code={"own.loss": "0"})
    driver.ended(second, code=old)
    driver.ended(third, code=old)
    assert not list(find_contradictions(read_state(tmp_path)))
    driver.event("reset", first.key)
    driver.ended(fourth, code=new)
    driver.ended(first, code=new)
    (said,) = find_contradictions(read_state(tmp_path))
    where = f"{fourth.cell.label}, seed {fourth.seed},"
    assert f"the code of own.loss was changed while the sweep ran: 2 of 4 trials, first {where} trained with" in said


def test_code_edited_before_a_resume_is_reported(tmp_path, plan, monkeypatch):
    """Only packages that the sweep's trials used count; others may change or be missing."""
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("own_loss", "other_loss"):
        (tmp_path / f"{module}.py").write_text("class Mine: ...\n")
    driver = Driver(tmp_path / "toy", plan)
    assert not describe_edited_code(read_state(driver.folder))
    driver.ended(driver.trials[0], code={"own_loss": source_digest(tmp_path / "own_loss.py"), "gone_loss": "1"})
    assert not describe_edited_code(read_state(driver.folder))
    for module in ("own_loss", "other_loss"):
        (tmp_path / f"{module}.py").write_text("class Mine: ...  # edited\n")
    (said,) = describe_edited_code(read_state(driver.folder))
    assert said.startswith("the code of own_loss changed after some trials")
