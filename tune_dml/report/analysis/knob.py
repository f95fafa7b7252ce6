"""Analysis of one knob of a sweep: its curve and sensitivity verdict, isolated from the other knobs."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tune_dml.papers.published import PublishedCurve, published_curve
from tune_dml.report.analysis.cell import ArmAnalysis, CellAnalysis, has_no_effect, seed_values
from tune_dml.report.analysis.comparisons import CellComparisons
from tune_dml.report.naming import slug, symbol_of, value_label
from tune_dml.space import METHOD, Grid, Knob, Value
from tune_dml.stats import IsolatedKnob, KnobPoint, SeedTable, SensitivityVerdict, isolate, judge_sensitivity
from tune_dml.stats.intervals.contrasts import fill_holes
from tune_dml.stats.intervals.simultaneous import comparison_bars
from tune_dml.stats.sequential.racing import RaceStanding
from tune_dml.stats.verdicts.search_effect import SearchEffect, judge_search_effect
from tune_dml.text import is_number, level_key, spelling_key, value_text

Axis = Literal["log", "linear", "ordered"]
_UNUSED = "its values trained to the same numbers"
_TESTED_SEARCHES = frozenset({"random", "qmc", "gp"})
"""Search methods whose knobs are tested for an effect; with the others, false claims exceed 5 % or were not measured.

Imported results are not tested, because it is unknown how their configurations were chosen."""
_BIASED = "configurations were stopped early by their results, so the others do not represent their values"


@dataclass(frozen=True)
class CurvePoint:
    """One value of a knob on its curve."""

    label: str
    value: Value
    seeds: tuple[tuple[int, float], ...]
    """(seed, metric) of each seed in the mean, averaged or tuned over the other knobs."""
    mean: float  # NaN without results, or if the values cannot be compared
    half_bar: float  # half the comparison bar; NaN without a noise estimate
    failures: tuple[tuple[int, str, str], ...]  # (seed, status, reason) of each trial without a value
    trials: tuple[str, ...]
    stopped: int = 0  # number of trials that were stopped early

    @property
    def diverged(self) -> int:
        """Number of trials that diverged."""
        return sum(status == "diverged" for _, status, _ in self.failures)


@dataclass(frozen=True)
class SearchedEffect:
    """Test of a knob's effect over the configurations of a search."""

    test: SearchEffect
    where: str  # range of the knob with the largest difference to the rest: `lr from 0.001 to 0.02`


@dataclass(frozen=True, eq=False)
class KnobAnalysis:
    """A knob's curve and its sensitivity verdict."""

    knob: Knob
    axis: Axis
    levels: tuple[Value, ...]  # all values tried, in axis order, including those without results
    labels: tuple[str, ...]  # labels of the levels, as in `isolated.table`
    isolated: IsolatedKnob
    better: SeedTable  # `isolated.table` with larger numbers better
    raced: RaceStanding | None  # findings of a race about the rows of the table
    sensitivity: SensitivityVerdict
    points: tuple[CurvePoint, ...]
    baseline: CurvePoint | None
    published: tuple[PublishedCurve, ...]  # published curves of this knob, same data set first
    slug: str  # arm and path as used in anchors and file names
    arm: str = ""  # arm in which the knob was varied; empty in a space without arms
    cells: tuple[str, ...] = ()  # cell label of each level; empty if a level has several cells
    failed: tuple[str, ...] = ()
    search_effect: SearchedEffect | None = None
    """Test of the knob's effect, if its values cannot be compared because a search did not cross them."""
    unused: bool = False  # whether all values gave identical results, so that the knob had no effect

    @property
    def key(self) -> str:
        """Unique key: arm and path."""
        return f"{self.arm} {self.path}".strip()

    @property
    def path(self) -> str:
        """Dotted path of the knob."""
        return self.knob.path

    @property
    def symbol(self) -> str:
        """Name of the knob in sentences."""
        return f"{symbol_of(self.knob)} of {self.arm}" if self.arm else symbol_of(self.knob)

    @property
    def numeric(self) -> bool:
        """Whether all levels are numbers."""
        return all(is_number(level) for level in self.levels)

    @property
    def points_and_baseline(self) -> tuple[CurvePoint, ...]:
        """Points of the curve, followed by the baseline."""
        return self.points if self.baseline is None else (*self.points, self.baseline)

    @property
    def seeds(self) -> int:
        """Number of seeds with results; where no seed has every setting of a value, those of single cells."""
        averaged = int(np.isfinite(self.isolated.table.values).any(axis=0).sum())
        return averaged or len({seed for point in self.points for seed, _ in point.seeds})

    def shared_seeds(self, first: str, second: str) -> int:
        """Return the number of seeds with results at both levels; where no seed has every setting, all seeds."""
        table = self.isolated.table
        found = np.isfinite(table.values)
        if not found.any():
            return self.seeds
        return int(np.logical_and(*(found[table.labels.index(label)] for label in (first, second))).sum())

    @property
    def stopped(self) -> tuple[str, ...]:
        """Values of which a cell was stopped early."""
        return tuple(point.label for point in self.points if point.stopped)

    @property
    def among(self) -> str:
        """Prefix of a sentence if values were stopped early: `Among the 2 of 9 values that finished training: `.

        Empty if all values finished, or if they cannot be compared.
        """
        finished = len(self.points) - len(self.stopped)
        if not self.stopped or self.isolated.problem or finished < 2:
            return ""
        return f"Among the {finished} of {len(self.points)} values that finished training: "

    def level(self, label: str) -> Value:
        """Return the knob's value by label."""
        return self.levels[self.labels.index(label)]

    @staticmethod
    def text_of(label: str) -> str:
        """Return the knob's value as text by label: `0.01` for `rho=0.01`."""
        return label.partition("=")[2]


