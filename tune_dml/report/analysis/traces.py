"""Training histories and evidence of trials, read once for all questions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainables.evidence.record import Evidence
from tune_dml.record.results import Results
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.text import is_number

Rows = Sequence[Mapping[str, float]]  # logged rows of one trial in order of step, without numbers that are not finite

LAST = 0.25  # share of training at its end, over which a converged metric does not improve
_MAX_LINES = 6


@dataclass(frozen=True)
class Line:
    """A quantity over training or over a knob's values: mean, smallest and largest number at each position."""

    label: str
    xs: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    colour: str = "base"  # role in `drawing.colours`

    @classmethod
    def of(cls, label: str, points: Iterable[tuple[float, Sequence[float]]], colour: str = "base") -> Line:
        """Return a line through points; each has the numbers of several trials."""
        xs, columns = zip(*points, strict=True)
        means = tuple(float(np.mean(column)) for column in columns)
        return cls(label, xs, means, tuple(map(min, columns)), tuple(map(max, columns)), colour)


@dataclass(frozen=True)
class Change:
    """Change of a metric from an earlier evaluation to the last one, at one value of the knob."""

    label: str
    first: int  # step of the earlier evaluation
    last: int
    size: float  # mean over the trials
    by_trial: Mapping[str, float]  # change of each trial by its key; NaN without both evaluations

    @property
    def is_late(self) -> bool:
        """Whether the change covers about the last quarter of training."""
        return self.first >= (1 - 1.2 * LAST) * self.last


@dataclass(frozen=True, eq=False)
class Histories:
    """The rows of every trial behind a knob's curve, the baseline included."""

    by_label: Mapping[str, Mapping[str, Rows]]
    """Rows of each trial by its key, by label of the knob's value or of the baseline."""
    shown: tuple[str, ...]  # labels of the values that are drawn, the baseline last
    omitted: tuple[str, ...]  # labels of the values that are not drawn, so that panels stay readable

    @classmethod
    def of(cls, by_label: Mapping[str, Mapping[str, Rows]], baseline: str | None) -> Histories:
        """Return histories of which only some values are drawn if there are many: the first, the last, even ones."""
        labels = [label for label in by_label if label != baseline]
        shown = labels
        if len(labels) > _MAX_LINES:
            shown = [labels[i] for i in np.linspace(0, len(labels) - 1, _MAX_LINES).round().astype(int)]
        omitted = tuple(label for label in labels if label not in shown)
        return cls(by_label, (*shown, *([baseline] if baseline is not None else [])), omitted)

    @cached_property
    def keys(self) -> frozenset[str]:
        """Names of all logged metrics."""
        return frozenset(
            key for trials in self.by_label.values() for rows in trials.values() for row in rows for key in row
        )

    def shown_lines(self, keys: Iterable[str]) -> dict[str, list[Line]]:
        """Return the lines to draw, by metric, for each of the metrics that was logged at two or more steps."""
        lines = {key: list(self.lines(key, self.shown).values()) for key in keys}
        return {key: of_metric for key, of_metric in lines.items() if any(len(line.xs) > 1 for line in of_metric)}

    def lines(self, key: str, labels: Sequence[str] | None = None) -> dict[str, Line]:
        """Return a metric's line by label, for the given labels (default: all) that logged it."""
        return {label: line for label in labels or self.by_label if (line := self._line(label, key))}

    def changes(self, key: str) -> tuple[Change, ...]:
        """Return the change of a metric at each value, over about the last quarter of training.

        A change begins at the latest evaluation before that quarter, and ends at the last evaluation.
        """
        return tuple(change for label in self.by_label if (change := self._change(label, key)))

    def _change(self, label: str, key: str) -> Change | None:
        trials = {
            trial: {int(row["step"]): row[key] for row in rows if key in row}
            for trial, rows in self.by_label[label].items()
        }
        last = max((step for steps in trials.values() for step in steps), default=0)
        complete = [steps for steps in trials.values() if last in steps]
        first = max((step for steps in complete for step in steps if step <= (1 - LAST) * last), default=None)
        if first is None:
            return None
        by_trial = {
            trial: steps[last] - steps[first] if {first, last} <= steps.keys() else math.nan
            for trial, steps in trials.items()
        }
        return Change(label, first, last, float(np.nanmean(list(by_trial.values()))), by_trial)

    def _line(self, label: str, key: str) -> Line | None:
        by_step: dict[int, list[float]] = {}
        for row in (row for rows in self.by_label[label].values() for row in rows if key in row):
            by_step.setdefault(int(row["step"]), []).append(row[key])
        return Line.of(label, sorted(by_step.items())) if by_step else None


def finite_numbers(row: Mapping[str, object]) -> dict[str, float]:
    """Return the finite numbers of a logged row."""
    numbers = ((key, value) for key, value in row.items() if type(value) is float or is_number(value))
    return {key: float(value) for key, value in numbers if math.isfinite(value)}


@dataclass(frozen=True)
class ShownCell:
    """One of two cells shown side by side."""

    label: str
    role: str  # `baseline`, `best`, `worst`, `best of the others`
    evidence: Evidence
    key: str  # key of the trial that wrote the evidence

    @property
    def title(self) -> str:
        """Label and role, such as `no SEC (baseline)`."""
        return self.label if self.label == self.role else f"{self.label} ({self.role})"


@dataclass(frozen=True)
class Pair:
    """Two cells under one seed: the best cell, and the baseline or else the worst cell."""

    sides: tuple[ShownCell, ...]
    seed: int | None  # seed whose trials are shown; None without evidence
    missing: tuple[str, ...]


def choose_evidence(results: Results, candidates: Sequence[tuple[CellAnalysis, str]], missing: Sequence[str]) -> Pair:
    """Return the evidence of (cell, role) pairs under the seed with evidence of the most cells."""
    by_seed: dict[int, list[ShownCell]] = {seed: [] for seed in results.plan.seeds}
    for cell, role in candidates:
        for trial in cell.trials:
            if trial.status == "finished" and (evidence := results.evidence(trial.key)):
                by_seed[trial.seed].append(ShownCell(cell.label, role, evidence, trial.key))
    seed = max(by_seed, key=lambda seed: len(by_seed[seed]), default=None)
    if seed is None or not by_seed[seed]:
        return Pair((), None, ())
    shown = {side.label for side in by_seed[seed]}
    absent = [
        f"{cell.label}, seed {seed}, has no evidence: its trial did not finish, or ran before evidence was stored."
        for cell, _ in candidates
        if cell.label not in shown
    ]
    return Pair(tuple(by_seed[seed]), seed, (*missing, *absent))
