"""What MLflow should show of a sweep, derived from the state of its ledger. Pure: `runs.py` and `files.py` do the talking.

Whatever is derived (status, tags, parameters, timestamps) comes out the same however often it is derived: that is what makes
a replay harmless.
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
from tune_dml.planning.plan import Plan, Trial
from tune_dml.record.floors import recorded_floors
from tune_dml.record.ledger import GrowingFile, history_file
from tune_dml.record.sealed import Opening, sealed_metrics, without_sealed
from tune_dml.record.state import SweepState, TrialState, TrialStatus
from tune_dml.space import Grid, Value

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

_VALUE_LIMIT = 500
"""A longer parameter shows its beginning and its length; plan.json, attached to the parent run, has it whole."""

TAG_LIMIT = 2000
_MOST_METRICS = 25
"""Keys of a trial's run, those of opened test metrics aside; the ledger keeps all."""
_NONE = "(none)"
"""A knob that a cell does not have: charts put a missing number at the top of its axis, and this, as text, at its end."""

_BESIDE_RECALL = re.compile(r"(.*[/_])?(precision|map|ndcg)_at_\d+")
"""At 1 these are recall at 1 under other names, and further on they follow recall and MAP@R: runs show those."""
_METRIC_NAME = re.compile(r"[^\w\-. :/]")  # what MLflow does not allow in a name


@dataclass(frozen=True)
class MetricPoint:
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
    points: tuple[MetricPoint, ...]


@dataclass
class TrialRun:
    """A trial's run as MLflow should have it, and how far it is known to have it."""

    state: TrialState
    history: GrowingFile
    metric: str
    """The sweep's, which is always shown."""
    names: set[str] = field(default_factory=set)
    """Metrics that are shown: the first that were met."""
    steps: dict[int, frozenset[str]] = field(default_factory=dict)
    """Steps met in the history and their metrics; a row reported twice counts once, as first written."""
    shown: int = 0
    """The version of `state` that MLflow shows."""
    complete: bool = False
    """MLflow shows its end; its history will not grow."""

    @property
    def key(self) -> str:
        """The trial's."""
        return self.state.key

    @property
    def due(self) -> bool:
        """Whether there is something to push."""
        return self.shown != self.state.version or (not self.complete and self.history.grown)

    def forget(self) -> None:
        """Begin again: MLflow has nothing of it."""
        self.history.offset = 0
        self.steps.clear()
        self.names.clear()

    def status(self, *, final: bool) -> RunStatus:
        """MLflow's word for where the trial stands; `final` when no driver will be left running."""
        if self.state.ended is not None:
            return "FINISHED" if self.state.status in {"finished", "stopped"} else "FAILED"
        return "RUNNING" if self.state.live and not final else "KILLED"

    def tags(self, *, final: bool) -> dict[str, str]:
        """What is known about how it went."""
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

    def unread(self) -> list[Row]:
        """The rows that `taken` has not been told of; a step met before comes with no metrics."""
        seen, names = set(self.steps), set(self.names)
        rows = []
        for offset, body in self.history.unread():
            step = int(body["step"])
            points = () if step in seen else _points(body, step, self.state.started)
            rows.append(Row(offset, step, self._shown(points, names)))
            seen.add(step)
        return rows

    def _shown(
        self, points: Sequence[MetricPoint], names: set[str], asked: Collection[str] = ()
    ) -> tuple[MetricPoint, ...]:
        """The points that have a place beside the metrics `names`, which grow by theirs; those `asked` for always have."""
        chosen = []
        for point in points:
            own = point.name == self.metric
            room = len(names - {self.metric}) < _MOST_METRICS - 1 and not _BESIDE_RECALL.fullmatch(point.name)
            if own or room or point.name in names or point.name in asked:
                names.add(point.name)
                chosen.append(point)
        return tuple(chosen)

    def taken(self, rows: Sequence[Row]) -> None:
        """These rows are where they belong; reading goes on behind them."""
        for row in rows:
            self.steps.setdefault(row.step, frozenset(point.name for point in row.points))
            self.names.update(point.name for point in row.points)
        self.history.offset = max((row.offset for row in rows), default=self.history.offset)

    def news(self) -> tuple[list[Row], tuple[MetricPoint, ...]]:
        """Return the unread rows, and their points with those of the end; `taken` then marks the rows as read."""
        rows = self.unread()
        ahead = replace(self, history=replace(self.history), names=set(self.names), steps=dict(self.steps))
        ahead.taken(rows)
        return rows, (*(point for row in rows for point in row.points), *ahead.closing_points())

    def every_point(self) -> tuple[MetricPoint, ...]:
        """Return all points that the trial's run should have, read from the beginning."""
        return TrialRun(self.state, replace(self.history, offset=0), self.metric).news()[1]

    def skip(self, count: int) -> None:
        """Take the first `count` different rows as known: an earlier process pushed them."""
        rows = self.unread()
        new = [index for index, row in enumerate(rows) if row.points]
        self.taken(rows[: new[count - 1] + 1] if 0 < count <= len(new) else rows[: count and len(rows)])

    def closing_points(self) -> tuple[MetricPoint, ...]:
        """The metrics that the trial is judged by, as far as no row of its history shows them; never the sealed ones."""
        ended = self.state.ended
        if ended is None or (step := ended.end.step) is None:
            return ()
        points = self._shown(_points(self.state.metrics, step, ended.time), set(self.names), self.state.rescored)
        return tuple(point for point in points if point.name not in self.steps.get(step, ()))

    def sealed_points(self, sweep: Path) -> tuple[MetricPoint, ...]:
        """The test metrics of an opened sweep, at the step and the time that were fixed when the trial ended."""
        ended = self.state.ended
        if ended is None:
            return ()
        points = numbers(sealed_metrics(sweep, self.state), ended.end.step or 0, ended.time)
        return tuple(point for point in points if not _BESIDE_RECALL.fullmatch(point.name))