def _baseline_point(analysis: CellComparisons) -> CurvePoint | None:
    """Return the baseline as a point of a curve, with its comparison bar among all cells; None without a baseline."""
    if analysis.baseline is None:
        return None
    label = analysis.baseline.label
    return _point_of(label, None, [analysis.baseline], analysis.baseline.mean, analysis.bars.get(label, math.nan))


def analyse_knob(analysis: CellComparisons, arm: ArmAnalysis, knob: Knob, alpha: float) -> KnobAnalysis:
    """Isolate a knob within an arm and judge its sensitivity at the error level `alpha`."""
    knob_cells = [cell for cell in arm.cells if knob.path in cell.cell.knobs]
    levels = sort_levels(knob, knob_cells)
    labels = _distinct_labels({level_key(level): value_label(knob, level) for level in levels})
    at_level: dict[str, list[CellAnalysis]] = {label: [] for label in labels.values()}
    for cell in knob_cells:
        at_level[labels[level_key(cell.cell.knobs[knob.path])]].append(cell)
    only_cells = tuple(cells[0].label for cells in at_level.values()) if len(knob_cells) == len(levels) else ()
    isolated = _isolate(analysis, arm, knob, labels)
    diverged = [label for label, cells in at_level.items() if any(cell.diverged for cell in cells)]
    stopped = [label for label, cells in at_level.items() if any(cell.stopped for cell in cells)]
    failed, raced = _failed_in_race(analysis, at_level), None
    if analysis.race is not None and only_cells:
        raced = analysis.race.of([at_level[label][0].label for label in isolated.table.labels])
    sensitivity = judge_sensitivity(
        isolated.table, analysis.margin, alpha=alpha, diverged=diverged, stopped=stopped, failed=failed,
        crossed=isolated.crossed, tuned=isolated.tuned, sign=analysis.sign, raced=raced,
    )  # fmt: skip
    unused = analysis.results.imported is None and has_no_effect(arm, knob)
    tested = None
    if isolated.problem:
        tested = _search_effect(analysis, arm, knob)
        effect = tested is not None and tested.test.p_value <= alpha
        sensitivity = replace(sensitivity, reason=isolated.problem, effect=effect)
    elif unused:
        sensitivity = replace(sensitivity, verdict="undecided", reason=_UNUSED, flat=False)
    bars = _bars(analysis, dict(zip(at_level, only_cells, strict=False)), sensitivity, isolated.means)
    seeds = _isolated_seeds(isolated.table)
    points = []
    for level, (label, cells) in zip(levels, at_level.items(), strict=True):
        mean = isolated.means.get(label, math.nan)
        point = _point_of(label, level, cells, mean, bars.get(label, math.nan) if math.isfinite(mean) else math.nan)
        points.append(replace(point, seeds=seeds.get(label) or point.seeds))
    return KnobAnalysis(
        knob, axis_of(knob, levels), levels, tuple(labels.values()), isolated,
        isolated.table.times(analysis.sign), raced, sensitivity, tuple(points),
        _baseline_point(analysis), _published_curves(analysis, knob, arm.name), slug(f"{arm.slug} {knob.path}".strip()),
        arm.name, only_cells, tuple(failed), tested, unused,
    )  # fmt: skip


