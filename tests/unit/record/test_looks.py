"""Looks: which are recorded, which data each had, and who may write one."""

import json
import subprocess
import sys

import pytest
from helpers.toys import ETA, METRIC, Driver, event_of, plan_of, write_sweep

import tune_dml
from trainables.errors import ConfigError
from tune_dml.record.judging.looks import Look, record_look
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import results_of
from tune_dml.record.state import SweepState, look_at_sweep, read_state
from tune_dml.report.analysis import analyse


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path / "toy", plan_of(ETA, seeds=3))


def look(folder, by="report"):
    record_look(folder, look_at_sweep(read_state(folder), by))
    return read_state(folder).looks


def run_more_values(state):
    grown = state.plan.extend(values={"regularizer.eta": [2.0, 4.0]})
    Driver(state.folder, grown).run(*(trial for trial in grown.trials() if trial.key not in state.trial_states))


def test_a_look_records_the_present_trials(driver):
    driver.run(*driver.trials[:7])
    (first,) = look(driver.folder, "resume")
    assert (first.by, first.planned, first.trials) == ("resume", 3, 7)
    assert first.seeds == pytest.approx(7 / 3)
    assert results_of(driver.folder).looks == (first,)


@pytest.mark.parametrize(
    "spoilt", [('"seeds"', '"reeds"'), ('"by"', '"cy"'), ('"trials": 7', '"trials": "x"'), ("{", "[")]
)
def test_a_damaged_look_is_reported_and_skipped(driver, spoilt):
    driver.run(*driver.trials[:7])
    look(driver.folder, "resume")
    file = driver.folder / "looks.jsonl"
    file.write_text(file.read_text().replace(*spoilt))
    state = read_state(driver.folder)
    assert state.looks == []
    assert [note for note in state.notes if note.startswith("looks.jsonl: ")]


def test_without_possible_verdict_no_look_is_recorded(driver):
    assert look(driver.folder) == []
    driver.run(*driver.trials[:4])  # one cell with two seeds, the others with one
    assert look(driver.folder) == []
    driver.run(driver.trials[4])
    assert len(look(driver.folder)) == 1


def test_diverged_trials_count_as_ended(driver):
    for number, trial in enumerate(driver.trials):
        driver.ended(trial, "finished" if number % 3 else "diverged", metrics={METRIC: 1.0} if number % 3 else {})
    assert look(driver.folder)[0].seeds == 3


def test_a_look_with_failed_trials_leaves_error_for_the_next(driver):
    """The usual workflow after a lost node: look, retry the failed trials, look again."""
    driver.run(*driver.trials)
    for trial in driver.trials[:2]:
        driver.ended(trial, "failed")
    first = look(driver.folder)
    assert [(one.seeds, one.failed) for one in first] == [(pytest.approx(7 / 3), 2)]
    assert analyse(results_of(driver.folder)).looks.level == pytest.approx(0.04 * 7 / 9)
    driver.run(driver.trials[0])
    unrecorded = analyse(results_of(driver.folder)).looks.level
    second = look(driver.folder)
    assert [(one.seeds, one.failed) for one in second] == [(pytest.approx(7 / 3), 2), (pytest.approx(8 / 3), 1)]
    assert analyse(results_of(driver.folder)).looks.level == pytest.approx(unrecorded)
    driver.run(driver.trials[1])
    look(driver.folder)
    last = analyse(results_of(driver.folder)).looks
    assert (last.seeds, last.spent) == (pytest.approx((7 / 3, 8 / 3, 3.0)), pytest.approx(0.04))
    assert last.level > 0.01


def test_a_look_after_values_were_added_gets_no_credit_for_earlier_looks(driver):
    driver.run(*driver.trials)
    look(driver.folder)
    run_more_values(read_state(driver.folder))
    unrecorded = analyse(results_of(driver.folder)).looks
    first, second = look(driver.folder)
    assert second.cells == first.cells + 2
    looks = analyse(results_of(driver.folder)).looks
    assert looks.grown == unrecorded.grown == {1}
    assert looks.level == pytest.approx(looks.spent - 0.04)
    assert looks.seeds == unrecorded.seeds
    assert looks.level < 0.01


