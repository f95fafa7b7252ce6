"""A race of which trials fail: a failed trial is a hole, and no cell is settled by it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.races import FAILED, FULL, RaceDrive, plan, value_of

from tune_dml.record.race import RaceRule
from tune_dml.record.results import Results, results_of
from tune_dml.record.state import read_state
from tune_dml.report import write_report
from tune_dml.report.measured import measure

LABELS = ("rho=0.01", "rho=0.1", "rho=0.5", "rho=0.9")
BEST = "rho=0.1"
TRUTH = {"off": 60.0, **dict.fromkeys(LABELS, 71.0), BEST: 74.0}


@pytest.fixture(autouse=True)
def _the_disk_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)


def losing(lost, means=TRUTH):
    """Numbers of a law, of which the trials fail whose (label, seed) `lost` accepts; noise of s.d. 1.2 in a cell."""

    def value(trial):
        if lost(trial.cell.label, trial.seed):
            return FAILED
        noise = np.random.default_rng([1, trial.seed, trial.cell.index]).normal()
        return means[trial.cell.label] + np.random.default_rng(trial.seed).normal() + 1.2 * noise

    return value


def raced(folder, lost, rule=RaceRule(1.0, 40), **options):
    """A race to its end, and its state."""
    drive = RaceDrive(folder / "toy", plan(), rule, losing(lost, **options))
    drive.session(most=5000)
    return drive, read_state(drive.folder)


def test_the_best_value_that_loses_one_trial_of_a_one_seed_block_never_becomes_does_not_matter(tmp_path):
    drive, state = raced(tmp_path, lambda label, seed: label == BEST and seed == 3)
    knob = measure(results_of(drive.folder)).knobs[0]
    page = write_report(results_of(drive.folder), tmp_path / "report").html.read_text()
    assert "does not matter" not in knob.sensitivity.reason
    assert knob.sensitivity.verdict == "sensitive"
    assert "rho does not matter" not in page
    assert FULL in page  # the report names what failed
    why = {cell.label: state.race.settled[cell.digest].why for cell in state.plan.cells}
    assert why == {**dict.fromkeys(TRUTH, "worse"), BEST: "best"}
    assert state.race.over == "decided"


def test_a_seed_that_fails_in_all_cells_decides_nothing(tmp_path):
    _, state = raced(tmp_path, lambda label, seed: seed == 3)
    assert state.race.over == "decided"
    assert "diverged" not in {settled.why for settled in state.race.settled.values()}
    assert state.race.settled[state.plan.cells[2].digest].why == "best"
