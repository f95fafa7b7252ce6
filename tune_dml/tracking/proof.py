"""Whether a store shows what the ledger has: runs, their states, parameters, metrics and every point compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tune_dml.tracking.books import PARENT, Books, cell_key
from tune_dml.tracking.cells import cell_points, cell_status
from tune_dml.tracking.client import read_run
from tune_dml.tracking.projection import Point, Projection, TrialRun
from tune_dml.tracking.tables import LARGEST, StoredRun, read_runs

Located = tuple[str, int, int, str]
"""Metric, step, time, value as text."""
_AT_ONCE = 500
"""Runs that are read together."""


@dataclass
class Counts:
    """What was compared."""

    runs: int = 0
    metrics: int = 0
    points: int = 0


@dataclass(frozen=True)
class _Expected:
    """A run as the ledger has it."""

    key: str
    name: str
    status: str
    params: Mapping[str, str]
    points: frozenset[Located]


class Proof:
    """Compares one sweep with one store; `counts` and `differing` are of the last comparison."""

    def __init__(self, client: Any, uri: str, projection: Projection, books: Books):
        self.counts = Counts()
        self.differing: list[str] = []
        """Keys of the trials that the store does not show as the ledger has them."""
        self._client, self._uri, self._projection, self._books = client, uri, projection, books

    def differences(self) -> list[str]:
        """One line for each run that is missing or not as it should be."""
        self.counts, self.differing = Counts(), []
        lines = []
        to_come = self._expected()
        while together := list(itertools.islice(to_come, _AT_ONCE)):
            for expected, stored in zip(together, self._stored(together), strict=True):
                wrong = self._difference(expected, stored)
                if wrong:
                    lines.append(f"{expected.name}: {wrong}")
                    if expected.key in self._projection.runs:
                        self.differing.append(expected.key)
        return lines

    def _expected(self) -> Iterator[_Expected]:
        projection, metric = self._projection, self._projection.state.plan.metric
        status = projection.parent_status(final=True, interrupted=projection.state.incomplete)
        points = _as_stored(projection.parent_points())
        yield _Expected(PARENT, "the sweep's run", status, projection.parent_parameters(), points)
        for cell in projection.cells_begun():
            trials = projection.trials_of(cell)
            yield _Expected(
                cell_key(cell),
                f"cell {cell.label}",
                cell_status(trials, final=True),
                projection.knobs(cell),
                _as_stored(cell_points(trials, metric)),
            )
        for run in projection.runs.values():
            planned = projection.planned(run.key)
            params = {**projection.parameters(planned.cell), "seed": str(planned.seed)} if planned else {}
            name = f"trial {run.key}" + (f" ({planned.cell.label}, seed {planned.seed})" if planned else "")
            yield _Expected(run.key, name, run.status(final=True), params, _as_stored(self._points_of(run)))

    def _points_of(self, run: TrialRun) -> Iterable[Point]:
        """Every point that a trial's run should have, read from the beginning."""
        yield from run.whole()[1]
        if self._projection.state.opened is not None:
            yield from run.sealed_points(self._projection.state.folder)

    def _stored(self, together: Sequence[_Expected]) -> Iterator[StoredRun | None]:
        """Each of them as the store has it; None where it does not."""
        ids = [self._books.runs.get(expected.key, "") for expected in together]
        at_once = read_runs(self._uri, ids)
        for expected, run_id in zip(together, ids, strict=True):
            if at_once is not None:
                yield at_once.get(run_id)
            else:
                yield read_run(self._client, run_id, {name for name, *_ in expected.points}) if run_id else None

    def _difference(self, expected: _Expected, stored: StoredRun | None) -> str:
        """What a run lacks, in words; empty when nothing."""
        if stored is None:
            return "its run is missing"
        missing = expected.points - _as_stored(stored.points)
        self.counts.runs += 1
        self.counts.metrics += len({name for name, *_ in expected.points})
        self.counts.points += len(expected.points)
        return ", ".join(_wrong(expected, stored, missing))


def _wrong(expected: _Expected, stored: StoredRun, missing: frozenset[Located]) -> Iterator[str]:
    absent = [name for name in expected.params if name not in stored.params]
    other = [
        name
        for name, value in expected.params.items()
        if stored.params.get(name, value) not in {value, value.strip("()")}  # an older version wrote `none`, for good
    ]
    if stored.status != expected.status:
        yield f"is {stored.status}, should be {expected.status}"
    if absent:
        yield f"{len(absent)} of {len(expected.params)} parameters are missing"
    if other:
        yield f"other values of {', '.join(sorted(other)[:3])}"
    if missing:
        yield f"{len(missing)} of {len(expected.points)} points are missing"


def _as_stored(points: Iterable[Point]) -> frozenset[Located]:
    return frozenset((point.name, point.step, point.time, _word(point.value)) for point in points)


def _word(value: float) -> str:
    """A value as text that can be compared, NaN too, infinities as MLflow stores them."""
    return "nan" if math.isnan(value) else repr(math.copysign(min(abs(value), LARGEST), value))
