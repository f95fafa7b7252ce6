"""Races without training: stopped cells, recorded events, and equal decisions after any interruption."""

import io
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.races import MEANS, RACE, RULE, RaceDrive, driver_of, plan, reasons_of, value_of
from helpers.toys import METRIC, event_of
from rich.console import Console

from tune_dml.cli._race import race_data, race_lines
from tune_dml.planning.continuation import relocate_plan
from tune_dml.planning.request import Racing
from tune_dml.planning.study import Search
from tune_dml.record.events import TrialEnd
from tune_dml.record.judging.looks import record_look
from tune_dml.record.judging.race import RaceRule
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import Results, results_of
from tune_dml.record.state import SweepState, look_at_sweep, read_state
from tune_dml.report import write_report
from tune_dml.report.analysis import analyse
from tune_dml.running.recorder import Recorder
from tune_dml.running.screen.progress import Progress
from tune_dml.running.search.race import _hours_spent, _race_problems
from tune_dml.space import Grid, Knob, LogRange
from tune_dml.stats.verdicts.best import judge_best


@pytest.fixture
def decided(tmp_path):
    drive = RaceDrive(tmp_path / "toy", plan())
    drive.session()
    return drive


def test_a_race_decides_with_fewer_trials_and_reports_each_stop_and_look(decided):
    state = read_state(decided.folder)
    cells = {cell.label: cell.digest for cell in state.plan.cells}
    assert state.race.over == "decided"
    assert reasons_of(state) == {**dict.fromkeys(MEANS, "worse"), "rho=0.1": "best"}
    counts = Counter(trial.cell.label for trial in state.trials.values())
    assert counts["rho=0.9"] < counts["rho=0.01"] <= counts["rho=0.1"] == len(state.plan.seeds)
    assert sum(counts.values()) < len(cells) * len(state.plan.seeds)
    assert {trial.status for trial in state.trial_states.values()} == {"finished"}
    first = state.race.settled[cells["rho=0.9"]]
    assert first.sentence.startswith(f"after {counts['rho=0.9']} seeds: worse than rho=")
    assert first.margin == 1.0
    assert 0 < first.level < 0.05
    assert any(text.startswith("stops: rho=0.9 after") for text in decided.said)
    assert [look.by for look in state.looks] == ["race"] * len(state.race.judged)
    assert [look.seeds for look in state.looks] == [seeds for seeds, _ in state.race.judged]
    assert {look.planned for look in state.looks} == {RULE.max_seeds}
    assert sum(level for _, level in state.race.judged) == pytest.approx(0.05 * 0.8 * len(state.plan.seeds) / 40)
    before = decided.events()
    assert decided.session() == []  # a decided race does nothing more
    assert decided.events() == before


def judged(drive):
    """Return the knob as in the report."""
    return analyse(results_of(drive.folder)).knobs[0]


@pytest.mark.parametrize(
    ("means", "goal", "verdict"),
    [
        ((71.2, 72.0, 66.0, 55.0), "maximize", "sensitive"),
        ((71.2, 71.3, 71.1, 71.2), "maximize", "insensitive"),
        ((71.2, 71.3, 71.1, 69.4), "minimize", "sensitive"),
    ],
)
def test_the_report_agrees_with_the_race(tmp_path, means, goal, verdict):
    labels = ("rho=0.01", "rho=0.1", "rho=0.5", "rho=0.9")
    sign = 1.0 if goal == "maximize" else -1.0
    means = {"off": 50.0, **dict(zip(labels, means, strict=True))}
    drive = RaceDrive(tmp_path / "toy", plan(goal=goal), RaceRule(1.0, 100), lambda t: value_of(t, means, sign))
    state, knob = drive.finish(), judged(drive)
    assert state.race.over == "decided"
    assert knob.sensitivity.verdict == verdict
    values, axis = sign * knob.isolated.table.values, [float(level) for level in knob.levels]
    best = judge_best(values, axis, 1.0, alpha=knob.sensitivity.alpha, raced=knob.raced)
    reasons = reasons_of(state)
    assert "worse" not in {reasons[knob.isolated.table.labels[row]] for row in best.candidates}


