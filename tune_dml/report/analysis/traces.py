"""Training histories and evidence of trials, read once for all questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainables.evidence.record import Evidence
from tune_dml.record.results import Results, TrialResult
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.text import is_number

Rows = Sequence[Mapping[str, float]]
"""Logged rows of one trial in order of step, without numbers that are not finite."""

_MOST_LINES = 6


@dataclass(frozen=True)
class Line:
    """A metric over training at one value of the knob."""

    label: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    """Smallest over the seeds."""
    high: tuple[float, ...]


@dataclass(frozen=True)
class Change:
    """Change of a metric from an earlier evaluation to the last one, at one value of the knob."""

    label: str
    first: int
    last: int
    """Steps of the two evaluations."""
    size: float
    """Mean change over the trials that have both evaluations."""


@dataclass(frozen=True)
class Panel:
    """One logged metric over training, with a line for each value of the knob."""

    metric: MetricName
    lines: tuple[Line, ...]


@dataclass(frozen=True, eq=False)
class Histories:
    """The rows of every trial behind a knob's curve, the baseline included."""

    by_label: Mapping[str, Sequence[Rows]]
    """Rows of the trials, by value of the knob or baseline."""
    shown: tuple[str, ...]
    """Values that are drawn, the baseline last."""
    omitted: tuple[str, ...]
    """Values left out so that panels stay readable."""

    @cached_property
    def keys(self) -> frozenset[str]:
        """Names of all logged metrics."""
        return frozenset(key for trials in self.by_label.values() for rows in trials for row in rows for key in row)

    def panels(self, keys: Sequence[str]) -> tuple[Panel, ...]:
        """Return a panel for each of the metrics that was logged at two steps or more."""
        panels = [Panel(metric_name(key), tuple(self.lines(key, self.shown).values())) for key in keys]
        return tuple(panel for panel in panels if any(len(line.steps) > 1 for line in panel.lines))

    def lines(self, key: str, labels: Sequence[str] | None = None) -> dict[str, Line]:
        """Return a metric's line for each label (default: all) that logged it."""
        lines = ((label, self._line(label, key)) for label in labels or self.by_label)
        return {label: line for label, line in lines if line is not None}

    def changes(self, key: str, share: float) -> tuple[Change, ...]:
        """Return each value's change since its latest evaluation at least `share` of training before the last."""
        found = (self._change(label, key, share) for label in self.by_label)
        return tuple(change for change in found if change is not None)

    def _change(self, label: str, key: str, share: float) -> Change | None:
        trials = [{int(row["step"]): row[key] for row in rows if key in row} for rows in self.by_label[label]]
        last = max((step for trial in trials for step in trial), default=0)
        whole = [trial for trial in trials if last in trial]
        first = max((step for trial in whole for step in trial if step <= (1 - share) * last), default=None)
        if first is None:
            return None
        moved = [trial[last] - trial[first] for trial in whole if first in trial]
        return Change(label, first, last, float(np.mean(moved)))

    def _line(self, label: str, key: str) -> Line | None:
        by_step: dict[int, list[float]] = {}
        for row in (row for rows in self.by_label[label] for row in rows if key in row):
            by_step.setdefault(int(row["step"]), []).append(row[key])
        if not by_step:
            return None
        steps = tuple(sorted(by_step))
        columns = [by_step[step] for step in steps]
        mean = tuple(float(np.mean(column)) for column in columns)
        return Line(label, steps, mean, tuple(map(min, columns)), tuple(map(max, columns)))


class LoggedRows:
    """Reads what trials logged, each trial once."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._read: dict[str, Rows] = {}

    def of(self, keys: Sequence[str]) -> dict[str, Rows]:
        """Return the rows of trials, by trial key."""
        for key in keys:
            if key not in self._read:
                self._read[key] = [_finite(row) for row in self._results.history(key)]
        return {key: self._read[key] for key in keys}


def _finite(row: Mapping[str, object]) -> dict[str, float]:
    numbers = {}
    for key, value in row.items():
        if (type(value) is float or is_number(value)) and math.isfinite(value):
            numbers[key] = float(value)
    return numbers


def histories_of(rows: Mapping[str, Rows], levels: Mapping[str, Sequence[str]], baseline: str | None) -> Histories:
    """Group rows by value of the knob; `levels` maps each label to its trials."""
    labels = [label for label in levels if label != baseline]
    shown = _thinned(labels)
    return Histories(
        {label: [rows[key] for key in trials] for label, trials in levels.items()},
        (*shown, *([baseline] if baseline is not None else [])),
        tuple(label for label in labels if label not in shown),
    )


def _thinned(labels: list[str]) -> list[str]:
    """Keep the ends and evenly spaced values between if there are too many lines."""
    if len(labels) <= _MOST_LINES:
        return labels
    return [labels[i] for i in np.linspace(0, len(labels) - 1, _MOST_LINES).round().astype(int)]


@dataclass(frozen=True)
class ShownCell:
    """One of two cells shown side by side."""

    label: str
    role: str
    """`baseline`, `best`, `worst`, `best of the others`."""
    evidence: Evidence
    key: str
    """Key of the trial that wrote the evidence."""

    @property
    def title(self) -> str:
        """`no SEC (baseline)`."""
        return self.label if self.label == self.role else f"{self.label} ({self.role})"


@dataclass(frozen=True)
class Pair:
    """The baseline (or the worst cell, if there is no baseline) and the best other cell, under one seed."""

    sides: tuple[ShownCell, ...]
    seed: int | None
    """Seed whose trials are shown; None without evidence."""
    missing: tuple[str, ...]
    """Sentences about evidence that is missing."""


@dataclass(frozen=True)
class Candidate:
    """A cell to show, and its role."""

    label: str
    role: str
    trials: tuple[TrialResult, ...]


def pair_of(results: Results, candidates: Sequence[Candidate], missing: Sequence[str]) -> Pair:
    """Return the candidates' evidence under the first seed for which most of them have some."""
    seeds = results.plan.seeds
    by_seed = {
        seed: tuple(side for cell in candidates if (side := _side(results, cell, seed)) is not None) for seed in seeds
    }
    seed = max(seeds, key=lambda seed: len(by_seed[seed]), default=None)  # the first of the fullest
    if seed is None or not by_seed[seed]:
        return Pair((), None, ())
    shown = {side.label for side in by_seed[seed]}
    absent = [
        f"{cell.label}, seed {seed}, has nothing to show: its trial did not finish, or ran before this was stored."
        for cell in candidates
        if cell.label not in shown
    ]
    return Pair(by_seed[seed], seed, (*missing, *absent))


def _side(results: Results, cell: Candidate, seed: int) -> ShownCell | None:
    trial = next((trial for trial in cell.trials if trial.seed == seed and trial.status == "finished"), None)
    evidence = results.evidence(trial.key) if trial else None
    return ShownCell(cell.label, cell.role, evidence, trial.key) if trial and evidence else None
