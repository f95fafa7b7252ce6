"""Comparisons of the cells of a sweep: their table, interim analyses, and differences between cells."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from tune_dml.planning.grouping import grouped
from tune_dml.record.judging.looks import Look, seeds_after, seeds_in
from tune_dml.record.results import Results, TrialResult
from tune_dml.record.state import TrialStatus
from tune_dml.report.analysis.cell import ArmAnalysis, CellAnalysis, RaceFindings, race_findings, selectable_cells
from tune_dml.report.naming import MetricName, confidence, distinct_slugs
from tune_dml.space import Knob, Value
from tune_dml.stats import SeedTable, compare_all_with, compare_all_with_best_of
from tune_dml.stats.intervals import without_rounding
from tune_dml.stats.intervals.resolution import is_step_unknown
from tune_dml.stats.intervals.simultaneous import Bounds, all_pairs, comparison_bars
from tune_dml.stats.sequential.looks import error_spent, level_left

ALPHA = 0.05  # total error of all looks at a sweep, for each family of statements


@dataclass(frozen=True)
class _Looks:
    """Looks at a sweep or at its confirmation."""

    seeds: tuple[float, ...]  # mean seeds per cell at each look; the current look is the last
    planned: int  # seeds per cell planned before the first look
    recorded: bool = True
    """Whether looks are recorded. They are not for imported results: a single look then spends the whole error."""
    share: float = 1.0
    """Share of the error for the cells that were not stopped early, because their own results selected them."""
    grown: frozenset[int] = frozenset()  # positions of the looks before which cells were added

    @cached_property
    def level(self) -> float:
        """Error level of the current look."""
        if not self.recorded:
            return ALPHA
        return self.share * (level_left(self.seeds, planned=self.planned, alpha=ALPHA, grown=self.grown) or ALPHA)

    @property
    def spent(self) -> float:
        """Error spent by all looks together."""
        return error_spent(self.seeds, planned=self.planned, alpha=ALPHA) if self.recorded else ALPHA

    @property
    def confidence(self) -> str:
        """Confidence of the current look's intervals, e.g. `96%`."""
        return confidence(self.level)

    def level_at(self, seeds: float) -> float:
        """Return the error level of a further look at `seeds` seeds per cell."""
        if not self.recorded:
            return ALPHA
        return self.share * level_left((*self.seeds, seeds), planned=self.planned, alpha=ALPHA, grown=self.grown)


def _looks_of(
    past: Sequence[Look], trials: Sequence[TrialResult], *, imported: bool = False, share: float = 1.0
) -> _Looks:
    """Return the recorded looks together with the current look; for `share`, see `_Looks`."""
    ended = [trial for trial in trials if trial.status not in {"running", "missing"}]
    failed = sum(trial.status == "failed" for trial in ended)
    seeds, cells = [look.seeds for look in past], [look.cells for look in past]
    if not past or past[-1].trials != len(ended) or past[-1].failed not in {failed, 0}:  # not on record yet
        results = (trial.seed for trial in ended if trial.status != "failed")
        now = seeds_in((trial.seed for trial in trials), results)
        seeds.append(seeds_after(past[-1] if past else None, now, len(ended)))
        cells.append(sum(count >= 2 for count in Counter(trial.cell.digest for trial in ended).values()))
    grown = frozenset(index for index, (before, now) in enumerate(pairwise(cells), start=1) if now > before > 0)
    if any(look.by == "race" for look in past):
        grown = frozenset(range(len(seeds)))  # see `stats.sequential.looks.race_level`
    first = past[0].planned if past else len({trial.seed for trial in trials})
    return _Looks(tuple(seeds), max(1, first), not imported, share, grown)


@dataclass(frozen=True)
class BaselineDifference:
    """Difference of a cell to the baseline, with its simultaneous interval; infinite without a noise estimate."""

    label: str
    n: int  # number of seeds that both cells have
    difference: float
    low: float
    high: float
    verdict: Literal["better", "worse", "undecided"]