def test_a_leading_baseline_does_not_end_the_race(tmp_path):
    means = {"off": 90.0, "rho=0.01": 71.2, "rho=0.1": 71.3, "rho=0.5": 71.0, "rho=0.9": 71.1}
    drive = RaceDrive(tmp_path / "toy", plan(), RaceRule(1.0, 100), lambda trial: value_of(trial, means))
    state = drive.finish()
    reasons = reasons_of(state)
    assert reasons.pop("off") == "best"
    assert set(reasons.values()) == {"best", "tied"}
    assert judged(drive).sensitivity.verdict == "insensitive"


def test_the_report_lists_when_and_why_cells_stopped_and_misses_no_skipped_trial(decided, tmp_path):
    page = write_report(results_of(decided.folder), tmp_path / "report").html.read_text()
    for settled in read_state(decided.folder).race.settled.values():
        assert settled.sentence in page
    assert "The verdicts combine the intervals of all its blocks, each at its level" in page
    assert "tune-dml extend" not in page  # which a race refuses
    results = Results.of(read_state(decided.folder))
    assert results.count("missing") == results.count("running") == 0
    assert results.count("finished") == len(results.trials)
    assert results.plan.seeds == tuple(range(len(results.plan.seeds)))
    assert results.race.over == "decided"


@pytest.mark.slow
def test_an_interrupted_race_takes_the_same_decisions(decided, tmp_path):
    whole, total = decided.events(), len(read_state(decided.folder).trials)
    for after in range(1, total, 2):
        again = RaceDrive(tmp_path / f"cut{after}" / "toy", decided.begun)
        first = again.session(after)
        second = again.session()
        assert again.events() == whole, after
        assert len({*first, *second}) == len(first) + len(second) == total


