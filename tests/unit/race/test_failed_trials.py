"""Races with failed trials: a failed trial is a gap and settles no cell."""

import numpy as np
import pytest
from helpers.races import FAILED, FULL, RULE, RaceDrive, plan, reasons_of
from helpers.toys import event_of

from tune_dml.cli._race import race_data, race_lines
from tune_dml.record.judging.race import RaceRule
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import Results, results_of
from tune_dml.record.state import read_state
from tune_dml.report import write_report
from tune_dml.report.analysis import analyse
from tune_dml.stats.sequential.racing import MAX_FAILURES

LABELS = ("rho=0.01", "rho=0.1", "rho=0.5", "rho=0.9")
BEST = "rho=0.1"
TRUTH = {"off": 60.0, **dict.fromkeys(LABELS, 71.0), BEST: 74.0}


def losing(lost, means=TRUTH):
    """Return simulated values with noise of s.d. 1.2; trials fail whose (label, seed) `lost` accepts."""

    def value(trial):
        if lost(trial.cell.label, trial.seed):
            return FAILED
        noise = np.random.default_rng([1, trial.seed, trial.cell.index]).normal()
        return means[trial.cell.label] + np.random.default_rng(trial.seed).normal() + 1.2 * noise

    return value


def raced(folder, lost, rule=RULE, **options):
    """Run a race to its end, and return its state."""
    drive = RaceDrive(folder / "toy", plan(), rule, losing(lost, **options))
    return drive, drive.finish()


def retry_failed(drive):
    """Write the events that `resume --retry-failed` writes before its session."""
    state = read_state(drive.folder)
    with Ledger(drive.folder) as ledger:
        for key in state.trials:
            if state.trial(key).status in {"failed", "diverged"}:
                ledger.write(event_of("reset", key))


def test_the_best_value_that_loses_one_trial_of_a_one_seed_block_never_becomes_does_not_matter(tmp_path):
    drive, state = raced(tmp_path, lambda label, seed: label == BEST and seed == 3)
    knob = analyse(results_of(drive.folder)).knobs[0]
    page = write_report(results_of(drive.folder), tmp_path / "report").html.read_text()
    assert "does not matter" not in knob.sensitivity.reason
    assert knob.sensitivity.verdict == "sensitive"
    assert "rho does not matter" not in page
    assert FULL in page  # the report names what failed
    assert reasons_of(state) == {**dict.fromkeys(TRUTH, "worse"), BEST: "best"}
    assert state.race.over == "decided"


def test_a_seed_that_fails_in_all_cells_decides_nothing(tmp_path):
    _, state = raced(tmp_path, lambda label, seed: seed == 3)
    assert state.race.over == "decided"
    assert "diverged" not in reasons_of(state).values()
    assert reasons_of(state)[BEST] == "best"


def test_a_value_that_always_fails_stops_after_the_limit_and_is_named(tmp_path):
    drive, state = raced(tmp_path, lambda label, seed: label == "rho=0.9")
    race, cells = state.race, {cell.label: cell.digest for cell in state.plan.cells}
    assert race.over == "failed"
    assert [label for label, digest in cells.items() if digest in race.failed] == ["rho=0.9"]
    assert race.settled[cells["rho=0.9"]].sentence.startswith(
        "after 8 seeds: its last 8 trials failed, so it gets no more"
    )
    assert race.settled[cells[BEST]].sentence.startswith(f"after {len(state.plan.seeds)} seeds: the best, or within")
    assert race.settled[cells[BEST]].unjudged == "rho=0.9"
    assert sum(trial.cell.label == "rho=0.9" for trial in state.trials.values()) == MAX_FAILURES
    results = Results.of(state)
    last = list(race_lines(results))[-1]
    assert "not decided, because trials of rho=0.9 failed repeatedly" in last
    assert "still open" not in last
    assert race_data(results)["failed"] == ["rho=0.9"]
    assert drive.session() == []


@pytest.mark.parametrize(
    "lost", [lambda label, seed: label == "rho=0.9", lambda label, seed: label == BEST and seed > 2]
)
def test_no_knob_is_called_insensitive_while_a_value_has_failed(tmp_path, lost):
    means = {"off": 60.0, **dict.fromkeys(LABELS, 71.0)}
    drive, state = raced(tmp_path, lost, RaceRule(4.0, 40), means=means)
    knob = analyse(results_of(drive.folder), margin=4.0).knobs[0]
    page = write_report(results_of(drive.folder), tmp_path / "report", margin=4.0).html.read_text()
    assert state.race.over == "failed"
    assert knob.sensitivity.verdict == "undecided"
    assert "failed" in knob.sensitivity.reason
    assert FULL in page
    assert "gets no more and is not judged" in page


