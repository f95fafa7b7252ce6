"""Map the sweep state to the MLflow runs that should exist. Pure; `runs.py` and `files.py` write them.

The same state always gives the same status, tags, parameters and timestamps, so that a replay is harmless.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.record.events import recorded_floors
from tune_dml.record.held_out.sealed import Opening, sealed_metrics, without_sealed
from tune_dml.record.ledger import GrowingFile, history_file
from tune_dml.record.state import SweepState, TrialState, TrialStatus
from tune_dml.space import Grid
from tune_dml.tracking.naming import logged, logged_name

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

TAG_LIMIT = 2000
_MOST_OTHERS = 24
"""Metrics of a trial's run beside those of validation and opened test metrics; the ledger has all."""
_VALIDATION = "val/"
_NONE = "(none)"
"""Value of a knob that a cell does not have; MLflow's charts draw this text at the end of the axis."""

_BESIDE_RECALL = re.compile(r"(.*[/_])?(precision|map|ndcg)_at_\d+")
"""Metrics that runs do not show, because they follow recall and MAP@R."""


@dataclass(frozen=True)
class MetricPoint:
    """One metric value."""

    name: str
    value: float
    step: int
    time: int
    """Milliseconds since the epoch, set when the row was reported."""


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation of a trial."""

    offset: int
    """End offset in the history."""
    step: int
    points: tuple[MetricPoint, ...]


@dataclass
class TrialRun:
    """A trial's run as MLflow should have it, and how much of it was pushed."""

    state: TrialState
    history: GrowingFile
    metric: str
    """The sweep's metric, which is always shown."""
    names: set[str] = field(default_factory=set)
    """Metrics that are shown: the first ones reported."""
    steps: dict[int, frozenset[str]] = field(default_factory=dict)
    """Step -> metrics; of rows reported twice the first counts."""
    shown: int = 0
    """Version of `state` that MLflow shows."""
    complete: bool = False
    """Whether MLflow shows its end; its history will then not grow."""

    @property
    def key(self) -> str:
        """Key of the trial."""
        return self.state.key

    @property
    def due(self) -> bool:
        """Whether there is something to push."""
        return self.shown != self.state.version or (not self.complete and self.history.grown)

    def forget(self) -> None:
        """Push again from the first row."""
        self.history.offset = 0
        self.steps.clear()
        self.names.clear()

    def status(self, *, final: bool) -> RunStatus:
        """Return MLflow's status; `final` means that no driver will be left running."""
        if self.state.ended is not None:
            return "FINISHED" if self.state.status in {"finished", "stopped"} else "FAILED"
        return "RUNNING" if self.state.live and not final else "KILLED"

    def tags(self, *, final: bool) -> dict[str, str]:
        """Return the tags that follow the trial's state."""
        end = self.state.end
        live = "running" if self.state.live and not final else "interrupted"
        tags = {
            "tune_dml.status": end.status if end else live,
            "tune_dml.reason": end.reason if end else "",
            "tune_dml.attempts": str(self.state.attempts),
            "tune_dml.host": self.state.host,
        }
        if self.state.micro_batch is not None:
            tags["tune_dml.micro_batch"] = str(self.state.micro_batch)
        known = end.to_json() if end else {}
        tags |= {f"tune_dml.{name}": str(known[name]) for name in ("kind", "seconds", "step") if name in known}
        return {name: value[:TAG_LIMIT] for name, value in tags.items()}

    def unread(self) -> list[EvaluationRow]:
        """Return the rows that are not marked as `taken`; a repeated step has no points."""
        seen, names = set(self.steps), set(self.names)
        rows = []
        for offset, body in self.history.unread():
            step = int(body["step"])
            points = () if step in seen else _points(body, step, self.state.started)
            rows.append(EvaluationRow(offset, step, self._shown(points, names)))
            seen.add(step)
        return rows

    def _shown(
        self, points: Sequence[MetricPoint], names: set[str], asked: Collection[str] = ()
    ) -> tuple[MetricPoint, ...]:
        """Return the points to show, and add their metrics to `names`; metrics in `asked` are always shown."""
        chosen = []
        for point in points:
            own = point.name == self.metric
            others = [name for name in names if not name.startswith(_VALIDATION)]
            room = point.name.startswith(_VALIDATION) or len(others) < _MOST_OTHERS
            if own or (room and not _BESIDE_RECALL.fullmatch(point.name)) or point.name in names or point.name in asked:
                names.add(point.name)
                chosen.append(point)
        return tuple(chosen)

    def taken(self, rows: Sequence[EvaluationRow]) -> None:
        """Mark rows as pushed; reading continues after them."""
        for row in rows:
            self.steps.setdefault(row.step, frozenset(point.name for point in row.points))
            self.names.update(point.name for point in row.points)
        self.history.offset = max((row.offset for row in rows), default=self.history.offset)

    def news(self) -> tuple[list[EvaluationRow], tuple[MetricPoint, ...]]:
        """Return the unread rows, and their points with those of the end; `taken` then marks the rows as read."""
        rows = self.unread()
        ahead = replace(self, history=replace(self.history), names=set(self.names), steps=dict(self.steps))
        ahead.taken(rows)
        return rows, (*(point for row in rows for point in row.points), *ahead.closing_points())

    def every_point(self) -> tuple[MetricPoint, ...]:
        """Return all points that the trial's run should have, read from the beginning."""
        return TrialRun(self.state, replace(self.history, offset=0), self.metric).news()[1]

    def skip(self, count: int) -> None:
        """Mark the first `count` distinct rows as pushed by an earlier process."""
        rows = self.unread()
        new = [index for index, row in enumerate(rows) if row.points]
        self.taken(rows[: new[count - 1] + 1] if 0 < count <= len(new) else rows[: count and len(rows)])

    def closing_points(self) -> tuple[MetricPoint, ...]:
        """Return the final metrics that no row of the history has; never sealed ones."""
        ended = self.state.ended
        if ended is None or (step := ended.end.step) is None:
            return ()
        points = self._shown(_points(self.state.metrics, step, ended.time), set(self.names), self.state.rescored)
        return tuple(point for point in points if point.name not in self.steps.get(step, ()))

    def sealed_points(self, sweep: Path) -> tuple[MetricPoint, ...]:
        """Return the test metrics of an opened sweep, at the step and time of the trial's end."""
        ended = self.state.ended
        if ended is None:
            return ()
        points = numbers(sealed_metrics(sweep, self.state), ended.end.step or 0, ended.time)
        return tuple(point for point in points if not _BESIDE_RECALL.fullmatch(point.name))


