"""Show the live view of a running sweep.

On a terminal one view is redrawn: running trials, counts, time left. Elsewhere (a file, CI, NO_COLOR, a dumb terminal,
a background job) each start and end of a trial prints one line. Test metrics are never shown.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tune_dml.planning.plan import Plan
from tune_dml.record.state import SweepState
from tune_dml.text import counted, duration, is_number, one_line, value_text

_RUNNING_SHOWN = 12
_STATUSES = ("finished", "diverged", "failed", "stopped", "running", "missing")
STYLES = dict(zip(_STATUSES, ("green", "yellow", "red", "blue", "cyan", "dim"), strict=True))
_MARKS = dict(zip(_STATUSES, "✓≈✗↓▶·", strict=True))
PLAIN_MARKS = dict(zip(_STATUSES, "+~x->.", strict=True))
_ENDS = ("finished", "diverged", "failed", "stopped")
_OUTPUT_ERRORS_IGNORED = contextlib.suppress(OSError, SystemExit)
"""Lets the sweep continue if the terminal was closed, the pipe has no reader (then Rich exits) or the disk is full."""


@dataclass
class _Running:
    label: str
    seed: int
    since: float
    steps: int  # steps of the whole trial; 0 if unknown
    step: int = 0
    value: float | None = None


@dataclass
class _Counts:
    total: int
    running: dict[str, _Running] = field(default_factory=dict)
    paused: dict[str, _Running] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # of finished trials
    finished: int = 0  # number of finished trials

    def seconds_left(self, now: float, slots: int) -> float | None:
        if not self.finished:
            return None
        mean = self.seconds / self.finished
        waiting = max(self.total - len(self.ended) - len(self.running), 0)
        remaining = [max(mean - (now - trial.since), 0.0) for trial in self.running.values()]
        concurrent = max(slots or len(self.running), 1)
        return max((waiting * mean + sum(remaining)) / concurrent, max(remaining, default=0.0))

    def __str__(self) -> str:
        """Return `7/12 done, 1 failed, 2 running`."""
        counts = Counter(self.ended.values())
        parts = [f"{len(self.ended)}/{max(self.total, len(self.ended))} done"]
        parts += [f"{counts[status]} {status}" for status in ("failed", "diverged", "stopped") if counts[status]]
        if self.running:
            parts.append(f"{len(self.running)} running")
        return ", ".join(parts)


class Progress:
    """Shows a running sweep. Thread-safe."""

    def __init__(
        self,
        state: SweepState,
        console: Console | None = None,
        *,
        plan: Plan | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Create the view. Without a console it shows nothing; `plan` is that of a confirmation."""
        self._state, self._confirmation = state, plan
        self._console = console
        self._clock = clock
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._counts = _Counts(self._total())
        keys = state.trials if plan is None else state.confirmation_trials
        self._counts.ended = {
            key: trial.status for key, trial in state.trial_states.items() if trial.status in _ENDS and key in keys
        }
        self._began = clock()
        self._waits_for = ""
        self.slots = 0  # number of concurrent trials, for the estimate of the time left; 0 until known

    @property
    def plan(self) -> Plan:
        """The plan that runs: the sweep's current plan, or the one of its confirmation."""
        return self._confirmation or self._state.plan

    def _total(self) -> int:
        if self._confirmation is not None:
            return len(self._confirmation.trials())
        return len(self._state.trials) + self._state.to_propose

    def recount(self) -> None:
        """Count the trials again, after a race added or dropped some."""
        with self._lock:
            self._counts.total = self._total()

    def __enter__(self) -> Self:
        self._began = self._clock()
        if self._console is not None and _is_live(self._console):
            live = Live(self, console=self._console, refresh_per_second=4, transient=True, vertical_overflow="crop")
            with _OUTPUT_ERRORS_IGNORED:
                live.start(refresh=True)
                self._live = live
        return self

    def __exit__(self, *error: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            with _OUTPUT_ERRORS_IGNORED:
                live.stop()
        self._print(f"{self._counts} in {duration(self._clock() - self._began)}")

    def grow(self, trials: int) -> None:
        """Show that nodes have joined, so that more trials run at once."""
        self.slots = trials
        self.note(f"nodes have joined: {counted(trials, 'trial')} at once")

    def waiting(self, text: str) -> None:
        """Show what the sweep waits for, such as `starting Ray ...`."""
        with self._lock:
            self._waits_for = text
        if self._live is None:
            self._print(text)

    def started(self, key: str, label: str, seed: int, steps: int = 0, *, ago: float = 0.0) -> None:
        """Show that a trial started `ago` seconds ago, or restarts after a lost process."""
        with self._lock:
            is_restart = key in self._counts.running
            self._waits_for = ""
            self._counts.ended.pop(key, None)
            self._counts.running[key] = _Running(label, seed, self._clock() - ago, steps)
        if not is_restart:
            self._print_event("started", f"{label}, seed {seed}")

    def report(self, key: str, row: Mapping[str, float]) -> None:
        """Show a trial's latest row."""
        with self._lock:
            if (trial := self._counts.running.get(key)) is not None:
                trial.step = int(row.get("step", trial.step))
                trial.value = self._visible(row)

    def paused(self, key: str) -> None:
        """Show that a trial waits at a rung."""
        with self._lock:
            if (trial := self._counts.running.pop(key, None)) is not None:
                self._counts.paused[key] = trial

    def ended(self, key: str, status: str, metrics: Mapping[str, object], reason: str, *, ago: float = 0.0) -> None:
        """Show that a trial ended `ago` seconds ago; failures are also printed above a live view."""
        with self._lock:
            trial = self._counts.running.pop(key, None)
            self._counts.ended[key] = status
            seconds = None if trial is None else self._clock() - ago - trial.since
            trial = trial or self._counts.paused.pop(key, None)
            if seconds is not None and status == "finished":  # failed trials would bias the estimate
                self._counts.seconds += seconds
                self._counts.finished += 1
        value = self._visible(metrics)
        self._print_event(
            status,
            f"{trial.label}, seed {trial.seed}" if trial else key,
            "" if value is None else f": {self.plan.metric} {value_text(value)}",
            f": {reason}" if reason else "",
            "" if seconds is None else f" ({duration(seconds) if seconds >= 1 else f'{seconds:.1f} s'})",
        )

    def note(self, text: str) -> None:
        """Print a note."""
        self._print(text, style="yellow")

    def seconds_left(self) -> float | None:
        """Estimate the seconds left from the mean of finished trials; None before the first."""
        return self._counts.seconds_left(self._clock(), self.slots)

    def __rich__(self) -> RenderableType:
        with self._lock:
            running = list(self._counts.running.values())
            parts: list[RenderableType] = [Text(self._waits_for, style="dim")] if self._waits_for else []
            if running:
                parts.append(_running_table(running[:_RUNNING_SHOWN], self.plan.metric, self._clock()))
            if (hidden := len(running) - _RUNNING_SHOWN) > 0:
                parts.append(Text(f"and {hidden} more running", style="dim"))
            if self._console is not None and (matrix := _matrix(self._state, self._counts, self._console)):
                parts.append(matrix)
            total, done = self._counts.total, len(self._counts.ended)
            line = Table.grid(padding=(0, 1))
            line.add_row(
                Text(self.plan.name, style="bold"),
                ProgressBar(max(total, 1), min(done, total), width=30),
                Text(f"{self._counts}{self._time_left()}"),
            )
            return Group(*parts, line)

    def _time_left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f", {duration(left)} left"

    def _visible(self, metrics: Mapping[str, object]) -> float | None:
        """Return the sweep's metric; None if it is missing or a sealed test metric."""
        value = metrics.get(self.plan.metric)
        return float(value) if is_number(value) and not self.plan.metric.startswith("test/") else None

    def _print_event(self, event: str, *parts: str) -> None:
        """Print a line for an event; above a live view, only for failures."""
        text = f"{event}: {''.join(parts)}"
        if self._live is not None:
            if event in {"failed", "diverged"}:
                self._print(text, style=STYLES[event])
            return
        with self._lock:
            left = self._time_left() if event != "started" else ""
            total, done = self._counts.total, len(self._counts.ended)
        self._print(f"[{done:>{len(str(total))}}/{total}{left}] {text}")

    def _print(self, text: str, style: str | None = None) -> None:
        """Print a line. Never hold `_lock` here: the thread of the live view takes Rich's lock first, then `_lock`."""
        if self._console is not None:
            line: str | Text = one_line(text)
            if _is_live(self._console):
                line = Text(one_line(text), style=style or "")
            with _OUTPUT_ERRORS_IGNORED:
                self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _running_table(trials: list[_Running], metric: str, now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("running", no_wrap=True, max_width=60)
    for title in ("seed", "step", metric, "time"):
        table.add_column(title, justify="right", no_wrap=True)
    for trial in trials:
        step = f"{trial.step}/{trial.steps}" if trial.steps else str(trial.step)
        value = "" if trial.value is None else value_text(trial.value)
        table.add_row(escape(trial.label), str(trial.seed), step, value, duration(now - trial.since))
    return table


def _matrix(state: SweepState, counts: _Counts, console: Console) -> Table | None:
    """Return a table of cells by seeds; None if it does not fit on the screen."""
    plan = state.plan
    room = console.size.height - min(len(counts.running), _RUNNING_SHOWN) - 6
    if len(plan.cells) > room or 2 * len(plan.seeds) + 24 > console.size.width:
        return None
    marks = _MARKS if console.encoding.startswith("utf") else PLAIN_MARKS
    table = Table.grid(padding=(0, 1, 0, 0))
    for cell in plan.cells:
        keys = [plan.trial(cell, seed).key for seed in plan.seeds]
        statuses = [counts.ended.get(key, "running" if key in counts.running else "missing") for key in keys]
        shown = [status if key in state.trials else "" for key, status in zip(keys, statuses, strict=True)]
        row = [Text(marks[status], style=STYLES[status]) if status else Text(" ") for status in shown]
        table.add_row(Text(cell.label[: console.size.width - 2 * len(row) - 4], style="dim"), *row)
    return table


def _is_live(console: Console) -> bool:
    """Return whether a view can be redrawn in place, and the environment does not disable it."""
    is_disabled = any(os.environ.get(name) for name in ("NO_COLOR", "CI"))
    return console.is_terminal and not console.is_dumb_terminal and not is_disabled and is_foreground(console.file)


def is_foreground(output: IO[str]) -> bool:
    """Return whether this process or its parent is the foreground job of the terminal's shell.

    Redrawing moves the cursor up and erases lines; a background job would erase those of the shell.
    """
    try:
        foreground = os.tcgetpgrp(output.fileno())
    except (OSError, ValueError):  # not the terminal of this session, so its shell does not write there
        return True
    return foreground <= 0 or foreground in {os.getpgrp(), os.getpgid(os.getppid())}