def test_if_all_trials_fail_the_race_ends_at_the_limit(tmp_path):
    drive, state = raced(tmp_path, lambda label, seed: True)
    assert state.race.over == "failed"
    assert len(state.trials) == MAX_FAILURES * len(state.plan.cells)
    assert set(reasons_of(state).values()) == {"failed"}
    assert write_report(results_of(drive.folder), tmp_path / "report").html.exists()


def test_retried_trials_count_and_the_race_is_judged_again(tmp_path):
    drive, state = raced(tmp_path, lambda label, seed: label == BEST)
    assert state.race.over == "failed"
    drive.value = losing(lambda label, seed: False)
    retry_failed(drive)
    assert read_state(drive.folder).race.over == ""
    first = drive.session(2)
    again = read_state(drive.folder)
    state = drive.finish()
    assert len(first) == 2
    assert again.is_incomplete
    assert state.race.over == "decided"
    assert reasons_of(state)[BEST] == "best"
    assert not state.race.failed
    assert any(text.startswith(f"stops: {BEST} after") and "the best" in text for text in drive.said)
    assert analyse(results_of(drive.folder)).knobs[0].sensitivity.verdict == "sensitive"


def test_a_gap_filled_after_the_decision_is_judged_at_no_further_level(tmp_path):
    drive, before = raced(tmp_path, lambda label, seed: label == BEST and seed == 3)
    drive.value = losing(lambda label, seed: False)
    retry_failed(drive)
    state = drive.finish()
    assert state.race.over == "decided"
    assert state.race.judged[: len(before.race.judged)] == before.race.judged
    assert not [trial for trial in state.trial_states.values() if trial.status == "failed"]


@pytest.mark.slow
def test_an_interrupted_race_with_failures_takes_the_same_decisions(tmp_path):
    lost = lambda label, seed: label == "rho=0.9" or (label == BEST and seed in {3, 5})  # noqa: E731
    whole, state = raced(tmp_path / "whole", lost)
    total = len(state.trials)
    for after in range(1, total, 7):
        again = RaceDrive(tmp_path / f"cut{after}" / "toy", whole.begun, RULE, losing(lost))
        first, second = again.session(after), again.session()
        assert again.events() == whole.events(), after
        assert len({*first, *second}) == len(first) + len(second) == total


def test_a_stored_race_that_counted_failures_as_divergence_continues_the_cell(tmp_path):
    """Such a ledger has `settled ... diverged` for a cell with one failed trial, then `race_over decided`."""
    drive = RaceDrive(tmp_path / "toy", plan(), RULE, losing(lambda label, seed: label == BEST and seed == 3))
    drive.session(15 + 5)
    state = read_state(drive.folder)
    assert [seeds for seeds, _ in state.race.judged] == [3]
    best = state.plan.cells[2]
    with Ledger(drive.folder) as ledger:
        ledger.write(event_of("judged", seeds=4, level=0.001))
        fields = {"against": "", "margin": 1.0, "level": 0.001, "effect": None, "seeds": 4}
        for cell in state.plan.cells:
            ledger.write(event_of("settled", cell=cell.digest, why="diverged" if cell is best else "tied", **fields))
        ledger.write(event_of("race_over", why="decided"))
    stored = read_state(drive.folder)
    assert stored.race.over == ""
    assert best.digest not in stored.race.settled
    assert any(f"{BEST} was stopped as diverged" in note for note in stored.notes)
    assert analyse(Results.of(stored)).knobs[0].sensitivity.verdict != "insensitive"
    assert write_report(Results.of(stored), tmp_path / "report").html.exists()
    state = drive.finish()
    assert state.race.over == "decided"
    assert reasons_of(state)[BEST] == "best"


def test_a_failed_trial_that_diverges_on_retry_ends_its_cell(tmp_path):
    drive, state = raced(tmp_path, lambda label, seed: label == BEST and seed < 3)
    assert state.race.over == "decided"
    whole = losing(lambda label, seed: False)
    drive.value = lambda trial: np.nan if trial.cell.label == BEST else whole(trial)
    retry_failed(drive)
    state = drive.finish()
    assert state.race.over == "decided"
    assert reasons_of(state)[BEST] == "diverged"
    assert analyse(results_of(drive.folder)).knobs[0].sensitivity.verdict != "insensitive"


def test_a_confirming_trial_that_is_retried_does_not_reopen_the_race(tmp_path):
    drive, state = raced(tmp_path, lambda label, seed: False)
    with Ledger(drive.folder) as ledger:
        ledger.write(event_of("reset", "of-a-fresh-seed"))
    assert (state.race.over, read_state(drive.folder).race.over) == ("decided", "decided")
