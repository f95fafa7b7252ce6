"""Compare an MLflow store with the ledger: runs, states, parameters, tags and every metric point."""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tune_dml.record.ledger import read_events
from tune_dml.text import counted
from tune_dml.tracking.client import read_run
from tune_dml.tracking.projection import MetricPoint, Projection, milliseconds
from tune_dml.tracking.run_contents import RunContents, cell_contents, sweep_contents, trial_contents, trial_title
from tune_dml.tracking.sync_state import PARENT, SyncState, cell_key

_PointKey = tuple[str, int, int, str]  # metric, step, time, and value as text
_INFINITY = 1.7976931348623157e308  # the number that MLflow stores for infinity


@dataclass
class Counts:
    """Numbers of compared runs, metrics and points."""

    runs: int = 0
    metrics: int = 0
    points: int = 0


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
        for key, name, expected in self._expected_runs():
            if difference := ", ".join(self._differences_of(key, expected)):
                lines.append(f"{name}: {difference}")
                if key in self._projection.runs:
                    self.differing_keys.append(key)
        return lines

    def _expected_runs(self) -> Iterator[tuple[str, str, RunContents]]:
        """Yield key, name and content of each run that the store should have, according to the ledger."""
        projection, runs = self._projection, self._sync_state.runs
        state = projection.state
        yield PARENT, "the sweep's run", sweep_contents(projection, final=True, interrupted=state.is_incomplete)
        for cell in projection.started_cells():
            yield cell_key(cell), f"cell {cell.label}", cell_contents(projection, cell, final=True)
        for run in projection.runs.values():
            planned = projection.planned_trial(run.key)
            parent_run = runs.get(cell_key(planned.cell), "")
            contents = trial_contents(projection, run, parent_run=parent_run, sweep_run=runs[PARENT], final=True)
            sealed = run.sealed_points(state.folder) if state.opened is not None else ()
            name = f"trial {run.key} ({trial_title(planned)})"
            yield run.key, name, replace(contents, points=(*run.every_point(), *sealed))

    def _differences_of(self, key: str, expected: RunContents) -> Iterator[str]:
        names = {point.name for point in expected.points}
        run_id = self._sync_state.runs.get(key)
        stored = read_run(self._client, run_id, names) if run_id else None
        if stored is None:
            yield "its run is missing"
            return
        expected_points, points = _point_keys(expected.points), _point_keys(stored.points)
        self.counts.runs += 1
        self.counts.metrics += len(names)
        self.counts.points += len(expected_points)
        growing = self._projection.domains() if key == PARENT else ()
        yield from _differing_facts(expected, stored, growing)
        if missing := expected_points - points:
            yield f"{len(missing)} of {len(expected_points)} points are missing"
        # Runs of cells and sweeps keep points that the ledger no longer has.
        unknown = [point for point in points - expected_points if key in self._projection.runs and point[0] in names]
        if unknown and (count := sum((key, time) not in self._ends for _, _, time, _ in unknown)):
            yield f"{counted(count, 'point')} beside the ledger's"

    @cached_property
    def _ends(self) -> set[tuple[str, int]]:
        """(key, time) of every end in the ledger, including earlier ones, whose points stay in the store."""
        events = read_events(self._projection.state.folder)
        return {(event.key, milliseconds(event.time)) for event in events if event.kind == "ended"}


def _differing_facts(expected: RunContents, stored: RunContents, growing_params: Collection[str]) -> Iterator[str]:
    """Yield differences of status, parameters and tags. Growing parameters keep their first value."""
    missing_params = [name for name in expected.params if name not in stored.params]
    changed_params = [
        name
        for name, value in expected.params.items()
        if name not in growing_params
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


def _point_keys(points: Iterable[MetricPoint]) -> frozenset[_PointKey]:
    return frozenset((point.name, point.step, point.time, _value_text(point.value)) for point in points)


def _value_text(value: float) -> str:
    """Return a value as text, so that NaN equals NaN, with infinity and -0.0 as MLflow stores them."""
    return "nan" if math.isnan(value) else repr(math.copysign(min(abs(value), _INFINITY), value) + 0.0)