class Projection:
    """The MLflow runs of a sweep."""

    def __init__(self, state: SweepState, colour_of: Callable[[int], str] | None = None):
        self.state = state
        self.runs: dict[str, TrialRun] = {}
        """Key -> run of every trial in the ledger."""
        self._colour_of = colour_of
        self._trials: dict[str, list[str]] = {}
        self._indexed = -1
        self._identified: tuple[Plan | None, str] = (None, "")

    def update(self) -> None:
        """Update the state, and add runs of new trials."""
        self.state.update()
        if len(self.runs) < len(self.state.recorded):
            for key, trial in self.state.recorded.items():
                self.runs.setdefault(key, TrialRun(trial, history_file(self.state.folder, key), self.metric))

    @property
    def metric(self) -> str:
        """The sweep's metric, as named in MLflow."""
        return logged_name(self.state.plan.metric)

    @property
    def judged(self) -> float:
        """Time of the last change to the report: an event of a trial, or a look."""
        looks = self.state.looks
        return max(self.last_active, looks[-1].time if looks else 0.0)

    @property
    def last_active(self) -> float:
        """Time of the last event of a trial."""
        return max((trial.active for trial in self.state.recorded.values()), default=self.state.created or 0.0)

    @property
    def sweep_id(self) -> str:
        """Name and identity of the stored plan."""
        stored = self.state.stored
        if self._identified[0] is not stored:
            self._identified = stored, f"{stored.name}-{stored.identity()}"
        return self._identified[1]

    @property
    def ledger_id(self) -> str:
        """Name of the sweep and time of its first event, which an extension does not change."""
        name = re.sub(r"[^\w.-]", "_", self.state.plan.name)  # it is part of a query
        return f"{name}@{milliseconds(self.state.created or 0.0)}"

    def common_tags(self) -> dict[str, str]:
        """Return the tags of every run."""
        plan, space = self.state.plan, self.state.plan.space
        published = space.published[0] if space.published else None
        citation = space.citation
        paper = f"{citation.authors}, {citation.title}, {citation.venue} {citation.year}" if citation else ""
        return {
            "sweep": plan.name,
            "dataset": plan.dataset,
            "paper": (paper or (published.paper if published else ""))[:TAG_LIMIT],
            "table": citation.location if citation else (published.table if published else ""),
            "git_commit": self._commit(),
            "metric": plan.metric,
        }

    def trial_tags(self, key: str) -> dict[str, str]:
        """Return the identity tags of a trial's run."""
        trial = self.planned(key)
        own = {**self._cell_tags(trial.cell), "seed": str(trial.seed)} if trial else {}
        if key in self.state.confirming:
            own["tune_dml.confirmation"] = "true"
        return {**self.common_tags(), **own, "level": "trial", "tune_dml.trial_key": f"{self.sweep_id}-{key}"}

    def cell_tags(self, cell: Cell) -> dict[str, str]:
        """Return the identity tags of a cell's run."""
        own = {"level": "cell", "tune_dml.cell_key": f"{self.ledger_id}-{cell.digest}"}
        return {**self.common_tags(), **self._cell_tags(cell), **own}

    def _cell_tags(self, cell: Cell) -> dict[str, str]:
        tags = {"cell": cell.label[:TAG_LIMIT]}
        if cell.arm:
            tags["arm"] = cell.arm[:TAG_LIMIT]
        plan = self.state.plan
        arms = [arm.name for arm in plan.arms]
        # Otherwise MLflow's colours tell cells apart.
        if self._colour_of and len(plan.main_arms) > 1 and cell.arm in arms:
            tags["mlflow.runColor"] = self._colour_of(arms.index(cell.arm))
        return tags

    def trials_of(self, cell: Cell) -> list[TrialState]:
        """Return the trials of a cell in order, without those of a confirmation."""
        if self._indexed != len(self.state.trials):
            self._trials = {}
            for key, trial in self.state.trials.items():
                self._trials.setdefault(trial.cell.digest, []).append(key)
            self._indexed = len(self.state.trials)
        return [self.state.trial(key) for key in self._trials.get(cell.digest, ())]

    def cells_begun(self) -> list[Cell]:
        """Return the cells with a trial in the ledger, in order of their first events."""
        planned = (self.planned(key) for key in self.runs)
        return list({trial.cell.digest: trial.cell for trial in planned if trial}.values())

    def cell_started(self, cell: Cell) -> float:
        """Return the time of the first event of a cell's trials."""
        begun = [trial.started for trial in self.trials_of(cell) if trial.started]
        return min(begun, default=self.state.created or 0.0)

    def knobs(self, cell: Cell) -> dict[str, str]:
        """Return the parameters of a cell's run: the arm, if there are several, and every knob.

        MLflow's comparison of cells draws the curve from these. A knob that the arm does not have is `(none)`.
        """
        plan = self.state.plan
        named = {"arm": cell.arm} if len(plan.main_arms) > 1 else {}
        absent = {knob.path: _NONE for arm in plan.arms for knob in arm.knobs}
        settings = {path: cell.settings[path] for path in absent if path in cell.settings}
        return logged({**named, **absent, **settings, **cell.knobs})

    def parameters(self, cell: Cell) -> dict[str, str]:
        """Return every resolved setting of a cell, flat and dotted."""
        return {**self.knobs(cell), **logged(cell.settings)}

    def planned(self, key: str) -> PlannedTrial | None:
        """Return a trial of the sweep or of its confirmation."""
        return self.state.trials.get(key) or self.state.confirming.get(key)

    def parent_tags(self) -> dict[str, str]:
        """Return the tags of the sweep's run, which follow the sweep."""
        plan, opened = self.state.plan, self.state.opened
        counts = Counter(t.status for key, t in self.state.recorded.items() if key not in self.state.confirming)
        return {
            **({"tune_dml.test": str(Opening.of(opened))[:TAG_LIMIT]} if opened else {}),
            **self.common_tags(),
            "tune_dml.sweep_id": self.sweep_id,
            "tune_dml.ledger": self.ledger_id,
            "tune_dml.trials": str(len(self.state.trials)),
            **{f"tune_dml.{status}": str(counts[status]) for status in ("finished", "diverged", "failed")},
            **({"tune_dml.stopped": str(counts["stopped"])} if plan.search.stopping else {}),
            "tune_dml.seeds": json.dumps(list(plan.seeds)),
            **{f"tune_dml.values.{path}": text for path, text in self.domains().items()},
            "tune_dml.search": json.dumps(
                {name: value for name, value in asdict(plan.search).items() if value is not None}
            ),
            "level": "sweep",
        }

    def parent_points(self) -> tuple[MetricPoint, ...]:
        """Return how many trials have ended, and how, at the time of the last end: a replay repeats the same points."""
        trials = [trial for key, trial in self.state.recorded.items() if key not in self.state.confirming]
        counts = Counter(trial.status for trial in trials)
        statuses: list[TrialStatus] = ["finished", "diverged", "failed"]
        statuses += ["stopped"] if self.state.plan.search.stopping else []
        ended = {f"trials_{status}": counts[status] for status in statuses}
        metric = self.state.plan.metric
        measured = recorded_floors(self.state.sessions).items()
        floors = {f"floor/{name}": figures[metric] for name, figures in measured if metric in figures}
        moment = max((trial.ended.time for trial in trials if trial.ended), default=0.0)
        return numbers({**ended, **floors}, sum(ended.values()), moment) if moment else ()

    def parent_parameters(self) -> dict[str, str]:
        """Return the settings that every cell shares, and each knob's domain at the run's creation."""
        return {**logged(self.state.plan.base_settings), **self.domains()}

    def domains(self) -> dict[str, str]:
        """Return knob -> values or range. Tags follow as they grow; a logged parameter does not change."""
        return logged({knob.path: _domain(knob.domain) for knob in self.state.plan.knobs})

    def parent_status(self, *, final: bool, interrupted: bool) -> RunStatus:
        """Return FAILED if a trial failed (a diverged one is a result), KILLED if trials are left."""
        if not final:
            return "RUNNING"
        known = {*self.state.trials, *self.state.recorded}
        statuses = {self.state.trial(key).status for key in known}
        if interrupted or statuses & {"missing", "running"}:
            return "KILLED"
        return "FAILED" if "failed" in statuses else "FINISHED"

    def _commit(self) -> str:
        git = self.state.sessions[-1].provenance.get("git", {}) if self.state.sessions else {}
        return str(git.get("commit") or "")


def milliseconds(seconds: float) -> int:
    """Convert seconds to MLflow's milliseconds."""
    return round(seconds * 1000)


def _points(row: Mapping[str, float], step: int, time: float) -> tuple[MetricPoint, ...]:
    """Return the numbers of a row as points, except sealed metrics."""
    figures = {name: value for name, value in without_sealed(row).items() if name not in {"step", "time"}}
    return numbers(figures, step, float(row.get("time", time)))


def numbers(figures: Mapping[str, object], step: int, time: float) -> tuple[MetricPoint, ...]:
    """Return figures as points at a time in seconds, without values that are no numbers."""
    return tuple(
        MetricPoint(logged_name(name), float(value), step, milliseconds(time))
        for name, value in figures.items()
        if isinstance(value, int | float)
    )


def _domain(domain: Any) -> str:
    if isinstance(domain, Grid):
        return json.dumps(list(domain.values))
    kind = "integers" if domain.integer else "reals"
    return f"{kind} in [{domain.low:g}, {domain.high:g}], {domain.scale}"