def _isolate(analysis: CellComparisons, arm: ArmAnalysis, knob: Knob, labels: Mapping[Hashable, str]) -> IsolatedKnob:
    """Isolate a knob from the other knobs of its arm; if cells were stopped early, the result is empty."""
    space = analysis.results.plan.space
    paths = [arm_knob.path for arm_knob in arm.knobs if arm_knob.path != knob.path]
    if paths and any(cell.stopped for cell in arm.cells):
        return IsolatedKnob(SeedTable.of({}, analysis.seeds), {}, "", _BIASED)
    others = [path for path in paths if not space.is_nuisance(path)]
    nuisance = [path for path in paths if space.is_nuisance(path)]
    points = [
        KnobPoint(
            level_key(cell.cell.knobs[knob.path]),
            tuple(level_key(cell.cell.knobs.get(path)) for path in others),
            tuple(level_key(cell.cell.knobs.get(path)) for path in nuisance),
            cell.values,
        )
        for cell in arm.cells
        if knob.path in cell.cell.knobs
    ]
    return isolate(points, labels, analysis.seeds, analysis.sign, analysis.resolution)


def _failed_in_race(analysis: CellComparisons, at_level: Mapping[str, list[CellAnalysis]]) -> list[str]:
    """Return the values that a race left unsettled because their trials failed."""
    if analysis.race is None:
        return []
    lost, failed = analysis.race.lost, []
    for label, cells in at_level.items():
        without = any(cell.failures for cell in cells) and not any(cell.values or cell.diverged for cell in cells)
        failed += [label] if without or any(cell.label in lost for cell in cells) else []
    return failed


def _bars(
    analysis: CellComparisons, cells: Mapping[str, str], verdict: SensitivityVerdict, means: Mapping[str, float]
) -> dict[str, float]:
    """Return half a comparison bar for each value; if each value has one cell, that of the cell."""
    if cells:
        return {label: analysis.bars.get(cell, math.nan) for label, cell in cells.items()}
    if verdict.bounds is None:
        return {}
    bars = comparison_bars(verdict.bounds, [means[label] for label in verdict.labels])
    return dict(zip(verdict.labels, bars.tolist(), strict=True))


def _point_of(label: str, level: Value, cells: list[CellAnalysis], mean: float, bar: float) -> CurvePoint:
    seeds = tuple((seed, number) for cell in cells for seed, number in sorted(cell.values.items()))
    failures = tuple((trial.seed, trial.status, why) for cell in cells for trial, why in cell.failures)
    return CurvePoint(
        label, level, seeds, mean, bar, failures, tuple(trial.key for cell in cells for trial in cell.trials),
        sum(trial.status == "stopped" for cell in cells for trial in cell.trials),
    )  # fmt: skip


def _isolated_seeds(table: SeedTable) -> dict[str, tuple[tuple[int, float], ...]]:
    rows = (zip(table.seeds, row, strict=True) for row in table.values.tolist())
    numbers = (tuple((seed, number) for seed, number in row if math.isfinite(number)) for row in rows)
    return dict(zip(table.labels, numbers, strict=True))


def _published_curves(analysis: CellComparisons, knob: Knob, arm: str) -> tuple[PublishedCurve, ...]:
    """Return the published curves whose hyperparameter is the knob's symbol or the last part of its path.

    If a curve's method has the name of an arm, the curve belongs to that arm only.
    """
    names = {knob.path.rpartition(".")[2], symbol_of(knob)}
    plan = analysis.results.plan
    curves = [item for item in plan.space.published if item.hyperparameter != METHOD]
    named = [item for item in curves if item.hyperparameter in names]
    if not named and len(plan.space.scientific or plan.space.knobs) == 1:
        named = curves
    arms = {space_arm.name for space_arm in plan.space.every_arm}
    named = [item for item in named if arm in item.methods or not arms & set(item.methods)]
    dataset = spelling_key(plan.dataset)
    same_data_first = sorted(named, key=lambda item: not spelling_key(item.dataset).startswith(dataset))
    return _named_apart([published_curve(item) for item in same_data_first])


def _named_apart(curves: Sequence[PublishedCurve]) -> tuple[PublishedCurve, ...]:
    """Return the curves; those of one table and data set get their methods and metric in the source."""
    counts = Counter(curve.source for curve in curves)
    own = [f"{curve.source}, {', '.join(curve.published.methods)} {curve.published.metric}" for curve in curves]
    return tuple(
        curve if counts[curve.source] == 1 else replace(curve, source=source)
        for curve, source in zip(curves, own, strict=True)
    )


def sort_levels(knob: Knob, cells: Sequence[CellAnalysis]) -> tuple[Value, ...]:
    """Return the tried values: numbers ascending, names in grid order."""
    tried = list({level_key(cell.cell.knobs[knob.path]): cell.cell.knobs[knob.path] for cell in cells}.values())
    numbers = [value for value in tried if is_number(value)]
    if len(numbers) == len(tried):
        return tuple(sorted(numbers))
    listed = knob.domain.values if isinstance(knob.domain, Grid) else ()
    ranks = {level_key(value): rank for rank, value in enumerate(listed)}
    return tuple(sorted(tried, key=lambda value: ranks.get(level_key(value), len(listed))))


