"""Map the sweep state to the MLflow runs that should exist. Pure; `runs.py` and `files.py` write them.

The same state always gives the same status, tags, parameters and timestamps, so that it can be pushed again.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tune_dml.planning.cells import Cell
from tune_dml.planning.grouping import grouped
from tune_dml.planning.plan import PlannedTrial
from tune_dml.record.events import recorded_floors
from tune_dml.record.held_out.sealed import sealed_metrics, without_sealed
from tune_dml.record.ledger import GrowingFile, history_file
from tune_dml.record.state import SweepState, TrialState, TrialStatus
from tune_dml.space import Grid
from tune_dml.tracking.naming import mlflow_name, mlflow_parameters

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

TAG_LIMIT = 2000
_MAX_OTHER_METRICS = 24  # of a trial's run, besides validation and opened test metrics; the ledger has all
_VALIDATION = "val/"
_NONE = "(none)"  # value of a knob that a cell does not have; MLflow's charts draw it at the end of the axis

_REDUNDANT_METRICS = re.compile(r"(.*[/_])?(precision|map|ndcg)_at_\d+")
"""Matches metrics of ours that runs do not show, because they resemble recall and MAP@R."""


@dataclass(frozen=True)
class MetricPoint:
    """One metric value."""

    name: str
    value: float
    step: int
    time: int  # milliseconds since the epoch, set when the row was reported


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation of a trial."""

    offset: int  # end offset in the history
    step: int
    points: tuple[MetricPoint, ...]


