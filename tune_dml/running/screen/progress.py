"""The live view of a running sweep.

    with Progress(state, console) as progress:
        progress.started(key, label, seed, steps)
        progress.report(key, row)
        progress.ended(key, "finished", metrics, "")
        progress.note("what has to be said aloud")

On a terminal one picture is redrawn: the running trials, the counts, the time left. Anywhere else (a file, CI, NO_COLOR, a
dumb terminal, a job that its shell has in the background) there is one plain line for every trial that starts or ends. Nothing
is drawn per trial of the whole sweep, so ten thousand of them cost no more than ten. Test metrics are sealed and never shown.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tune_dml.planning.plan import Plan
from tune_dml.record.state import SweepState
from tune_dml.text import duration, is_number, one_line, value_text

_RUNNING_SHOWN = 12
STYLES = {
    "finished": "green",
    "diverged": "yellow",
    "failed": "red",
    "stopped": "blue",
    "running": "cyan",
    "missing": "dim",
}
_MARKS = {"finished": "✓", "diverged": "≈", "failed": "✗", "stopped": "↓", "running": "▶", "missing": "·"}
PLAIN_MARKS = {"finished": "+", "diverged": "~", "failed": "x", "stopped": "-", "running": ">", "missing": "."}
_ENDS = ("finished", "diverged", "failed", "stopped")
_UNHEARD = contextlib.suppress(OSError, SystemExit)
"""A terminal that was closed, a pipe that nobody reads (where Rich ends the program), a full disk: the sweep goes on."""


@dataclass
class _Running:
    """A trial under way."""

    label: str
    seed: int
    since: float
    steps: int
    """Of the whole trial; 0 when unknown."""
    step: int = 0
    value: float | None = None


@dataclass
class _Counts:
    """Which trials run, which have ended, and how long they take."""

    total: int
    slots: int = 0
    running: dict[str, _Running] = field(default_factory=dict)
    paused: dict[str, _Running] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Of all finished trials together."""
    finished: int = 0
    """How many those are."""

    def seconds_left(self, now: float) -> float | None:
        """Estimate from the mean time of a finished trial; None before the first one."""
        if not self.finished:
            return None
        mean = self.seconds / self.finished
        waiting = max(self.total - len(self.ended) - len(self.running), 0)
        rest = [max(mean - (now - trial.since), 0.0) for trial in self.running.values()]
        together = max(self.slots or len(self.running), 1)
        return max((waiting * mean + sum(rest)) / together, max(rest, default=0.0))

    def __str__(self) -> str:
        """`7/12 done, 1 failed, 2 running`."""
        counts = Counter(self.ended.values())
        parts = [f"{len(self.ended)}/{max(self.total, len(self.ended))} done"]
        parts += [f"{counts[status]} {status}" for status in ("failed", "diverged", "stopped") if counts[status]]
        if self.running:
            parts.append(f"{len(self.running)} running")
        return ", ".join(parts)