class Projection:
    """The runs that MLflow should have of a sweep."""

    def __init__(self, state: SweepState, colour_of: Callable[[int], str] | None = None):
        self.state = state
        self.runs: dict[str, TrialRun] = {}
        """Key -> run of every trial that the ledger speaks of."""
        self._colour_of = colour_of
        self._trials: dict[str, list[str]] = {}
        self._indexed = -1
        self._identified: tuple[Plan | None, str] = (None, "")

    def update(self) -> None:
        """Take in what the ledger has gained."""
        self.state.update()
        if len(self.runs) < len(self.state.recorded):
            for key, trial in self.state.recorded.items():
                self.runs.setdefault(key, TrialRun(trial, history_file(self.state.folder, key), self.metric))

    @property
    def metric(self) -> str:
        """The sweep's, as MLflow has it."""
        return _METRIC_NAME.sub("_", self.state.plan.metric)[:250]

    @property
    def judged(self) -> float:
        """When what a report says last changed: with the trials, and with each look that spends error."""
        looks = self.state.looks
        return max(self.last_active, looks[-1].time if looks else 0.0)

    @property
    def last_active(self) -> float:
        """When something last happened."""
        return max((trial.active for trial in self.state.recorded.values()), default=self.state.created or 0.0)

    @property
    def sweep_id(self) -> str:
        """Name and identity of the stored plan, which the blocks of a race leave as it is."""
        stored = self.state.stored
        if self._identified[0] is not stored:
            self._identified = stored, f"{stored.name}-{stored.identity()}"
        return self._identified[1]

    @property
    def ledger_id(self) -> str:
        """What stays when a sweep is extended: its name and when its ledger began."""
        name = re.sub(r"[^\w.-]", "_", self.state.plan.name)  # it is quoted in a query
        return f"{name}@{milliseconds(self.state.created or 0.0)}"

    def common_tags(self) -> dict[str, str]:
        """Tags that parent and children share."""
        plan, space = self.state.plan, self.state.plan.space
        published = space.published[0] if space.published else None
        citation = space.citation
        paper = f"{citation.authors}, {citation.title}, {citation.venue} {citation.year}" if citation else ""
        return {
            "sweep": plan.name,
            "dataset": plan.dataset,
            "paper": (paper or (published.paper if published else ""))[:TAG_LIMIT],
            "table": citation.place if citation else (published.table if published else ""),
            "git_commit": self._commit(),
            "metric": plan.metric,
        }

    def trial_tags(self, key: str) -> dict[str, str]:
        """Identity tags of a trial's run."""
        trial = self.planned(key)
        own = {**self._cell_tags(trial.cell), "seed": str(trial.seed)} if trial else {}
        if key in self.state.confirming:
            own["tune_dml.confirmation"] = "true"
        return {**self.common_tags(), **own, "level": "trial", "tune_dml.trial_key": f"{self.sweep_id}-{key}"}

    def cell_tags(self, cell: Cell) -> dict[str, str]:
        """Identity tags of a cell's run."""
        own = {"level": "cell", "tune_dml.cell_key": f"{self.ledger_id}-{cell.digest}"}
        return {**self.common_tags(), **self._cell_tags(cell), **own}

    def _cell_tags(self, cell: Cell) -> dict[str, str]:
        tags = {"cell": cell.label[:TAG_LIMIT]}
        if cell.arm:
            tags["arm"] = cell.arm[:TAG_LIMIT]
        plan = self.state.plan
        arms = [arm.name for arm in plan.arms]
        if self._colour_of and len(plan.main_arms) > 1 and cell.arm in arms:  # else MLflow's own tell the cells apart
            tags["mlflow.runColor"] = self._colour_of(arms.index(cell.arm))
        return tags

    def trials_of(self, cell: Cell) -> list[TrialState]:
        """The trials that the sweep asks of a cell, in order; those of its confirmation are none of them."""
        if self._indexed != len(self.state.trials):
            self._trials = {}
            for key, trial in self.state.trials.items():
                self._trials.setdefault(trial.cell.digest, []).append(key)
            self._indexed = len(self.state.trials)
        return [self.state.trial(key) for key in self._trials.get(cell.digest, ())]

    def cells_begun(self) -> list[Cell]:
        """The cells of which some trial has begun, in the order of that."""
        planned = (self.planned(key) for key in self.runs)
        return list({trial.cell.digest: trial.cell for trial in planned if trial}.values())

    def cell_started(self, cell: Cell) -> float:
        """When the ledger first spoke of one of its trials."""
        begun = [trial.started for trial in self.trials_of(cell) if trial.started]
        return min(begun, default=self.state.created or 0.0)

    def knobs(self, cell: Cell) -> dict[str, str]:
        """What tells a cell from the others: of these alone MLflow's comparison of cells draws the curve.

        The arm, where there are several, and each knob; `(none)` for one that its arm does not have.
        """
        plan = self.state.plan
        named = {"arm": cell.arm} if len(plan.main_arms) > 1 else {}
        absent = {knob.path: _NONE for arm in plan.arms for knob in plan.knobs_of(arm.name)}
        settings = {path: cell.settings[path] for path in absent if path in cell.settings}
        return {name: _text(value) for name, value in {**named, **absent, **settings, **cell.knobs}.items()}

    def parameters(self, cell: Cell) -> dict[str, str]:
        """Every resolved setting of a cell, flat and dotted; `(none)` for a knob that its arm does not have."""
        return {**self.knobs(cell), **{name: _text(value) for name, value in cell.settings.items()}}

    def planned(self, key: str) -> Trial | None:
        """A trial of the sweep, or of its confirmation."""
        return self.state.trials.get(key) or self.state.confirming.get(key)

    def parent_tags(self) -> dict[str, str]:
        """Tags of the sweep's own run; they follow the sweep as it grows."""
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
        return numbers(ended | floors, sum(ended.values()), moment) if moment else ()

    def parent_parameters(self) -> dict[str, str]:
        """What every cell shares, and the domain of each knob, which a run keeps as it was when it was made: see `domains`."""
        shared = {name: _text(value) for name, value in self.state.plan.base_settings.items()}
        return {**shared, **self.domains()}

    def domains(self) -> dict[str, str]:
        """Knob -> its values or its range. They grow with the sweep; tags follow, a logged parameter does not change."""
        return {knob.path: _text(_domain(knob.domain)) for knob in self.state.plan.space.knobs}

    def parent_status(self, *, final: bool, interrupted: bool) -> RunStatus:
        """FAILED when a trial failed (a diverged one is a result), KILLED when a known trial is left to run."""
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
    """MLflow counts in milliseconds."""
    return round(seconds * 1000)


def _points(row: Mapping[str, Any], step: int, time: float) -> tuple[MetricPoint, ...]:
    """The numbers of a row as metrics, those of sealed ones excepted."""
    figures = {name: value for name, value in without_sealed(row).items() if name not in {"step", "time"}}
    return numbers(figures, step, float(row.get("time", time)))


def numbers(figures: Mapping[str, Any], step: int, time: float) -> tuple[MetricPoint, ...]:
    """Figures as metrics, at a time in seconds. What is no number (a note in words) has no place among them."""
    return tuple(
        MetricPoint(_METRIC_NAME.sub("_", name)[:250], float(value), step, milliseconds(time))
        for name, value in figures.items()
        if isinstance(value, int | float)
    )


def _text(value: Value | str | list[Any]) -> str:
    """As `--set` takes it: text as it is, everything else as JSON; cut when long, saying so."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _VALUE_LIMIT:
        return text
    note = f"… ({len(text)} characters)"
    return text[: _VALUE_LIMIT - len(note)] + note


def _domain(domain: Any) -> str:
    if isinstance(domain, Grid):
        return json.dumps(list(domain.values))
    kind = "integers" if domain.integer else "reals"
    return f"{kind} in [{domain.low:g}, {domain.high:g}], {domain.scale}"