@dataclass
class TrialRun:
    """The MLflow run that a trial should have, and the part of it that was pushed."""

    state: TrialState
    history: GrowingFile
    metric: str  # the metric of the sweep, which is always shown
    is_program: bool = False  # whether a user's program reports the metrics
    names: set[str] = field(default_factory=set)  # shown metrics, those reported first
    steps: dict[int, frozenset[str]] = field(default_factory=dict)
    """Step -> pushed metrics. If a step was reported twice, the first row counts."""
    pushed_version: int = 0  # version of `state` that MLflow shows
    is_complete: bool = False  # whether MLflow shows the end, after which the history does not grow

    @property
    def key(self) -> str:
        """Key of the trial."""
        return self.state.key

    @property
    def needs_push(self) -> bool:
        """Whether there is something to push."""
        return self.pushed_version != self.state.version or (not self.is_complete and self.history.has_grown)

    def reset(self) -> None:
        """Forget what was pushed, so that all rows are pushed again."""
        self.history.offset = 0
        self.steps.clear()
        self.names.clear()

    def status(self, *, final: bool) -> RunStatus:
        """Return the status in MLflow. `final` means that no driver continues to run the sweep."""
        if self.state.ended is not None:
            return "FINISHED" if self.state.status in {"finished", "stopped"} else "FAILED"
        return "RUNNING" if self.state.is_live and not final else "KILLED"

    def tags(self, *, final: bool) -> dict[str, str]:
        """Return the tags that change with the trial's state."""
        end = self.state.end
        live_status = "running" if self.state.is_live and not final else "interrupted"
        tags = {
            "tune_dml.status": end.status if end else live_status,
            "tune_dml.reason": end.reason if end else "",
            "tune_dml.attempts": str(self.state.attempts),
            "tune_dml.host": self.state.host,
        }
        if self.state.micro_batch is not None:
            tags["tune_dml.micro_batch"] = str(self.state.micro_batch)
        fields = end.to_json() if end else {}
        tags |= {f"tune_dml.{name}": str(fields[name]) for name in ("kind", "seconds", "step") if name in fields}
        return {name: value[:TAG_LIMIT] for name, value in tags.items()}

    def read_new(self) -> list[EvaluationRow]:
        """Return the rows after those that were pushed. A row with a repeated step has no points."""
        steps_seen, names = set(self.steps), set(self.names)
        rows = []
        for offset, body in self.history.read_new():
            step = int(body["step"])
            points = () if step in steps_seen else _points(body, step, self.state.started)
            rows.append(EvaluationRow(offset, step, self._select_points(points, names)))
            steps_seen.add(step)
        return rows

    def _select_points(
        self, points: Sequence[MetricPoint], names: set[str], required: Collection[str] = ()
    ) -> tuple[MetricPoint, ...]:
        selected = []
        for point in points:
            is_metric = point.name == self.metric
            others = [name for name in names if not name.startswith(_VALIDATION)]
            has_room = point.name.startswith(_VALIDATION) or len(others) < _MAX_OTHER_METRICS
            is_useful = has_room and not self._is_redundant(point.name)
            if is_metric or is_useful or point.name in names or point.name in required:
                names.add(point.name)
                selected.append(point)
        return tuple(selected)

    def _is_redundant(self, name: str) -> bool:
        is_searched = name.partition("/")[2] == self.metric.partition("/")[2]
        return not (self.is_program or is_searched) and _REDUNDANT_METRICS.fullmatch(name) is not None

    def mark_pushed(self, rows: Sequence[EvaluationRow]) -> None:
        """Record that rows were pushed; reading continues after them."""
        for row in rows:
            self.steps.setdefault(row.step, frozenset(point.name for point in row.points))
            self.names.update(point.name for point in row.points)
        self.history.offset = max((row.offset for row in rows), default=self.history.offset)

    def new_points(self) -> tuple[list[EvaluationRow], tuple[MetricPoint, ...]]:
        """Return the rows to push, and all points to push: those of the rows and of the end."""
        rows = self.read_new()
        copy = replace(self, history=replace(self.history), names=set(self.names), steps=dict(self.steps))
        copy.mark_pushed(rows)
        return rows, (*(point for row in rows for point in row.points), *copy.closing_points())

    def every_point(self) -> tuple[MetricPoint, ...]:
        """Return all points that the trial's run should have."""
        return TrialRun(self.state, replace(self.history, offset=0), self.metric, self.is_program).new_points()[1]

    def skip(self, count: int) -> None:
        """Mark the first `count` distinct rows as pushed by an earlier process."""
        rows = self.read_new()
        new_indices = [index for index, row in enumerate(rows) if row.points]
        end = new_indices[count - 1] + 1 if 0 < count <= len(new_indices) else count and len(rows)
        self.mark_pushed(rows[:end])

    def closing_points(self) -> tuple[MetricPoint, ...]:
        """Return the final metrics that are in no row of the history, without sealed ones."""
        ended = self.state.ended
        if ended is None or (step := ended.end.step) is None:
            return ()
        points = self._select_points(
            _points(self.state.metrics, step, ended.time), set(self.names), self.state.rescored
        )
        return tuple(point for point in points if point.name not in self.steps.get(step, ()))

    def sealed_points(self, sweep: Path) -> tuple[MetricPoint, ...]:
        """Return the test metrics of an opened sweep, at the step and time of the trial's end."""
        ended = self.state.ended
        if ended is None:
            return ()
        points = points_of(sealed_metrics(sweep, self.state), ended.end.step or 0, ended.time)
        requested = {name.removeprefix(_VALIDATION) for name in self.state.rescored}
        return tuple(p for p in points if not self._is_redundant(p.name) or p.name.partition("/")[2] in requested)


