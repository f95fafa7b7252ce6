"""What MLflow should show of a sweep, read from its ledger. Pure: `tune_dml.tracking.tracker` does the talking.

The ledger only grows, so it is read from where the last reading stopped, and whatever is derived from it (status, tags,
parameters, timestamps) comes out the same however often it is derived: that is what makes a replay harmless.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Trial
from tune_dml.record.ledger import Event, trial_folder
from tune_dml.space import Grid, Value

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

VALUE_LIMIT = 500
"""A longer parameter shows its beginning and its length; plan.json, attached to the parent run, has it whole."""

TAG_LIMIT = 2000
_METRIC_NAME = re.compile(r"[^\w\-. :/]")  # what MLflow does not allow in a name


@dataclass(frozen=True)
class Point:
    """One metric value."""

    name: str
    value: float
    step: int
    time: int
    """Milliseconds since the epoch, fixed when the row was reported."""


@dataclass(frozen=True)
class Row:
    """One evaluation of a trial."""

    offset: int
    """Where it ends in the history."""
    step: int
    points: tuple[Point, ...]


@dataclass
class Tail:
    """A growing file of JSON lines, read from where the last reading stopped."""

    path: Path
    offset: int = 0

    @property
    def grown(self) -> bool:
        """Whether there is something unread."""
        try:
            return os.stat(self.path).st_size > self.offset
        except FileNotFoundError:
            return False

    def unread(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(offset behind it, row) of every whole unread line; `offset` stays until the reader moves it."""
        if not self.grown:
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            behind = self.offset
            for line in file:
                if not line.endswith(b"\n"):  # torn: its writer died, or is at work
                    return
                behind += len(line)
                yield behind, json.loads(line)


@dataclass
class TrialState:
    """One trial as the ledger tells it."""

    key: str
    history: Tail
    steps: dict[int, frozenset[str]] = field(default_factory=dict)
    """Steps met in the history and their metrics; a row reported twice counts once, as first written."""
    started: float = 0.0
    active: float = 0.0
    """When something last happened."""
    attempts: int = 0
    host: str = ""
    live: bool = False
    """Started in the current session and not ended."""
    ended: Event | None = None
    changed: bool = True
    """The ledger says something that MLflow has not been told."""
    settled: bool = False
    """MLflow shows its end: its history will not grow and need not be read."""

    @property
    def due(self) -> bool:
        """Whether there is something to push."""
        return self.changed or (not self.settled and self.history.grown)

    def forget(self) -> None:
        """Begin again: MLflow has nothing of it."""
        self.history.offset = 0
        self.steps.clear()

    def status(self, *, final: bool) -> RunStatus:
        """MLflow's word for where the trial stands; `final` when no driver will be left running."""
        if self.ended is not None:
            return "FINISHED" if self.ended.body.get("status") == "finished" else "FAILED"
        return "RUNNING" if self.live and not final else "KILLED"

    def tags(self, *, final: bool) -> dict[str, str]:
        """What is known about how it went."""
        body = self.ended.body if self.ended else {}
        live = "running" if self.live and not final else "interrupted"
        found = {
            "tune_dml.status": str(body.get("status", live)),
            "tune_dml.reason": str(body.get("reason", "")),
            "tune_dml.attempts": str(self.attempts),
            "tune_dml.host": self.host,
        }
        found |= {f"tune_dml.{name}": str(body[name]) for name in ("kind", "seconds", "step") if name in body}
        return {name: value[:TAG_LIMIT] for name, value in found.items()}

    def unread(self) -> list[Row]:
        """The rows that `taken` has not been told of; a step met before comes with no metrics."""
        seen = set(self.steps)
        rows = []
        for offset, body in self.history.unread():
            step = int(body["step"])
            rows.append(Row(offset, step, () if step in seen else _points(body, step, self.started)))
            seen.add(step)
        return rows

    def taken(self, rows: Sequence[Row]) -> None:
        """These rows are where they belong; reading goes on behind them."""
        for row in rows:
            self.steps.setdefault(row.step, frozenset(point.name for point in row.points))
        self.history.offset = max((row.offset for row in rows), default=self.history.offset)

    def skip(self, count: int) -> None:
        """Take the first `count` different rows as known: an earlier process pushed them."""
        rows = self.unread()
        new = [index for index, row in enumerate(rows) if row.points]
        self.taken(rows[: new[count - 1] + 1] if 0 < count <= len(new) else rows[: count and len(rows)])

    def closing_points(self) -> tuple[Point, ...]:
        """The metrics that the trial is judged by, as far as no row of its history shows them: the sealed ones."""
        step = None if self.ended is None else self.ended.body.get("step")
        if self.ended is None or step is None:
            return ()
        shown = self.steps.get(int(step), frozenset())
        points = _points(self.ended.body.get("metrics", {}), int(step), self.ended.time)
        return tuple(point for point in points if point.name not in shown)


