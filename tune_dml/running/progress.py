"""The live view of a running sweep, and the table of where a sweep stands.

    with Progress(plan, console) as progress:
        progress.started(key, label, seed)
        progress.report(key, row)
        progress.ended(key, "finished", metrics, "")
        progress.note("what has to be said aloud")
    console.print(status_table(results))

On a terminal one picture is redrawn: the running trials, the counts, the time left. Anywhere else (a file, CI, NO_COLOR, a
dumb terminal) there is one plain line for every trial that starts or ends. Nothing is drawn per trial of the whole sweep, so
ten thousand of them cost no more than ten. Test metrics are sealed and never shown.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan
from tune_dml.record.results import Results, TrialResult
from tune_dml.text import duration

RUNNING_SHOWN = 12
CELLS_SHOWN = 60
REASON_LENGTH = 60
_STYLES = {"finished": "green", "diverged": "yellow", "failed": "red", "running": "cyan", "missing": "dim"}
_MARKS = {"finished": "✓", "diverged": "≈", "failed": "✗", "running": "▶", "missing": "·"}
_PLAIN_MARKS = {"finished": "+", "diverged": "~", "failed": "x", "running": ">", "missing": "."}
_ENDS = ("finished", "diverged", "failed")


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


class Progress:
    """Fed by the driver while a sweep runs; safe to feed from several threads.

    `slots`, the number of trials that may run at once, sharpens the estimate of the time left once it is known.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console | None = None,
        *,
        done: Results | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Shows nothing yet.

        Args:
            plan: what is to run.
            console: where to show it; nowhere without one.
            done: the sweep as it stood before, when it is resumed.
            clock: seconds that only grow.
        """
        self.plan = plan
        self.slots = 0
        self._console = console
        self._clock = clock
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._steps = {
            plan.trial(cell, seed).key: int(str(cell.settings.get("training.steps") or 0))
            for cell in plan.cells
            for seed in plan.seeds
        }
        self._total = (len(plan.cells) + plan.search.num_samples) * len(plan.seeds)
        self._running: dict[str, _Running] = {}
        self._ended: dict[str, str] = {}
        self._seconds: list[float] = []
        self._began = clock()
        for trial in done.trials if done else ():
            if trial.status in _ENDS:
                self._ended[trial.key] = trial.status

    def __enter__(self) -> Self:
        self._began = self._clock()
        console = self._console
        if console is not None and _is_live(console):
            self._live = Live(self, console=console, refresh_per_second=4, transient=True, vertical_overflow="crop")
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        self._print(f"{self._counts()} in {duration(self._clock() - self._began)}")

    def started(self, key: str, label: str, seed: int) -> None:
        """A trial begins, or begins again after a lost process."""
        with self._lock:
            again = key in self._running
            self._ended.pop(key, None)
            self._running[key] = _Running(label, seed, self._clock(), self._steps.get(key, self._usual_steps()))
        if not again:
            self._say("started", f"{label}, seed {seed}")

    def report(self, key: str, row: Mapping[str, Any]) -> None:
        """A trial's evaluation."""
        with self._lock:
            if (trial := self._running.get(key)) is not None:
                trial.step = int(row.get("step", trial.step))
                trial.value = self._shown(row)

    def ended(self, key: str, status: str, metrics: Mapping[str, Any], reason: str) -> None:
        """A trial is over: finished, diverged or failed. What went wrong is said aloud on a terminal too."""
        with self._lock:
            trial = self._running.pop(key, None)
            self._ended[key] = status
            seconds = None if trial is None else self._clock() - trial.since
            if seconds is not None and status == "finished":  # a failed one says nothing of how long others take
                self._seconds.append(seconds)
        value = self._shown(metrics)
        self._say(
            status,
            f"{trial.label}, seed {trial.seed}" if trial else key,
            "" if value is None else f": {self.plan.metric} {value:.4g}",
            f": {reason}" if reason else "",
            "" if seconds is None else f" ({duration(seconds)})",
        )

    def note(self, text: str) -> None:
        """Say something aloud."""
        self._print(text, style="yellow")

    def seconds_left(self) -> float | None:
        """Estimate from the mean time of a finished trial; None before the first one."""
        if not self._seconds:
            return None
        mean = sum(self._seconds) / len(self._seconds)
        now = self._clock()
        waiting = max(self._total - len(self._ended) - len(self._running), 0)
        rest = [max(mean - (now - trial.since), 0.0) for trial in self._running.values()]
        together = max(self.slots or len(self._running), 1)
        return max((waiting * mean + sum(rest)) / together, max(rest, default=0.0))

    def __rich__(self) -> RenderableType:
        with self._lock:
            return Group(*self._picture())

    def _picture(self) -> list[RenderableType]:
        parts: list[RenderableType] = []
        if self._running:
            parts.append(self._running_table())
        hidden = len(self._running) - RUNNING_SHOWN
        if hidden > 0:
            parts.append(Text(f"and {hidden} more running", style="dim"))
        if matrix := self._matrix():
            parts.append(matrix)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(self.plan.name, style="bold"),
            ProgressBar(max(self._total, 1), min(len(self._ended), self._total), width=30),
            Text(self._counts() + self._time_left()),
        )
        return [*parts, line]

    def _running_table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("running", no_wrap=True, max_width=60)
        for title in ("seed", "step", self.plan.metric, "time"):
            table.add_column(title, justify="right", no_wrap=True)
        for trial in list(self._running.values())[:RUNNING_SHOWN]:
            step = f"{trial.step}/{trial.steps}" if trial.steps else str(trial.step)
            value = "" if trial.value is None else f"{trial.value:.4g}"
            elapsed = duration(self._clock() - trial.since)
            table.add_row(escape(trial.label), str(trial.seed), step, value, elapsed)
        return table

    def _matrix(self) -> Table | None:
        """Cells by seeds, where that fits on the screen; the counts say it otherwise."""
        plan, console = self.plan, self._console
        if console is None:
            return None
        room = console.size.height - min(len(self._running), RUNNING_SHOWN) - 6
        if len(plan.cells) > room or 2 * len(plan.seeds) + 24 > console.size.width:
            return None
        marks = _MARKS if console.encoding.startswith("utf") else _PLAIN_MARKS
        table = Table.grid(padding=(0, 1, 0, 0))
        for cell in plan.cells:
            keys = [plan.trial(cell, seed).key for seed in plan.seeds]
            states = [self._ended.get(key, "running" if key in self._running else "missing") for key in keys]
            row = [Text(marks[state], style=_STYLES[state]) for state in states]
            table.add_row(Text(cell.label[: console.size.width - 2 * len(row) - 4], style="dim"), *row)
        return table

    def _counts(self) -> str:
        """`7/12 done, 1 failed, 2 running`."""
        counts = Counter(self._ended.values())
        parts = [f"{len(self._ended)}/{max(self._total, len(self._ended))} done"]
        parts += [f"{counts[status]} {status}" for status in ("failed", "diverged") if counts[status]]
        if self._running:
            parts.append(f"{len(self._running)} running")
        return ", ".join(parts)

    def _time_left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f", {duration(left)} left"

    def _shown(self, metrics: Mapping[str, Any]) -> float | None:
        value = metrics.get(self.plan.metric)
        sealed = self.plan.metric.startswith("test/")
        return float(value) if isinstance(value, int | float) and not sealed else None

    def _usual_steps(self) -> int:
        """Of a proposed cell, which the plan did not know: what every cell shares."""
        return int(str(self.plan.base_settings.get("training.steps") or 0))

    def _say(self, event: str, *parts: str) -> None:
        """A plain line for every event; beside a live picture, which shows the rest, only for what went wrong."""
        text = f"{event}: {''.join(parts)}"
        if self._live is not None:
            if event in {"failed", "diverged"}:
                self._print(text, style=_STYLES[event])
            return
        with self._lock:
            left = self._time_left() if event != "started" else ""
            head = f"[{len(self._ended):>{len(str(self._total))}}/{self._total}{left}]"
        self._print(f"{head} {text}")

    def _print(self, text: str, style: str | None = None) -> None:
        """Never while holding our lock: the picture's thread takes the picture's lock first, then ours."""
        if self._console is not None:
            plain = not _is_live(self._console)
            self._console.print(
                _clean(text) if plain else Text(_clean(text), style=style or ""),
                markup=False,
                highlight=False,
                emoji=False,
                soft_wrap=True,
            )


