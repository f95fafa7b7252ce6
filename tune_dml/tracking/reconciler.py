"""Compare an MLflow store with the ledger: runs, states, parameters, tags and every metric point."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tune_dml.record.ledger import read_events
from tune_dml.text import counted
from tune_dml.tracking.client import RunSnapshot, read_run
from tune_dml.tracking.projection import MetricPoint, Projection, TrialRun, milliseconds
from tune_dml.tracking.run_contents import cell_points, cell_status, contents_of
from tune_dml.tracking.sync_state import PARENT, SyncState, cell_key

_PointKey = tuple[str, int, int, str]  # metric, step, time, and value as text
_INFINITY = 1.7976931348623157e308  # the number that MLflow stores for infinity


@dataclass
class Counts:
    """Numbers of compared runs, metrics and points."""

    runs: int = 0
    metrics: int = 0
    points: int = 0


@dataclass(frozen=True)
class _ExpectedRun:
    """A run that the store should have, according to the ledger."""

    key: str
    name: str
    status: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    """Tags that change with the ledger. Other tags are not compared."""
    points: frozenset[_PointKey]
    growing_params: Collection[str] = ()
    """Parameters that keep their first value; a tag has the current value."""


class Reconciler:
    """Compares a sweep with a store. `counts` and `differing_keys` describe the last comparison."""

    def __init__(self, client: Any, projection: Projection, sync_state: SyncState):
        self.counts = Counts()
        self.differing_keys: list[str] = []
        self._client, self._projection, self._sync_state = client, projection, sync_state

    def differences(self) -> list[str]:
        """Return a line for each run that is missing or differs."""
        self.counts, self.differing_keys = Counts(), []
        lines = []
        for expected in self._expected_runs():
            if difference := self._difference(expected, self._read_run(expected)):
                lines.append(f"{expected.name}: {difference}")
                if expected.key in self._projection.runs:
                    self.differing_keys.append(expected.key)
        return lines

    def _expected_runs(self) -> Iterator[_ExpectedRun]:
        projection, runs = self._projection, self._sync_state.runs
        plan = projection.state.plan
        status = projection.parent_status(final=True, interrupted=projection.state.is_incomplete)
        points, params = _point_keys(projection.parent_points()), projection.parent_parameters()
        tags, growing = projection.parent_tags(), projection.domains()
        yield _ExpectedRun(PARENT, "the sweep's run", status, params, tags, points, growing)
        for cell in projection.started_cells():
            trials = projection.trials_of(cell)
            yield _ExpectedRun(
                cell_key(cell),
                f"cell {cell.label}",
                cell_status(trials, final=True),
                projection.knobs(cell),
                {"sweep": plan.name},
                _point_keys(cell_points(trials, plan.metric)),
            )
        for run in projection.runs.values():
            planned = projection.planned_trial(run.key)
            parent_run = runs.get(cell_key(planned.cell) if planned else PARENT, "")
            contents = contents_of(projection, run, parent_run=parent_run, sweep_run=runs[PARENT], final=True)
            name = f"trial {run.key}" + (f" ({contents.title})" if planned else "")
            yield _ExpectedRun(
                run.key, name, contents.status, contents.params, contents.tags, _point_keys(self._points_of(run))
            )

    def _points_of(self, run: TrialRun) -> Iterable[MetricPoint]:
        yield from run.every_point()
        if self._projection.state.opened is not None:
            yield from run.sealed_points(self._projection.state.folder)

    def _read_run(self, expected: _ExpectedRun) -> RunSnapshot | None:
        run_id = self._sync_state.runs.get(expected.key)
        return read_run(self._client, run_id, {name for name, *_ in expected.points}) if run_id else None

    def _difference(self, expected: _ExpectedRun, stored: RunSnapshot | None) -> str:
        """Return the differences of a run in words; an empty string if there are none."""
        if stored is None:
            return "its run is missing"
        points = _point_keys(stored.points)
        self.counts.runs += 1
        self.counts.metrics += len({name for name, *_ in expected.points})
        self.counts.points += len(expected.points)
        unknown = self._count_unknown(expected, points)
        return ", ".join(_describe_differences(expected, stored, expected.points - points, unknown))

    def _count_unknown(self, expected: _ExpectedRun, points: frozenset[_PointKey]) -> int:
        """Return the number of a trial's points that the ledger never had. Runs of cells and sweeps keep old points."""
        if expected.key not in self._projection.runs:
            return 0
        names = {name for name, *_ in expected.points}
        unknown = [point for point in points - expected.points if point[0] in names]
        return sum((expected.key, time) not in self._ends for _, _, time, _ in unknown) if unknown else 0

    @cached_property
    def _ends(self) -> set[tuple[str, int]]:
        """(key, time) of every end in the ledger, including earlier ones, whose points stay in the store."""
        events = read_events(self._projection.state.folder)
        return {(event.key, milliseconds(event.time)) for event in events if event.kind == "ended"}


def _describe_differences(
    expected: _ExpectedRun, stored: RunSnapshot, missing: frozenset[_PointKey], unknown: int
) -> Iterator[str]:
    missing_params = [name for name in expected.params if name not in stored.params]
    changed_params = [
        name
        for name, value in expected.params.items()
        if name not in expected.growing_params
        and stored.params.get(name, value) not in {value, value.strip("()")}  # older versions wrote `none`
    ]
    if stored.status != expected.status:
        yield f"is {stored.status}, should be {expected.status}"
    if missing_params:
        yield f"{len(missing_params)} of {len(expected.params)} parameters are missing"
    if changed_params:
        yield f"other values of {', '.join(sorted(changed_params)[:3])}"
    if tags := [name for name, value in expected.tags.items() if stored.tags.get(name, "") != value]:
        yield f"other tags {', '.join(sorted(tags)[:3])}"
    if missing:
        yield f"{len(missing)} of {len(expected.points)} points are missing"
    if unknown:
        yield f"{counted(unknown, 'point')} beside the ledger's"


def _point_keys(points: Iterable[MetricPoint]) -> frozenset[_PointKey]:
    return frozenset((point.name, point.step, point.time, _value_text(point.value)) for point in points)


def _value_text(value: float) -> str:
    """Return a value as text, so that NaN equals NaN, with infinity as MLflow stores it."""
    return "nan" if math.isnan(value) else repr(math.copysign(min(abs(value), _INFINITY), value))
