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

Located = tuple[str, int, int, str]
"""Metric, step, time, value as text."""
_INFINITY = 1.7976931348623157e308
"""The number that MLflow stores for an infinity."""


@dataclass
class Counts:
    """Numbers of compared runs, metrics and points."""

    runs: int = 0
    metrics: int = 0
    points: int = 0


@dataclass(frozen=True)
class _Expected:
    """A run as derived from the ledger."""

    key: str
    name: str
    status: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    """Tags that follow the ledger; other tags are not compared."""
    points: frozenset[Located]
    outgrown: Collection[str] = ()
    """Parameters that keep their first value; a tag has the present one."""


class Reconciler:
    """Compares one sweep with one store. `counts` and `differing` are of the last comparison."""

    def __init__(self, client: Any, projection: Projection, synced: SyncState):
        self.counts = Counts()
        self.differing: list[str] = []
        """Keys of the trials that differ."""
        self._client, self._projection, self._synced = client, projection, synced

    def differences(self) -> list[str]:
        """Return a line for each run that is missing or differs."""
        self.counts, self.differing = Counts(), []
        lines = []
        for expected in self._expected():
            if wrong := self._difference(expected, self._stored(expected)):
                lines.append(f"{expected.name}: {wrong}")
                if expected.key in self._projection.runs:
                    self.differing.append(expected.key)
        return lines

    def _expected(self) -> Iterator[_Expected]:
        projection, runs = self._projection, self._synced.runs
        plan = projection.state.plan
        status = projection.parent_status(final=True, interrupted=projection.state.incomplete)
        points, params = _as_stored(projection.parent_points()), projection.parent_parameters()
        tags, grown = projection.parent_tags(), projection.domains()
        yield _Expected(PARENT, "the sweep's run", status, params, tags, points, grown)
        for cell in projection.cells_begun():
            trials = projection.trials_of(cell)
            yield _Expected(
                cell_key(cell),
                f"cell {cell.label}",
                cell_status(trials, final=True),
                projection.knobs(cell),
                {"sweep": plan.name},
                _as_stored(cell_points(trials, plan.metric)),
            )
        for run in projection.runs.values():
            planned = projection.planned(run.key)
            above = runs.get(cell_key(planned.cell) if planned else PARENT, "")
            one = contents_of(projection, run, above=above, sweep_run=runs[PARENT], final=True)
            name = f"trial {run.key}" + (f" ({one.title})" if planned else "")
            yield _Expected(run.key, name, one.status, one.params, one.tags, _as_stored(self._points_of(run)))

    def _points_of(self, run: TrialRun) -> Iterable[MetricPoint]:
        """Yield every point that a trial's run should have."""
        yield from run.every_point()
        if self._projection.state.opened is not None:
            yield from run.sealed_points(self._projection.state.folder)

    def _stored(self, expected: _Expected) -> RunSnapshot | None:
        run_id = self._synced.runs.get(expected.key)
        return read_run(self._client, run_id, {name for name, *_ in expected.points}) if run_id else None

    def _difference(self, expected: _Expected, stored: RunSnapshot | None) -> str:
        """Return the differences of a run in words; empty if there are none."""
        if stored is None:
            return "its run is missing"
        points = _as_stored(stored.points)
        self.counts.runs += 1
        self.counts.metrics += len({name for name, *_ in expected.points})
        self.counts.points += len(expected.points)
        foreign = self._foreign(expected, points)
        return ", ".join(_wrong(expected, stored, expected.points - points, foreign))

    def _foreign(self, expected: _Expected, points: frozenset[Located]) -> int:
        """Return the number of a trial's points that the ledger never had; other runs keep outdated points."""
        if expected.key not in self._projection.runs:
            return 0
        names = {name for name, *_ in expected.points}
        foreign = [point for point in points - expected.points if point[0] in names]
        return sum((expected.key, time) not in self._ends for _, _, time, _ in foreign) if foreign else 0

    @cached_property
    def _ends(self) -> set[tuple[str, int]]:
        """(key, time) of every end, earlier ones included, whose points stay in the store."""
        events = read_events(self._projection.state.folder)
        return {(event.key, milliseconds(event.time)) for event in events if event.kind == "ended"}


def _wrong(expected: _Expected, stored: RunSnapshot, missing: frozenset[Located], foreign: int) -> Iterator[str]:
    absent = [name for name in expected.params if name not in stored.params]
    other = [
        name
        for name, value in expected.params.items()
        if name not in expected.outgrown
        and stored.params.get(name, value) not in {value, value.strip("()")}  # older versions wrote `none`
    ]
    if stored.status != expected.status:
        yield f"is {stored.status}, should be {expected.status}"
    if absent:
        yield f"{len(absent)} of {len(expected.params)} parameters are missing"
    if other:
        yield f"other values of {', '.join(sorted(other)[:3])}"
    if tags := [name for name, value in expected.tags.items() if stored.tags.get(name, "") != value]:
        yield f"other tags {', '.join(sorted(tags)[:3])}"
    if missing:
        yield f"{len(missing)} of {len(expected.points)} points are missing"
    if foreign:
        yield f"{counted(foreign, 'point')} beside the ledger's"


def _as_stored(points: Iterable[MetricPoint]) -> frozenset[Located]:
    return frozenset((point.name, point.step, point.time, _word(point.value)) for point in points)


def _word(value: float) -> str:
    """Return a value as comparable text, NaN included, with infinities as MLflow stores them."""
    return "nan" if math.isnan(value) else repr(math.copysign(min(abs(value), _INFINITY), value))