class Projection:
    """The ledger of a sweep, folded into the runs that MLflow should have."""

    def __init__(self, folder: Path, plan: Plan):
        self.folder = folder
        self.plan = plan
        self.states: dict[str, TrialState] = {}
        self.sessions: list[Event] = []
        self.born: float | None = None
        """Time of the ledger's first event: a sweep begun anew under an old name is another sweep."""
        self._ledger = Tail(folder / "ledger.jsonl")
        self._proposed: list[Cell] = []

    def read(self) -> None:
        """Take in what the ledger has gained."""
        for offset, row in self._ledger.unread():
            self._fold(Event(**row))
            self._ledger.offset = offset

    def _fold(self, event: Event) -> None:
        self.born = event.time if self.born is None else self.born
        if event.kind == "session":
            self.sessions.append(event)
            for state in self.states.values():  # whatever ran before died with its driver
                state.changed |= state.live
                state.live = False
        elif event.kind == "cell":
            self._proposed.append(Cell(**event.body["cell"]))
            self.__dict__.pop("trials", None)
        if not event.key:
            return
        if event.key not in self.states:
            history = Tail(trial_folder(self.folder, event.key) / "history.jsonl")
            self.states[event.key] = TrialState(event.key, history, started=event.time)
        state = self.states[event.key]
        state.changed, state.settled, state.active = True, False, event.time
        if event.kind == "started":
            state.attempts += 1
            state.host = str(event.body.get("host", ""))
            state.live, state.ended = True, None
        elif event.kind == "ended":
            state.live, state.ended = False, event
        elif event.kind == "reset":  # to be tried again
            state.live, state.ended = False, None

    @cached_property
    def trials(self) -> dict[str, Trial]:
        """Key -> trial of every cell known so far."""
        cells = [*self.plan.cells, *self._proposed]
        known = [self.plan.trial(cell, seed) for cell in cells for seed in self.plan.seeds]
        return {trial.key: trial for trial in known}

    @property
    def sweep_id(self) -> str:
        """Name and identity of the plan."""
        return f"{self.plan.name}-{self.plan.identity()}"

    @property
    def ledger_id(self) -> str:
        """What stays when a sweep is extended: its name and when its ledger began."""
        name = re.sub(r"[^\w.-]", "_", self.plan.name)  # it is quoted in a query
        return f"{name}@{milliseconds(self.born or 0.0)}"

    def common_tags(self) -> dict[str, str]:
        """Tags that parent and children share."""
        space = self.plan.space
        published = space.published[0] if space.published else None
        citation = space.citation
        paper = f"{citation.authors}, {citation.title}, {citation.venue} {citation.year}" if citation else ""
        return {
            "sweep": self.plan.name,
            "dataset": self.plan.dataset,
            "paper": (paper or (published.paper if published else ""))[:TAG_LIMIT],
            "table": citation.place if citation else (published.table if published else ""),
            "git_commit": self._commit(),
        }

    def trial_tags(self, key: str) -> dict[str, str]:
        """Identity tags of a trial's run."""
        trial = self.trials.get(key)
        own = {"cell": trial.cell.label[:TAG_LIMIT], "seed": str(trial.seed)} if trial else {}
        return {**self.common_tags(), **own, "tune_dml.trial_key": f"{self.sweep_id}-{key}"}

    def parent_tags(self) -> dict[str, str]:
        """Tags of the sweep's own run; they follow the sweep as it grows."""
        ended = [state.ended.body.get("status") for state in self.states.values() if state.ended]
        counts = {status: ended.count(status) for status in ("finished", "diverged", "failed")}
        space = self.plan.space
        return {
            **self.common_tags(),
            "tune_dml.sweep_id": self.sweep_id,
            "tune_dml.ledger": self.ledger_id,
            "tune_dml.trials": str(len(self.trials)),
            **{f"tune_dml.{status}": str(count) for status, count in counts.items()},
            "tune_dml.seeds": json.dumps(list(self.plan.seeds)),
            "tune_dml.search": json.dumps(asdict(self.plan.search)),
            "mlflow.note.content": f"{space.title}: {space.question}"[:TAG_LIMIT],
        }

    def parent_parameters(self) -> dict[str, str]:
        """What every cell shares, and the domain of each knob."""
        domains = {knob.path: _domain(knob.domain) for knob in self.plan.space.knobs}
        return {name: _text(value) for name, value in {**self.plan.base_settings, **domains}.items()}

    def parent_status(self, *, final: bool, interrupted: bool) -> RunStatus:
        """FAILED when a trial failed (a diverged one is a result), KILLED when a known trial is left to run."""
        if not final:
            return "RUNNING"
        ends = {key: state.ended.body.get("status") for key, state in self.states.items() if state.ended}
        if interrupted or any(key not in ends for key in (*self.trials, *self.states)):
            return "KILLED"
        return "FAILED" if "failed" in ends.values() else "FINISHED"

    def _commit(self) -> str:
        git = self.sessions[-1].body.get("provenance", {}).get("git", {}) if self.sessions else {}
        return str(git.get("commit") or "")


def parameters(trial: Trial) -> dict[str, str]:
    """Every resolved setting of a trial, flat and dotted, and its seed."""
    return {name: _text(value) for name, value in {**trial.cell.settings, "seed": trial.seed}.items()}


def milliseconds(seconds: float) -> int:
    """MLflow counts in milliseconds."""
    return round(seconds * 1000)


def _points(row: Mapping[str, Any], step: int, time: float) -> tuple[Point, ...]:
    """The numbers of a row as metrics. What is no number (a note in words) has no place among them."""
    moment = milliseconds(float(row.get("time", time)))
    return tuple(
        Point(_METRIC_NAME.sub("_", name)[:250], float(value), step, moment)
        for name, value in row.items()
        if name not in {"step", "time"} and isinstance(value, int | float)
    )


def _text(value: Value | str | list[Any]) -> str:
    """As `--set` takes it: text as it is, everything else as JSON; cut when long, saying so."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= VALUE_LIMIT:
        return text
    note = f"… ({len(text)} characters)"
    return text[: VALUE_LIMIT - len(note)] + note


def _domain(domain: Any) -> str:
    if isinstance(domain, Grid):
        return json.dumps(list(domain.values))
    kind = "integers" if domain.integer else "reals"
    return f"{kind} in [{domain.low:g}, {domain.high:g}], {domain.scale}"