def _is_live(console: Console) -> bool:
    """Whether a picture can be redrawn in place, and is wanted."""
    refused = any(os.environ.get(name) for name in ("NO_COLOR", "CI"))
    return console.is_terminal and not console.is_dumb_terminal and not refused


def _clean(text: str) -> str:
    """One line without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def status_table(results: Results) -> RenderableType:
    """Where a sweep stands: a line of counts, cells by seeds, and why trials failed.

    A finished trial shows the validation metric that the sweep is about. Of many cells only those with something left to
    do or to explain are listed; the line of counts covers them all.
    """
    plan = results.plan
    by_place = {(trial.cell.digest, trial.seed): trial for trial in results.trials}
    rows = {cell: [by_place[cell.digest, seed] for seed in plan.seeds] for cell in map(_Hashable, results.cells)}
    chosen = list(rows)
    if len(chosen) > CELLS_SHOWN:
        chosen = [cell for cell in rows if any(trial.status != "finished" for trial in rows[cell])]
    table = Table(title=f"{results.name}: {plan.metric}", title_justify="left", header_style="bold")
    table.add_column("cell", overflow="fold")
    for seed in plan.seeds:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for cell in chosen[:CELLS_SHOWN]:
        table.add_row(escape(cell.label), *(_entry(results, trial) for trial in rows[cell]))
    parts: list[RenderableType] = [Text(_status_line(results))]
    if chosen or len(rows) <= CELLS_SHOWN:
        parts.append(table)
    if (hidden := len(rows) - min(len(chosen), CELLS_SHOWN)) > 0:
        parts.append(Text(f"{hidden} of {len(rows)} cells are not listed", style="dim"))
    return Group(*parts, *_reasons(results))


class _Hashable:
    """A cell as a key: cells hold mappings, their digest stands for them."""

    def __init__(self, cell: Cell):
        self.digest, self.label = cell.digest, cell.label

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashable) and self.digest == other.digest


def _entry(results: Results, trial: TrialResult) -> Text:
    text: str = trial.status
    if trial.status == "finished":
        value = trial.metrics.get(results.plan.metric)
        text = "done" if value is None else f"{value:.4g}"
    elif trial.status == "missing":
        text = _PLAIN_MARKS["missing"]
    elif trial.status == "running" and (rows := results.history(trial.key)):
        steps = trial.cell.settings.get("training.steps")
        text = f"at {rows[-1]['step']}/{steps}" if steps else f"at {rows[-1]['step']}"
    return Text(text, style=_STYLES[trial.status])


def _status_line(results: Results) -> str:
    counts = Counter(trial.status for trial in results.trials)
    parts = [f"{counts['finished']} of {len(results.trials)} trials finished"]
    parts += [f"{counts[status]} {status}" for status in ("running", "diverged", "failed") if counts[status]]
    if counts["missing"]:
        parts.append(f"{counts['missing']} not run yet")
    return ", ".join(parts)


def _reasons(results: Results) -> list[RenderableType]:
    """Each reason once, with how often and where first."""
    found: dict[tuple[str, str], list[TrialResult]] = {}
    for trial in results.trials:
        if trial.status in {"failed", "diverged"}:
            found.setdefault((trial.status, _clean(trial.reason)), []).append(trial)
    lines: list[RenderableType] = []
    for (status, reason), trials in list(found.items())[:CELLS_SHOWN]:
        where = f"{trials[0].cell.label}, seed {trials[0].seed}"
        more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
        lines.append(Text(f"{status}: {reason or 'no reason was recorded'} [{where}{more}]", style=_STYLES[status]))
    return lines
