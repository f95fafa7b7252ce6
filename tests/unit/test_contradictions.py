"""What a sweep's record says against itself is said wherever the sweep is shown."""

import dataclasses
import json
import re

import pytest
from helpers.toys import Driver, event_of, plan_of

from trainables.registries import source_digest
from tune_dml.planning.continuation import continuation_problems
from tune_dml.record.contradictions import contradictions, edited_code
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import results_of
from tune_dml.record.state import packages_of, read_state
from tune_dml.space import Grid, Knob


@pytest.fixture
def plan():
    return plan_of(Knob("loss.margin", Grid((0.1, 1.0))))


@pytest.mark.parametrize("what", ["settings", "knobs"])
def test_a_plan_that_was_changed_by_hand_is_said_and_not_gone_on_with(tmp_path, plan, what, cache_dir):
    """Its other trials would be trained by other settings, under the names of these."""
    plan.save(tmp_path / "plan.json")
    body = json.loads((tmp_path / "plan.json").read_text())
    body["cells"][1][what]["loss.margin"] = 0.7
    (tmp_path / "plan.json").write_text(json.dumps(body))
    (said,) = results_of(tmp_path).notes
    assert "plan.json was changed since it was stored: loss.margin=1 has settings that do not match" in said
    problems = of(read_state(tmp_path), cache_dir)
    assert any("was changed since" in problem.rule for problem in problems)


def test_a_package_that_brought_the_methods_and_is_gone_is_named(tmp_path, plan, cache_dir):
    """Its loss alone would be called unknown, and another one of a like name advised."""
    driver = Driver(tmp_path, plan)
    driver.event("session", provenance={"methods": {"gone-dml": "1.2, source 3f2a", "numpy": "2, source 1b2c"}})
    assert not [problem for problem in of(read_state(tmp_path), cache_dir) if problem.place == "methods"]
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(re.sub('"loss.name": "[^"]*"', '"loss.name": "of_gone"', plan_file.read_text()))
    missing = [problem for problem in of(read_state(tmp_path), cache_dir) if problem.place == "methods"]
    assert [problem.value for problem in missing] == ["gone-dml 1.2, source 3f2a"]


def of(state, cache_dir):
    return continuation_problems(state.plan, cache_dir, None, packages_of(state))


def test_results_that_the_plan_does_not_have_are_said(tmp_path, plan):
    dataclasses.replace(plan, seeds=(0,)).save(tmp_path / "plan.json")
    with Ledger(tmp_path) as ledger:
        for trial in plan.trials():
            ledger.write(event_of("ended", trial.key, status="finished", metrics={}))
    (said,) = contradictions(read_state(tmp_path))
    assert "ledger.jsonl has 2 trial(s) that plan.json does not have" in said


def test_trials_that_ran_different_code_are_said(tmp_path, plan):
    """Somebody worked on the method while the sweep ran, or before it was resumed. What failed first is nobody's figure."""
    driver = Driver(tmp_path, plan)
    old, new = {"own.loss": "1", "own.parts": "1"}, {"own.loss": "2", "own.late": "1"}
    first, second, third, fourth = driver.trials
    driver.ended(first, "failed", code={"own.loss": "0"})
    driver.ended(second, code=old)
    driver.ended(third, code=old)
    assert not contradictions(read_state(tmp_path))
    driver.event("reset", first.key)
    driver.ended(fourth, code=new)
    driver.ended(first, code=new)
    (said,) = contradictions(read_state(tmp_path))
    where = f"{fourth.cell.label}, seed {fourth.seed},"
    assert f"the code of own.loss was changed while the sweep ran: 2 of 4 trials, first {where} trained with" in said


def test_code_that_was_edited_before_a_sweep_goes_on_is_said_and_no_other_package_is(tmp_path, plan, monkeypatch):
    """Only what the sweep's trials trained with counts: another package may be worked on, or be gone."""
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("own_loss", "other_loss"):
        (tmp_path / f"{module}.py").write_text("class Mine: ...\n")
    driver = Driver(tmp_path / "toy", plan)
    assert not edited_code(read_state(driver.folder))
    driver.ended(driver.trials[0], code={"own_loss": source_digest(tmp_path / "own_loss.py"), "gone_loss": "1"})
    assert not edited_code(read_state(driver.folder))
    for module in ("own_loss", "other_loss"):
        (tmp_path / f"{module}.py").write_text("class Mine: ...  # edited\n")
    (said,) = edited_code(read_state(driver.folder))
    assert said.startswith("the code of own_loss changed after some trials")