@pytest.mark.slow
def test_a_judgement_cut_between_two_events_is_completed(decided, tmp_path):
    lines = (decided.folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    looks = (decided.folder / "looks.jsonl").read_text()
    kinds = [json.loads(line)["kind"] for line in lines]
    for number in [number for number, kind in enumerate(kinds) if kind in RACE]:
        again = RaceDrive(tmp_path / f"dead{number}" / "toy", decided.begun)
        (again.folder / "ledger.jsonl").write_text("".join(lines[:number]))
        judged = kinds[: number + 1].count("judged")  # the look is on record before the judgement
        (again.folder / "looks.jsonl").write_text("".join(looks.splitlines(keepends=True)[:judged]))
        again.session()
        assert again.events() == decided.events(), kinds[number]


def test_an_additional_look_spends_error_and_changes_no_later_replay(tmp_path):
    drive = RaceDrive(tmp_path / "toy", plan())
    drive.session(len(plan().trials()) + 1)
    state = read_state(drive.folder)
    record_look(drive.folder, look_at_sweep(state, "report"))
    state = drive.finish()
    assert [look.by for look in state.looks][:3] == ["race", "report", "race"]
    assert 3 < state.looks[1].seeds < 4
    spent = state.race.judged[1][1]
    assert spent == pytest.approx(0.04 / 40 * (4 - state.looks[1].seeds))


def test_a_limit_of_seeds_ends_a_race_and_a_higher_one_continues_it(tmp_path):
    drive = RaceDrive(tmp_path / "toy", plan(), RaceRule(1.0, 5))
    state = drive.finish()
    assert (state.race.over, len(state.plan.seeds)) == ("max_seeds", 5)
    assert len(state.race.settled) < len(state.plan.cells)
    assert drive.session() == []
    drive.rule = RaceRule(1.0, 40)
    assert drive.session()
    assert read_state(drive.folder).race.over == "decided"


def test_a_race_keeps_its_later_seeds_when_its_pictures_have_moved(tmp_path):
    begun = plan()
    arms = tuple(replace(arm, base_settings={**arm.base_settings, "data.root": "/began"}) for arm in begun.arms)
    drive = RaceDrive(tmp_path / "toy", replace(begun, arms=arms))
    drive.session(most=22)
    state = read_state(drive.folder)
    moved = read_state(drive.folder, relocate_plan(state.stored_plan, tmp_path))
    assert (moved.plan.seeds, list(moved.trials)) == (state.plan.seeds, list(state.trials))
    assert len(moved.plan.seeds) > len(begun.seeds)
    assert {trial.cell.settings["data.root"] for trial in moved.trials.values()} == {str(tmp_path)}


def test_a_budget_ends_a_race_and_cut_trials_are_not_missing(tmp_path):
    drive = RaceDrive(tmp_path / "toy", plan(), RaceRule(1.0, 40, budget=0.07))  # 36 s a trial
    assert len(drive.session()) == 8  # one was running when the budget was spent
    state = read_state(drive.folder)
    assert state.race.over == "budget"
    assert _hours_spent(state) == pytest.approx(0.08)
    assert Results.of(state).count("missing") == 0
    assert drive.session() == []
    drive.rule = RULE
    state = drive.finish()
    assert state.race.over == "decided"
    assert len(plan().trials()) <= len(state.trials)


def test_cells_that_diverge_stop_and_the_others_are_decided_if_there_are_any(tmp_path):
    drive = RaceDrive(tmp_path / "toy", plan(), value=lambda trial: value_of(trial, {**MEANS, "rho=0.9": np.nan}))
    state = drive.finish()
    reasons = reasons_of(state)
    assert state.race.over == "decided"
    assert state.race.settled[state.plan.cells[-1].digest].seeds == 3
    assert [label for label, why in reasons.items() if why == "diverged"] == ["rho=0.9"]
    assert reasons["rho=0.1"] == "best"
    drive = RaceDrive(tmp_path / "all", plan(), value=lambda trial: np.nan)
    assert len(drive.session()) == 15
    state = read_state(drive.folder)
    assert state.race.over == "decided"
    assert set(reasons_of(state).values()) == {"diverged"}


def test_a_race_from_one_seed_grows_to_the_first_look(tmp_path):
    drive = RaceDrive(tmp_path / "toy", plan(seeds=(4,)))
    state = drive.finish()
    assert state.plan.seeds[:3] == (4, 5, 6)
    assert state.race.judged[0][0] == 3
    assert state.race.over == "decided"


def test_a_finished_sweep_continues_as_a_race_and_its_look_counts(tmp_path):
    begun = plan()
    drive = RaceDrive(tmp_path / "toy", begun)
    with Ledger(drive.folder) as ledger:
        for trial in begun.trials():
            ledger.write(
                event_of("ended", trial.key, status="finished", metrics={METRIC: value_of(trial)}, seconds=1.0)
            )
    record_look(drive.folder, look_at_sweep(read_state(drive.folder), "sweep"))
    state = drive.finish()
    assert [look.planned for look in state.looks][:2] == [3, 40]
    assert state.race.judged[0] == (3, pytest.approx(0.04))  # the same data: the same level, not spent twice
    assert sum(level for _, level in state.race.judged) < 0.05
    assert state.stored_plan.identity() == begun.identity()


def test_each_bad_limit_and_another_margin_get_one_message(tmp_path, decided):
    problems = Racing(True, 2, 0.0).problems()
    assert [problem.place for problem in problems] == ["max_seeds", "budget"]
    assert Racing(True, 3, 0.1).problems() == []
    assert [problem.place for problem in Racing(False, 9, 1.0).problems()] == ["max_seeds", "budget"]
    search = SweepState(tmp_path, plan(Knob("optim.lr", LogRange(1e-4, 1e-1)), search=Search("tpe", 9)))
    assert "tpe" in str(_race_problems(search, RULE)[0])
    one = SweepState(tmp_path, plan(Knob("regularizer.rho", Grid((0.5,)))))
    assert "two values" in str(_race_problems(one, RULE)[0])
    present = SweepState(tmp_path, plan(seeds=6))
    assert "max_seeds=6" in str(_race_problems(present, RaceRule(1.0, 5))[0])
    assert _race_problems(present, RULE) == []
    assert "begun with 1" in str(_race_problems(read_state(decided.folder), RaceRule(2.0, 40))[0])


def test_the_end_of_a_race_lists_stopped_and_open_cells_reasons_and_cost(decided, tmp_path):
    results = Results.of(read_state(decided.folder))
    lines, data = list(race_lines(results)), race_data(results)
    assert [line.split()[1] for line in lines[:-1]] == ["off", "rho=0.5", "rho=0.9", "rho=0.01", "rho=0.1"]
    used, uniform = len(results.trials), 5 * len(results.plan.seeds)
    tail = f"after {len(results.plan.seeds)} seeds, {used} trials (uniform allocation: {uniform})"
    assert lines[-1] == f"Race:    decided {tail}"
    assert used < 0.6 * uniform
    assert (data["trials"], data["uniform_trials"], data["margin"]) == (used, uniform, 1.0)
    assert [row["cell"] for row in data["settled"]][-1] == "rho=0.1"
    assert list(race_lines(replace(results, race=None))) == []
    last = list(race_lines(Results.of(RaceDrive(tmp_path / "limited", plan(), RaceRule(1.0, 5)).finish())))[-1]
    assert "ended by --max-seeds 5 after 5 seeds" in last
    assert last.endswith("still open: rho=0.01, rho=0.1")


def test_the_live_view_counts_trials_that_a_race_has_requested(decided):
    console = Console(file=io.StringIO(), width=100, height=40)
    state = SweepState(decided.folder, decided.begun)
    progress = Progress(state, console)
    console.print(progress)
    assert "0/15 done" in console.file.getvalue()
    state.update()
    progress.recount()
    console.print(progress)
    drawn = console.file.getvalue()
    assert f"0/{len(state.trials)} done" in drawn
    rows = [line for line in drawn.splitlines() if line.startswith("rho=0.9")]
    assert rows[-1].count("·") == 3 < len(state.plan.seeds)


@pytest.mark.parametrize("races", [True, False])
def test_a_diverged_trial_has_no_value_in_a_race_and_the_worst_in_a_search(tmp_path, races):
    RaceDrive(tmp_path / "toy", plan())
    with Ledger(tmp_path / "toy") as ledger:
        if races:
            ledger.write(event_of("race", **vars(RULE)))
        state = read_state(tmp_path / "toy")
        first, second, *_ = state.trials
        ledger.write(event_of("ended", first, status="diverged", reason="", seconds=1.0, metrics={}))
        state.update()
        shown = Progress(state, None)
        recorder = Recorder(driver_of(state, ledger, shown))
        recorder._end(second, TrialEnd("diverged"))
    known = [recorder.proposals.trial_values[key] for key in (first, second)]
    assert (np.isnan(known) if races else np.isposinf(known)).all()


def test_seeds_that_come_out_equal_on_eight_queries_settle_no_cell(tmp_path):
    levels = {**dict.fromkeys(MEANS, 62.5), "rho=0.01": 75.0, "rho=0.9": 50.0}
    options = {"rule": replace(RULE, max_seeds=4), "value": lambda trial: levels[trial.cell.label]}
    for queries, over in ((10_000, "decided"), (8, "max_seeds")):
        state = RaceDrive(tmp_path / f"{queries}", plan(), queries=queries, **options).finish()
        assert (state.race.over, bool(state.race.settled)) == (over, queries > 8)
    standing = analyse(Results.of(state)).race.race
    assert np.flatnonzero(standing.worse | standing.tied).tolist() == [standing.leader]