def axis_of(knob: Knob, levels: tuple[Value, ...]) -> Axis:
    """Return the axis scale; the values of a log grid that contains 0 are drawn at equal distances."""
    numbers = [level for level in levels if is_number(level)]
    if knob.domain.scale == "category" or len(numbers) < len(levels):
        return "ordered"
    if knob.domain.scale == "log":
        return "log" if all(number > 0 for number in numbers) else "ordered"
    return "linear"


def grid_positions(domain: Grid) -> np.ndarray:
    """Return the positions of a grid's values, as `positions_of`."""
    count = len(domain.values)
    return np.eye(count) if domain.scale == "category" else np.linspace(0, 1, count)[:, None]


def positions_of(knob: Knob, cells: Sequence[CellAnalysis]) -> np.ndarray:
    """Return the position of a knob in each cell, from 0 to 1: one column for numbers, one per category for names."""
    tried: list[Value] = [cell.cell.knobs[knob.path] for cell in cells]
    domain = knob.domain
    if isinstance(domain, Grid):
        keys = [level_key(value) for value in domain.values]
        return grid_positions(domain)[[keys.index(level_key(value)) for value in tried]]
    low, high = float(domain.low), float(domain.high)
    numbers = np.array(tried, dtype=float)
    if domain.scale == "log":
        low, high, numbers = math.log(low), math.log(high), np.log(numbers)
    shares = (numbers - low) / (high - low) if high > low else np.zeros(len(numbers))
    return shares[:, None]


def _search_effect(analysis: CellComparisons, arm: ArmAnalysis, knob: Knob) -> SearchedEffect | None:
    """Test whether a searched knob has an effect; None if it cannot be tested.

    Cells whose seeds all diverged count as the worst.
    """
    search = analysis.results.plan.search
    if search.method not in _TESTED_SEARCHES or not search.num_samples or analysis.results.imported is not None:
        return None
    cells = [cell for cell in arm.cells if cell.values or cell.diverged]
    if not arm.trained or any(cell.stopped for cell in arm.cells):
        return None
    values = seed_values(cells, analysis.seeds)
    kept = np.isfinite(values).any(1)
    means = np.zeros(len(cells))
    means[kept] = fill_holes(values[kept])[0].mean(1)
    means[~kept] = (means[kept].min() if analysis.sign > 0 else means[kept].max()) if kept.any() else 0.0
    others = [positions_of(arm_knob, cells) for arm_knob in arm.knobs if arm_knob.path != knob.path]
    columns = np.hstack([np.zeros((len(cells), 0)), *others])
    test = judge_search_effect(positions_of(knob, cells), columns, means)
    if test is None:
        return None
    inside = [cell.cell.knobs[knob.path] for cell, is_inside in zip(cells, test.inside, strict=True) if is_inside]
    numbers = [value for value in inside if is_number(value)]
    ends = (value_text(min(numbers)), value_text(max(numbers))) if len(numbers) == len(inside) else ("", "")
    if ends[0] == ends[1]:
        return SearchedEffect(test, value_label(knob, inside[0]))
    return SearchedEffect(test, f"{symbol_of(knob)} from {ends[0]} to {ends[1]}")


def full_grid(arm: ArmAnalysis) -> tuple[list[tuple[int, ...]], list[int]] | None:
    """Return the level of each knob in each cell, and each knob's number of levels; None unless cells are a full grid."""
    keys = [tuple(level_key(cell.cell.knobs[knob.path]) for knob in arm.knobs) for cell in arm.cells]
    levels = [sorted({key[index] for key in keys}) for index in range(len(arm.knobs))]
    if not len(set(keys)) == len(keys) == math.prod(map(len, levels)):
        return None
    return [tuple(map(list.index, levels, key)) for key in keys], list(map(len, levels))


def same_value(value: Value, x: float | str) -> bool:
    """Return whether a knob's value equals a published one."""
    if is_number(value) and is_number(x):
        return math.isclose(value, x, rel_tol=1e-9)
    return str(value) == str(x)


def _distinct_labels(labels: Mapping[tuple[str, str], str]) -> dict[Hashable, str]:
    """Return the labels; labels that rounding made equal get the full value."""
    counts = Counter(labels.values())
    return {key: text if counts[text] == 1 else f"{text.partition('=')[0]}={key[1]}" for key, text in labels.items()}