@dataclass(frozen=True, eq=False)
class CellComparisons:
    """Cells of a sweep with their table, bounds and differences."""

    results: Results
    metric: MetricName
    margin: float
    cells: tuple[CellAnalysis, ...]
    paper_sd: float | None = None
    """Run-to-run standard deviation of published numbers, given by the user; None if unknown."""

    @property
    def goal(self) -> Literal["maximize", "minimize"]:
        """Whether larger or smaller values are better."""
        return self.results.plan.space.goal

    @property
    def sign(self) -> float:
        """1 if larger is better, else -1."""
        return 1.0 if self.goal == "maximize" else -1.0

    @property
    def seeds(self) -> tuple[int, ...]:
        """Planned seeds."""
        return self.results.plan.seeds

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of trials by status; statuses without trials are left out."""
        return {status: count for status in get_args(TrialStatus) if (count := self.results.count(status))}

    @property
    def seconds(self) -> float:
        """Seconds of training of all trials."""
        return sum(trial.seconds for trial in self.results.trials)

    @cached_property
    def ranked(self) -> tuple[CellAnalysis, ...]:
        """Cells with a value, the best mean first."""
        return _by_mean([cell for cell in self.cells if cell.values], self.sign)

    @cached_property
    def selectable(self) -> tuple[CellAnalysis, ...]:
        """Cells that validation can select, the best first; a baseline is included."""
        return selectable_cells(self.results.plan, self.cells)

    @cached_property
    def settings(self) -> Mapping[str, Value]:
        """Settings of the first cell that is not a baseline."""
        return next((cell.cell.settings for cell in self.cells if not cell.cell.baseline), {})

    def settings_of(self, arm: str) -> Mapping[str, Value]:
        """Return the settings of the first cell of an arm."""
        return next((cell.cell.settings for cell in self.cells if cell.cell.arm == arm), {})

    @cached_property
    def arms(self) -> tuple[ArmAnalysis, ...]:
        """Arms in their order, with their cells; a space without arms counts as one arm, beside its baseline."""
        arms = self.results.plan.arms
        slugs, cells = distinct_slugs(arm.name for arm in arms), grouped(self.cells, lambda cell: cell.cell.arm)
        pairs = ((arm, tuple(cells.get(arm.name, ()))) for arm in arms)
        return tuple(ArmAnalysis(arm.name, slugs[arm.name], arm.baseline, arm.knobs, own) for arm, own in pairs)

    @cached_property
    def baseline(self) -> CellAnalysis | None:
        """Baseline cell with the best mean; None if the space has no baseline."""
        if self.baselines:
            return _by_mean(self.baselines, self.sign)[0]
        return next((cell for cell in self.cells if cell.cell.baseline), None)

    @cached_property
    def baselines(self) -> tuple[CellAnalysis, ...]:
        """Baseline cells with results; several if the baseline was tuned."""
        return tuple(cell for cell in self.cells if cell.cell.baseline and cell.values)

    @cached_property
    def looks(self) -> _Looks:
        """Interim analyses of the sweep: the recorded looks and the current one."""
        results, imported = self.results, self.results.imported is not None
        return _looks_of(results.looks, results.trials, imported=imported, share=self._share_left)

    @cached_property
    def confirmation_looks(self) -> _Looks:
        """Interim analyses of the confirmation's fresh seeds: the recorded looks and the current one.

        If the sweep was extended after the first of them, another confirmed cell may have become the best one. The
        confirmed cells then share the error, because several may have been judged on the same fresh seeds.
        """
        confirmed = {trial.cell.digest for trial in self.results.confirmed if not trial.cell.baseline}
        share = 1 / max(1, len(confirmed)) if _grew_after_confirmation(self.results) else 1.0
        return _looks_of(self.results.confirmation_looks, self.results.confirmed, share=share)

    @property
    def _share_left(self) -> float:
        """Share of a cell's comparisons with others that remain after early stopping."""
        remaining = sum(bool(cell.values) for cell in self.cells)
        return (remaining - 1) / (remaining - 1 + len(self.stopped)) if remaining > 1 else 1.0

    @cached_property
    def stopped(self) -> tuple[CellAnalysis, ...]:
        """Cells that were stopped early."""
        return tuple(cell for cell in self.cells if cell.stopped is not None)

    @cached_property
    def race(self) -> RaceFindings | None:
        """Findings of the sweep's race; None if the sweep is not a race."""
        return race_findings(self.results, self.cells)

    @cached_property
    def resolution(self) -> float:
        """Step by which one query changes the metric; 0 if continuous or unknown."""
        return self.results.resolution_of(self.metric.key)

    @cached_property
    def table(self) -> SeedTable:
        """Cells x seeds of all cells with results, baselines included; cells that lost every seed are excluded."""
        return SeedTable.of({c.label: c.values for c in self.cells if c.values}, self.seeds, resolution=self.resolution)

    @cached_property
    def pairs(self) -> Bounds | None:
        """Simultaneous intervals of all differences between cells; None without a noise estimate."""
        if not self.table.testable:
            return None
        bounds = all_pairs(self.table.values, self.looks.level, self.table.noise)
        raced = self.race.of(self.table.labels) if self.race else None
        return bounds if raced is None else raced.narrow(bounds)

    @cached_property
    def searched(self) -> tuple[tuple[ArmAnalysis, Knob], ...]:
        """Scientific knobs of each arm, or all knobs if none is scientific; they share the error (Bonferroni)."""
        space = self.results.plan.space
        methods = [arm for arm in self.arms if not arm.baseline]
        return tuple((arm, knob) for arm in methods for knob in space.scientific_of(space.arm(arm.name)))

    @cached_property
    def bars(self) -> Mapping[str, float]:
        """Half the comparison bar of each cell; cells whose bars do not overlap differ significantly.

        A knob's table is judged by the noise of its own values, which may exceed the noise of all cells. So the
        bars also cover the intervals of that table: values whose bars do not overlap differ there too.
        """
        if self.pairs is None:
            return {}
        bounds = self.pairs
        for arm, _ in self.searched:
            if len(arm.knobs) == 1:
                bounds = self._covering(bounds, {cell.label for cell in arm.cells})
        means = [cell.mean for cell in self.cells if cell.values]
        return dict(zip(self.table.labels, comparison_bars(bounds, means).tolist(), strict=True))

    def _covering(self, bounds: Bounds, labels: Set[str]) -> Bounds:
        """Widen the intervals of all cells so that they contain those of a knob whose values are these cells."""
        table = self.table.without(set(self.table.labels) - labels)
        if not table.testable:
            return bounds
        own = all_pairs(table.values, self.looks.level / len(self.searched), table.noise)
        raced = self.race.of(table.labels) if self.race else None
        own = own if raced is None else raced.narrow(own)
        block = np.ix_(*[[self.table.labels.index(label) for label in table.labels]] * 2)
        low, high = bounds.low.copy(), bounds.high.copy()
        low[block] = np.minimum(low[block], np.where(np.isfinite(own.low), own.low, np.inf))
        high[block] = np.maximum(high[block], np.where(np.isfinite(own.high), own.high, -np.inf))
        return Bounds(bounds.estimate, low, high)

    @cached_property
    def _is_constant(self) -> bool:
        return is_step_unknown(self.resolution, self.table.values.flat)

    def bar(self, cell: CellAnalysis) -> tuple[float, float]:
        """Return the ends of a cell's comparison bar; percentages are clipped to 0 to 100. NaN if it covers all.

        If all trials gave the same number, the noise is unknown, and the ends are NaN.
        """
        half = math.nan if self._is_constant else self.bars.get(cell.label, math.nan)
        low, high = self.metric.level_ends(cell.mean - half, cell.mean + half)
        return (math.nan, math.nan) if self.metric.percent and high - low >= 100 else (low, high)

    @cached_property
    def against_baseline(self) -> tuple[BaselineDifference, ...] | None:
        """Differences of all other cells to the best baseline cell; None without baseline results."""
        if self.baseline is None or not self.baseline.values:
            return None
        by_label = {cell.label: cell for cell in self.cells}
        rows = []
        table, level, labels = self.table, self.looks.level, [cell.label for cell in self.baselines]
        raced = self.race.of(table.labels) if self.race else None
        if len(labels) > 1:
            differences = compare_all_with_best_of(table, labels, sign=self.sign, alpha=level, raced=raced)
        else:
            differences = compare_all_with(table, labels[0], alpha=level, raced=raced)
        for difference in differences:
            verdict = better_or_worse(difference.low, difference.high, self.sign)
            ends = self.metric.change_ends(difference.low, difference.high)
            shared = len(by_label[difference.first].values.keys() & self.baseline.values.keys())
            rows.append(BaselineDifference(difference.first, shared, difference.estimate, *ends, verdict))
        return tuple(rows)

    def against(self, cell: CellAnalysis) -> BaselineDifference | None:
        """Return a cell's difference to the baseline; None for the baseline itself or without one."""
        return next((row for row in self.against_baseline or () if row.label == cell.label), None)


def _by_mean(cells: Sequence[CellAnalysis], sign: float) -> tuple[CellAnalysis, ...]:
    """Return cells with a value, the best mean first; means that differ by rounding only keep their order."""
    means = np.array([sign * cell.mean for cell in cells])
    sizes = np.array([max(map(abs, cell.values.values())) for cell in cells])
    return tuple(cells[row] for row in np.argsort(-without_rounding(means, sizes), kind="stable"))


def _grew_after_confirmation(results: Results) -> bool:
    """Return whether trials of the sweep ended after the first look at fresh seeds."""
    first = min((look.time for look in results.confirmation_looks), default=math.inf)
    seen = [look.trials - look.failed for look in results.looks if look.time <= first]
    ended = [trial for trial in results.trials if trial.status not in {"running", "missing", "failed"}]
    return bool(seen) and math.isfinite(first) and len(ended) > seen[-1]


def better_or_worse(low: float, high: float, sign: float) -> Literal["better", "worse", "undecided"]:
    """Return the verdict on a difference with this interval; `sign` is -1 if smaller is better."""
    low, high = sorted((sign * low, sign * high))
    return "better" if low > 0 else "worse" if high < 0 else "undecided"