def test_retried_trials_and_added_values_are_new_data(driver):
    driver.run(*driver.trials)
    driver.ended(driver.trials[0], "diverged")
    look(driver.folder)
    driver.run(driver.trials[0])
    state = read_state(driver.folder)
    before = look(driver.folder)
    assert [one.seeds for one in before] == [3, pytest.approx(3 + 3 / 9)]
    run_more_values(state)
    assert [one.seeds for one in look(driver.folder)] == [3, pytest.approx(10 / 3), pytest.approx(10 / 3 + 6 * 3 / 15)]


def test_looks_folded_incrementally_equal_those_folded_at_once(driver):
    state = SweepState(driver.folder, driver.plan)
    for trial in driver.trials:
        driver.run(trial)
        look(driver.folder)
        state.update()
        assert state.looks == read_state(driver.folder).looks
    assert len(state.looks) == 5
    assert [one.seeds for one in state.looks] == sorted({one.seeds for one in state.looks})


def test_a_truncated_line_is_no_look_and_is_removed(driver):
    driver.run(*driver.trials)
    (driver.folder / "looks.jsonl").write_text('{"seeds": 2.0, "plan')
    assert read_state(driver.folder).looks == []
    assert [one.by for one in look(driver.folder)] == ["report"]


def test_a_report_on_a_sweep_that_another_process_runs_is_recorded(tmp_path):
    results = write_sweep(tmp_path / "toy", missing=[("rho=1", 2)])
    sweep = tune_dml.load_sweep("toy", storage=tmp_path)
    with Ledger(results.folder) as ledger:
        size = (results.folder / "ledger.jsonl").stat().st_size
        tune_dml.write_report(sweep, tmp_path / "report")
        assert [one.by for one in read_state(results.folder).looks] == ["report"]
        assert (results.folder / "ledger.jsonl").stat().st_size == size
        ledger.write(event_of("note", text="the driver is not disturbed"))


def test_a_second_report_of_a_finished_sweep_spends_nothing(tmp_path, monkeypatch):
    results = write_sweep(tmp_path / "toy")
    tune_dml.write_report(tune_dml.load_sweep("toy", storage=tmp_path), tmp_path / "one")

    def refused(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tune_dml.record.judging.looks.open_for_append", refused)
    tune_dml.write_report(tune_dml.load_sweep("toy", storage=tmp_path), tmp_path / "two")
    assert len(read_state(results.folder).looks) == 1
    (results.folder / "looks.jsonl").unlink()
    with pytest.raises(ConfigError, match="verdicts on new data are shown only after"):
        tune_dml.write_report(tune_dml.load_sweep("toy", storage=tmp_path), tmp_path / "three")
    assert not (tmp_path / "three").exists()


def test_an_unwritable_report_is_refused_with_a_remedy(tmp_path, monkeypatch, command_line):
    """Formerly a read-only copy printed *report.html.tmp: Read-only file system*."""
    results = write_sweep(tmp_path / "toy")
    tune_dml.write_report(tune_dml.load_sweep("toy", storage=tmp_path), tmp_path / "one")
    with pytest.raises(ConfigError, match="path: must name a folder"):
        tune_dml.write_report(tune_dml.load_sweep("toy", storage=tmp_path), "")

    def read_only(dir, prefix):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tune_dml.planning.request.tempfile.TemporaryDirectory", read_only)
    code, _, error = command_line("report", "toy", "--storage", tmp_path)
    rule = f"-o: must be a folder that can be written: Read-only file system, but got '{results.folder / 'report'}'."
    assert (code, error) == (1, f"{rule} Name another folder for the report: -o DIR.\n")


@pytest.mark.slow
def test_two_simultaneous_looks_are_recorded_once(driver):
    driver.run(*driver.trials)
    code = (
        "import sys; from pathlib import Path; from tune_dml.record.judging.looks import record_look;"
        "from tune_dml.record.state import look_at_sweep, read_state; folder = Path(sys.argv[1]);"
        "record_look(folder, look_at_sweep(read_state(folder), 'report'))"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(driver.folder)]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    lines = (driver.folder / "looks.jsonl").read_text().splitlines()
    assert [Look(**json.loads(line)).seeds for line in lines] == [3]


def test_a_race_cannot_be_extended(tmp_path, driver):
    driver.event("race", margin=1.0, max_seeds=9, budget=None)
    before = (driver.folder / "ledger.jsonl").read_bytes()
    for seeds in ([7], 9):
        with pytest.raises(ConfigError, match="a race plans its seeds itself"):
            tune_dml.extend_sweep("toy", seeds=seeds, storage=tmp_path)
    assert (driver.folder / "ledger.jsonl").read_bytes() == before