class Projection:
    """The MLflow runs that a sweep should have."""

    def __init__(self, state: SweepState, colour_of: Callable[[int], str] | None = None):
        self.state = state
        self.runs: dict[str, TrialRun] = {}
        self._colour_of = colour_of
        self._keys: dict[str, list[str]] = {}  # digest of a cell -> keys of its trials

    def update(self) -> None:
        """Update the state, and add runs of new trials; trials that the plan does not have are ignored."""
        self.state.update()
        self._keys = grouped(self.state.trials, lambda key: self.state.trials[key].cell.digest)
        if len(self.runs) < len(self.state.trial_states):
            is_program = self.state.plan.space.program is not None
            planned = self.state.trials.keys() | self.state.confirmation_trials.keys()
            for key, trial in self.state.trial_states.items():
                if key in planned:
                    history = history_file(self.state.folder, key)
                    self.runs.setdefault(key, TrialRun(trial, history, self.metric, is_program))

    @property
    def metric(self) -> str:
        """Name of the sweep's metric in MLflow."""
        return mlflow_name(self.state.plan.metric)

    @property
    def report_time(self) -> float:
        """Time of the last event of a trial or the last look, which change the report."""
        looks = self.state.looks
        return max(self.last_event_time, looks[-1].time if looks else 0.0)

    @property
    def last_event_time(self) -> float:
        """Time of the last event of a trial."""
        return max((trial.active for trial in self.state.trial_states.values()), default=self.state.created or 0.0)

    @cached_property
    def sweep_id(self) -> str:
        """Identifier of the stored plan: name and digest."""
        return f"{self.state.stored_plan.name}-{self.state.stored_plan.identity()}"

    @property
    def ledger_id(self) -> str:
        """Identifier of the sweep: its name and the time of its first event, which extensions do not change."""
        name = re.sub(r"[^\w.-]", "_", self.state.plan.name)  # it is part of a query
        return f"{name}@{milliseconds(self.state.created or 0.0)}"

    def common_tags(self) -> dict[str, str]:
        """Return the tags of every run."""
        plan, space = self.state.plan, self.state.plan.space
        published = space.published[0] if space.published else None
        citation = space.citation
        paper = f"{citation.authors}, {citation.title}, {citation.venue} {citation.year}" if citation else ""
        git = self.state.sessions[-1].provenance.get("git", {}) if self.state.sessions else {}
        return {
            "sweep": plan.name,
            "dataset": plan.dataset,
            "paper": (paper or (published.paper if published else ""))[:TAG_LIMIT],
            "table": citation.location if citation else (published.table if published else ""),
            "git_commit": str(git.get("commit") or ""),
            "metric": plan.metric,
        }

    def trial_tags(self, key: str) -> dict[str, str]:
        """Return the identity tags of a trial's run."""
        trial = self.planned_trial(key)
        identity = {**self._cell_tags(trial.cell), "seed": str(trial.seed)}
        if key in self.state.confirmation_trials:
            identity["tune_dml.confirmation"] = "true"
        return {**self.common_tags(), **identity, "level": "trial", "tune_dml.trial_key": f"{self.sweep_id}-{key}"}

    def cell_tags(self, cell: Cell) -> dict[str, str]:
        """Return the identity tags of a cell's run."""
        identity = {"level": "cell", "tune_dml.cell_key": f"{self.ledger_id}-{cell.digest}"}
        return {**self.common_tags(), **self._cell_tags(cell), **identity}

    def _cell_tags(self, cell: Cell) -> dict[str, str]:
        tags = {"cell": cell.label[:TAG_LIMIT]}
        if cell.arm:
            tags["arm"] = cell.arm[:TAG_LIMIT]
        plan = self.state.plan
        arms = [arm.name for arm in plan.arms]
        # With one arm, MLflow chooses a colour for each cell.
        if self._colour_of and len(plan.main_arms) > 1 and cell.arm in arms:
            tags["mlflow.runColor"] = self._colour_of(arms.index(cell.arm))
        return tags

    def trials_of(self, cell: Cell) -> list[TrialState]:
        """Return the trials of a cell in order, without those of a confirmation."""
        return [self.state.trial(key) for key in self._keys.get(cell.digest, ())]

    def started_cells(self) -> list[Cell]:
        """Return the cells with trials in the ledger, in order of their first events."""
        cells = (self.planned_trial(key).cell for key in self.runs)
        return list({cell.digest: cell for cell in cells}.values())

    def knobs(self, cell: Cell) -> dict[str, str]:
        """Return the parameters of a cell's run: the arm, if there are several, and every knob.

        MLflow's comparison of cells uses them to draw the curve. A knob that the arm does not have is `(none)`.
        """
        plan = self.state.plan
        arm_name = {"arm": cell.arm} if len(plan.main_arms) > 1 else {}
        missing_knobs = {knob.path: _NONE for arm in plan.arms for knob in arm.knobs}
        settings = {path: cell.settings[path] for path in missing_knobs if path in cell.settings}
        return mlflow_parameters({**arm_name, **missing_knobs, **settings, **cell.knobs})

    def parameters(self, cell: Cell) -> dict[str, str]:
        """Return every resolved setting of a cell by its dotted path."""
        return {**self.knobs(cell), **mlflow_parameters(cell.settings)}

    def planned_trial(self, key: str) -> PlannedTrial:
        """Return a trial of the sweep or of its confirmation."""
        return self.state.trials.get(key) or self.state.confirmation_trials[key]

    def _own_trials(self) -> list[TrialState]:
        """Return the trials of the sweep in the ledger, without those of the confirmation."""
        return [trial for key, trial in self.state.trial_states.items() if key in self.state.trials]

    def parent_tags(self) -> dict[str, str]:
        """Return the tags of the sweep's run, which change with the sweep."""
        plan, opened = self.state.plan, self.state.opened
        counts = Counter(trial.status for trial in self._own_trials())
        return {
            **({"tune_dml.test": str(opened)[:TAG_LIMIT]} if opened else {}),
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
        """Return the counts of ended trials by status, at the time of the last end, and the floors."""
        trials = self._own_trials()
        counts = Counter(trial.status for trial in trials)
        statuses: list[TrialStatus] = ["finished", "diverged", "failed"]
        statuses += ["stopped"] if self.state.plan.search.stopping else []
        ended = {f"trials_{status}": counts[status] for status in statuses}
        metric = self.state.plan.metric
        floors_by_name = recorded_floors(self.state.sessions).items()
        floors = {f"floor/{name}": figures[metric] for name, figures in floors_by_name if metric in figures}
        end_time = max((trial.ended.time for trial in trials if trial.ended), default=0.0)
        return points_of({**ended, **floors}, sum(ended.values()), end_time) if end_time else ()

    def domains(self) -> dict[str, str]:
        """Return knob -> values or range. If a domain grows, its tag changes; its logged parameter cannot."""
        return mlflow_parameters({knob.path: _domain(knob.domain) for knob in self.state.plan.knobs})

    def parent_status(self, *, final: bool, interrupted: bool) -> RunStatus:
        """Return KILLED if trials have not ended, FAILED if one failed. A diverged trial is a result."""
        if not final:
            return "RUNNING"
        keys = {*self.state.trials, *self.state.trial_states}
        statuses = {self.state.trial(key).status for key in keys}
        if interrupted or statuses & {"missing", "running"}:
            return "KILLED"
        return "FAILED" if "failed" in statuses else "FINISHED"


def milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds, which MLflow uses."""
    return round(seconds * 1000)


def _points(row: Mapping[str, float], step: int, time: float) -> tuple[MetricPoint, ...]:
    figures = {name: value for name, value in without_sealed(row).items() if name not in {"step", "time"}}
    return points_of(figures, step, float(row.get("time", time)))


def points_of(figures: Mapping[str, object], step: int, time: float) -> tuple[MetricPoint, ...]:
    """Return figures as points at a time in seconds, without values that are not numbers."""
    return tuple(
        MetricPoint(mlflow_name(name), float(value), step, milliseconds(time))
        for name, value in figures.items()
        if isinstance(value, int | float)
    )


def _domain(domain: Any) -> str:
    if isinstance(domain, Grid):
        return json.dumps(list(domain.values))
    kind = "integers" if domain.integer else "reals"
    return f"{kind} in [{domain.low:g}, {domain.high:g}], {domain.scale}"