class Progress:
    """Fed by the driver while a sweep runs; safe to feed from several threads."""

    def __init__(
        self,
        state: SweepState,
        console: Console | None = None,
        *,
        plan: Plan | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Shows nothing yet.

        Args:
            state: the sweep as it stands.
            console: where to show it; nowhere without one.
            plan: what is run; the sweep's own by default.
            clock: seconds that only grow.
        """
        self._state, self._confirmation = state, plan
        self._console = console
        self._clock = clock
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._counts = _Counts(self._total())
        own = state.trials if plan is None else state.confirming
        self._counts.ended = {
            key: trial.status for key, trial in state.recorded.items() if trial.status in _ENDS and key in own
        }
        self._began = clock()
        self._waits_for = ""

    @property
    def plan(self) -> Plan:
        """The plan that is run: the sweep's as it is now, or its confirmation's."""
        return self._confirmation or self._state.plan

    def _total(self) -> int:
        """All trials that are known, and those of cells that a search is yet to propose."""
        if self._confirmation is not None:
            return len(self._confirmation.trials())
        to_come = self.plan.search.num_samples - len(self._state.proposed)
        return len(self._state.trials) + to_come * len(self.plan.seeds)

    def recount(self) -> None:
        """A race has asked for further trials, or for no more."""
        with self._lock:
            self._counts.total = self._total()

    @property
    def slots(self) -> int:
        """How many trials may run at once, which sharpens the estimate of the time left; 0 until it is known."""
        return self._counts.slots

    @slots.setter
    def slots(self, number: int) -> None:
        self._counts.slots = number

    def __enter__(self) -> Self:
        self._began = self._clock()
        if self._console is not None and _is_live(self._console):
            live = Live(self, console=self._console, refresh_per_second=4, transient=True, vertical_overflow="crop")
            with _UNHEARD:
                live.start(refresh=True)
                self._live = live
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            with _UNHEARD:
                live.stop()
        self._print(f"{self._counts} in {duration(self._clock() - self._began)}")

    def waiting(self, text: str) -> None:
        """What the sweep waits for before its first trial begins: `starting Ray ...`."""
        with self._lock:
            self._waits_for = text
        if self._live is None:
            self._print(text)

    def started(self, key: str, label: str, seed: int, steps: int = 0) -> None:
        """A trial of `steps` steps, where known, begins, or begins again after a lost process."""
        with self._lock:
            again = key in self._counts.running
            self._waits_for = ""
            self._counts.ended.pop(key, None)
            self._counts.running[key] = _Running(label, seed, self._clock(), steps)
        if not again:
            self._say("started", f"{label}, seed {seed}")

    def report(self, key: str, row: Mapping[str, Any]) -> None:
        """A trial's evaluation."""
        with self._lock:
            if (trial := self._counts.running.get(key)) is not None:
                trial.step = int(row.get("step", trial.step))
                trial.value = self._visible(row)

    def paused(self, key: str) -> None:
        """A trial waits for what is decided of its cell."""
        with self._lock:
            if (trial := self._counts.running.pop(key, None)) is not None:
                self._counts.paused[key] = trial

    def ended(self, key: str, status: str, metrics: Mapping[str, Any], reason: str) -> None:
        """A trial is over: finished, diverged, failed or stopped early. What went wrong is said aloud on a terminal too."""
        with self._lock:
            trial = self._counts.running.pop(key, None)
            self._counts.ended[key] = status
            seconds = None if trial is None else self._clock() - trial.since
            trial = trial or self._counts.paused.pop(key, None)
            if seconds is not None and status == "finished":  # a failed one says nothing of how long others take
                self._counts.seconds += seconds
                self._counts.finished += 1
        value = self._visible(metrics)
        self._say(
            status,
            f"{trial.label}, seed {trial.seed}" if trial else key,
            "" if value is None else f": {self.plan.metric} {value_text(value)}",
            f": {reason}" if reason else "",
            "" if seconds is None else f" ({duration(seconds)})",
        )

    def note(self, text: str) -> None:
        """Say something aloud."""
        self._print(text, style="yellow")

    def seconds_left(self) -> float | None:
        """Estimate from the mean time of a finished trial; None before the first one."""
        return self._counts.seconds_left(self._clock())

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

    def _visible(self, metrics: Mapping[str, Any]) -> float | None:
        """The metric that the sweep is about, unless it is sealed."""
        value = metrics.get(self.plan.metric)
        return float(value) if is_number(value) and not self.plan.metric.startswith("test/") else None

    def _say(self, event: str, *parts: str) -> None:
        """A plain line for every event; beside a live picture, which shows the rest, only for what went wrong."""
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
        """Never while holding our lock: the picture's thread takes the picture's lock first, then ours."""
        if self._console is not None:
            line: str | Text = one_line(text)
            if _is_live(self._console):
                line = Text(one_line(text), style=style or "")
            with _UNHEARD:
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
    """Cells by seeds, where that fits on the screen; the counts say it otherwise. Nothing where a race asks for no trial."""
    plan = state.plan
    room = console.size.height - min(len(counts.running), _RUNNING_SHOWN) - 6
    if len(plan.cells) > room or 2 * len(plan.seeds) + 24 > console.size.width:
        return None
    marks = _MARKS if console.encoding.startswith("utf") else PLAIN_MARKS
    table = Table.grid(padding=(0, 1, 0, 0))
    for cell in plan.cells:
        keys = [plan.trial(cell, seed).key for seed in plan.seeds]
        statuses = [counts.ended.get(key, "running" if key in counts.running else "missing") for key in keys]
        asked = [status if key in state.trials else "" for key, status in zip(keys, statuses, strict=True)]
        row = [Text(marks[status], style=STYLES[status]) if status else Text(" ") for status in asked]
        table.add_row(Text(cell.label[: console.size.width - 2 * len(row) - 4], style="dim"), *row)
    return table


def _is_live(console: Console) -> bool:
    """Whether a picture can be redrawn in place, and is wanted."""
    refused = any(os.environ.get(name) for name in ("NO_COLOR", "CI"))
    return console.is_terminal and not console.is_dumb_terminal and not refused and is_foreground(console.file)


def is_foreground(output: IO[str]) -> bool:
    """Return whether this process, or its parent, is the foreground job of the terminal's shell.

    A redrawn picture moves the cursor up and erases lines; from the background it would erase the shell's.
    """
    try:
        foreground = os.tcgetpgrp(output.fileno())
    except (OSError, ValueError):  # not the terminal of this session, so no shell of it writes there
        return True
    return foreground <= 0 or foreground in {os.getpgrp(), os.getpgid(os.getppid())}
