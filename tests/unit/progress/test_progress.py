"""The live view of a running sweep, and its status afterwards."""

import errno
import io
import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.toys import METRIC, plan_of
from rich.console import Console

from tune_dml.cli._status_table import _CELLS_SHOWN, status_table
from tune_dml.planning.study import Search
from tune_dml.programs.command import Program
from tune_dml.record.results import Results, TrialResult
from tune_dml.record.state import SweepState, TrialState
from tune_dml.running.screen.progress import Progress, is_foreground
from tune_dml.space import Grid, Knob
from tune_dml.text import duration


def make_plan(cells=2, seeds=2, proposed=0):
    """That many cells of 300 steps; the search proposes as many more."""
    plan = plan_of(Knob("loss.margin", Grid((1.0,))), seeds=seeds, overrides={"training.steps": 300})
    every = tuple(replace(plan.cells[0], index=i, label=f"γ={i}", digest=f"digest{i}") for i in range(cells))
    return replace(plan, cells=every, search=Search("tpe" if proposed else "grid", num_samples=proposed))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("NO_COLOR", "CI", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def file_console():
    return Console(file=io.StringIO(), width=100)


def terminal(height=40, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    return Console(file=stream, force_terminal=True, width=100, height=height, color_system="standard")


def text_of(console):
    stream = console.file
    if isinstance(stream, io.StringIO):
        return stream.getvalue()
    return stream.buffer.getvalue().decode(stream.encoding)


def drawn(progress, height=40, width=100):
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(progress)
    return text_of(console)


def start(progress, trial):
    progress.started(trial.key, trial.cell.label, trial.seed, 300)


def unrun(plan):
    return SweepState(Path("nowhere"), plan)


def test_a_file_gets_one_plain_line_a_start_and_an_end():
    plan, console, clock = make_plan(), file_console(), Clock()
    first, second = plan.trials()[:2]
    with Progress(unrun(plan), console, clock=clock) as progress:
        progress.slots = 1
        start(progress, first)
        progress.report(first.key, {"step": 100, METRIC: 61.25})
        clock.now = 10.0
        progress.ended(first.key, "finished", {METRIC: 63.456, "test/recall_at_1": 99.0}, "")
        start(progress, second)
        clock.now = 12.0
        progress.ended(second.key, "diverged", {}, "the loss is\nnan\x1b[31m")
        progress.note("one retry")
    assert text_of(console).splitlines() == [
        "[0/4] started: γ=0, seed 0",
        "[1/4, 30 s left] finished: γ=0, seed 0: val/recall_at_1 63.46 (10 s)",
        "[1/4] started: γ=1, seed 0",
        "[2/4, 20 s left] diverged: γ=1, seed 0: the loss is nan (2 s)",
        "one retry",
        "2/4 done, 1 diverged in 12 s",
    ]


def test_trials_reported_late_keep_their_times():
    plan, console, clock = make_plan(), file_console(), Clock()
    first = plan.trials()[0]
    with Progress(unrun(plan), console, clock=clock) as progress:
        progress.slots = 1
        clock.now = 10.0
        progress.started(first.key, first.cell.label, first.seed, ago=3.0)
        progress.ended(first.key, "finished", {METRIC: 63.0}, "", ago=2.6)
    assert "(0.4 s)" in text_of(console)
    assert "[1/4, 1 s left]" in text_of(console)


class ClosedOutput(io.StringIO):
    """Standard output of a closed pipe or on a full disk."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_sweep_continues_if_its_output_is_closed(number, is_terminal, monkeypatch):
    monkeypatch.setattr(os, "dup2", lambda *descriptors: None)  # Rich gives our standard output away
    plan = make_plan()
    console = Console(file=ClosedOutput(number), force_terminal=is_terminal, width=100)
    state = unrun(plan)
    with Progress(state, console) as progress:
        start(progress, plan.trials()[0])
        progress.ended(plan.trials()[0].key, "failed", {}, "why")
        progress.note("one retry")
    assert progress.seconds_left() is None  # a failed trial does not count for the estimated time


@pytest.mark.parametrize("variable", ["NO_COLOR", "CI"])
def test_a_terminal_without_colour_gets_plain_lines(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    plan, console = make_plan(), terminal()
    with Progress(unrun(plan), console) as progress:
        start(progress, plan.trials()[0])
        progress.note("said")
    text = text_of(console)
    assert "started" in text
    assert "said" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_no_console_shows_nothing(capfd):
    plan = make_plan()
    with Progress(unrun(plan)) as progress:
        start(progress, plan.trials()[0])
        progress.ended(plan.trials()[0].key, "failed", {}, "why")
        progress.note("said")
    assert capfd.readouterr() == ("", "")


def test_a_terminal_gets_a_live_view_and_lines_about_failures():
    plan, console = make_plan(), terminal()
    first, second = plan.trials()[:2]
    with Progress(unrun(plan), console) as progress:
        start(progress, first)
        progress.report(first.key, {"step": 100, METRIC: 61.25})
        progress.ended(second.key, "failed", {}, "out of memory: CUDA")
    text = text_of(console)
    assert "\x1b[" in text
    assert "failed: " in text
    assert "out of memory: CUDA" in text
    assert "started:" not in text
    assert text.endswith("\n")


def test_the_live_view_shows_cells_by_seeds():
    plan, clock = make_plan(), Clock()
    progress = Progress(unrun(plan), Console(file=io.StringIO(), width=100, height=40), clock=clock)
    trials = plan.trials()
    start(progress, trials[0])
    progress.report(trials[0].key, {"step": 100, METRIC: 61.25, "test/recall_at_1": 99.0})
    progress.ended(trials[1].key, "failed", {}, "")
    progress.ended(trials[2].key, "diverged", {}, "")
    clock.now = 185.0
    lines = [" ".join(line.split()) for line in drawn(progress).splitlines()]
    assert "running seed step val/recall_at_1 time" in lines
    assert "γ=0 0 100/300 61.25 3 min 05 s" in lines
    assert "γ=0 ▶ ≈" in lines
    assert "γ=1 ✗ ·" in lines
    assert lines[-1].endswith("2/4 done, 1 failed, 1 diverged, 1 running")
    assert "99" not in drawn(progress)


def test_ten_thousand_trials_are_counted_not_drawn():
    plan = make_plan(cells=1000, seeds=10)
    progress = Progress(unrun(plan), Console(file=io.StringIO(), width=100, height=40))
    trials = plan.trials()
    for trial in trials[:9000]:
        progress.ended(trial.key, "finished", {}, "")
    for trial in trials[9000:9100]:
        start(progress, trial)
    text = drawn(progress)
    assert len(text.splitlines()) < 20
    assert "9000/10000 done, 100 running" in text
    assert "and 88 more running" in text


def test_the_live_view_fits_a_small_window_and_ascii():
    plan = make_plan(cells=30)
    progress = Progress(unrun(plan), terminal(height=20))
    start(progress, plan.trials()[0])
    assert "γ=29" not in drawn(progress, height=20)
    poor = Progress(unrun(make_plan()), terminal(encoding="ascii"))
    poor.ended(make_plan().trials()[0].key, "finished", {}, "")
    assert "✓" not in drawn(poor)


def test_the_time_left_counts_slots_running_and_waiting_trials():
    plan, clock = make_plan(cells=5, seeds=2), Clock()
    progress = Progress(unrun(plan), clock=clock)
    trials = plan.trials()
    assert progress.seconds_left() is None
    for trial in trials[:2]:
        start(progress, trial)
    clock.now = 100.0
    for trial in trials[:2]:
        progress.ended(trial.key, "finished", {}, "")
    for trial in trials[2:4]:
        start(progress, trial)
    clock.now = 140.0  # 6 waiting trials of 100 s and twice 60 s left, two at a time
    assert progress.seconds_left() == pytest.approx((6 * 100 + 2 * 60) / 2)
    progress.slots = 10  # with room for all, the slowest decides
    assert progress.seconds_left() == pytest.approx(72.0)
    progress.slots = 100
    assert progress.seconds_left() == pytest.approx(60.0)


def test_earlier_finished_trials_count():
    plan = make_plan()
    state, keys = unrun(plan), [trial.key for trial in plan.trials()[:3]]
    states = map(TrialState, keys, ("finished", "failed", "running"))
    state.trial_states = dict(zip(keys, states, strict=True))
    assert "2/4 done, 1 failed" in drawn(Progress(state))
    again = Progress(state)
    start(again, plan.trials()[1])  # tried again
    assert "1/4 done, 1 running" in drawn(again)


def test_cells_not_yet_proposed_count():
    progress = Progress(unrun(make_plan(cells=1, seeds=2, proposed=4)))
    progress.started("unknown", "γ=5", 0, 300)
    text = drawn(progress)
    assert "0/10 done, 1 running" in text
    assert "0/300" in text


def test_events_from_many_threads_do_not_block_the_live_view():
    plan, console = make_plan(cells=8, seeds=4), terminal()
    trials = plan.trials()

    def feed(part):
        for trial in part:
            start(progress, trial)
            progress.report(trial.key, {"step": 1})
            progress.ended(trial.key, "failed", {}, "why")

    with Progress(unrun(plan), console) as progress:
        threads = [threading.Thread(target=feed, args=(trials[start::4],)) for start in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            progress._live.refresh()
        for thread in threads:
            thread.join()
    assert "32/32 done, 32 failed" in text_of(console)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (273_700, "3 d 4 h")],
)
def test_durations_are_formatted(seconds, text):
    assert duration(seconds) == text
    assert duration(float("nan")) == "?"


def results_with(plan, states, folder=Path("nowhere")):
    trials = [
        TrialResult(
            trial.key,
            trial.cell,
            trial.seed,
            status=states.get(number, "missing"),
            reason="out of memory: CUDA" if states.get(number) == "failed" else "",
            metrics={METRIC: 60.0 + number} if states.get(number) == "finished" else {},
        )
        for number, trial in enumerate(plan.trials())
    ]
    return Results(folder, plan, tuple(trials), {}, ())


def shown(results, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(status_table(results))
    return [" ".join(line.replace("│", " ").split()) for line in text_of(console).splitlines()]


def test_status_prints_metrics_by_cell_and_seed(tmp_path):
    plan = make_plan(cells=2, seeds=3)
    results = results_with(plan, {0: "finished", 1: "failed", 2: "running", 3: "failed", 4: "diverged"}, tmp_path)
    history = tmp_path / "trials" / plan.trials()[2].key / "history.jsonl"
    history.parent.mkdir(parents=True)
    history.write_text('{"step": 100, "time": 1.0, "val/recall_at_1": 1.0}\n')
    lines = shown(results)
    assert lines[0] == "interrupted 4/6: 1 of 6 trials finished, 1 interrupted, 1 diverged, 2 failed, 1 not run yet"
    assert "γ=0 60.00 stopped at 100/300 diverged" in lines
    assert "γ=1 failed failed ." in lines
    assert "failed: out of memory: CUDA [γ=1, seed 0 and 1 more]" in lines
    assert "diverged: no reason was recorded [γ=0, seed 2]" in lines


def test_the_status_table_shows_four_digits_of_a_programs_metric(tmp_path):
    results = results_with(make_plan(cells=1, seeds=2), {0: "finished"}, tmp_path)
    first = replace(results.trials[0], metrics={METRIC: 0.60049})
    plan = replace(results.plan, space=replace(results.plan.space, program=Program(("t",), ".")))
    assert "γ=0 0.6005 ." in shown(replace(results, plan=plan, trials=(first, *results.trials[1:])))


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_many_seeds_are_shown_below_each_other_and_no_number_is_cut(width):
    plan = make_plan(cells=2, seeds=20)
    lines = shown(results_with(plan, dict.fromkeys(range(40), "finished")), width)
    numbers = [word for line in lines for word in line.split() if re.fullmatch(r"[\d]+\.00", word)]
    assert sorted(map(float, numbers)) == [60.0 + number for number in range(40)]
    for label in ("γ=0", "γ=1"):
        named = [line for line in lines if line.startswith(label)]
        assert sum(len(line.split()) - 1 for line in named) == 20
    assert max(map(len, lines)) <= width


def test_of_many_cells_only_unfinished_ones_are_listed():
    plan = make_plan(cells=1000, seeds=10)
    results = results_with(plan, dict.fromkeys(range(10_000), "finished") | {4321: "failed"})
    lines = shown(results)
    assert "γ=321 done" not in lines
    assert any(line.startswith("γ=321 ") for line in lines)
    assert "999 of 1000 cells are not listed" in lines
    assert len(lines) < _CELLS_SHOWN


def test_labels_are_text_not_markup():
    plan = make_plan(cells=1, seeds=1)
    plan = replace(plan, cells=(replace(plan.cells[0], label="layers=[bold]x"),))
    assert any("layers=[bold]x" in line for line in shown(results_with(plan, {})))
    progress = Progress(unrun(plan))
    progress.started(plan.trials()[0].key, "layers=[bold]x", 0)
    assert "layers=[bold]x" in drawn(progress)


@pytest.mark.parametrize(
    ("front", "ours"), [(os.getpgrp(), True), (os.getpgid(os.getppid()), True), (-1, True), (1, False)]
)
def test_the_live_view_is_drawn_only_in_the_foreground(monkeypatch, front, ours):
    """The foreground group is the shell's job; the driver has its own process group."""
    monkeypatch.setattr(os, "tcgetpgrp", lambda number: front)
    assert is_foreground(SimpleNamespace(fileno=lambda: 1)) is ours


def test_a_file_never_counts_as_background(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert is_foreground(file)
