"""Compare sweeps: settings that differ, paired differences at shared points, and agreement on the order of values."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Literal

import numpy as np

from tune_dml.planning.checks.effects import effective_settings
from tune_dml.record.results import Results, TrialResult
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.analysis.cell import CellAnalysis as Cell
from tune_dml.report.analysis.comparisons import better_or_worse
from tune_dml.report.naming import MetricName
from tune_dml.space import Value
from tune_dml.stats import SeedTable
from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.contrasts import estimate_gains
from tune_dml.stats.verdicts.ranks import RankAgreement, agree_in_rank
from tune_dml.text import level_key, value_text

_SEARCHED = "(searched)"
_CellsOfLevels = Mapping[Value, Mapping[tuple[object, ...], Cell]]
_FROM_PLAN = ("metric", "data set", "data", "protocol version", "seeds")
"""Properties of the plan that may differ; listed before the settings."""
_OF_VALIDATION = ("data.split", "data.folds", "data.fold", "data.validation_fraction", "seeds.split")
"""Settings that choose the classes on which a trial is judged."""


@dataclass(frozen=True, eq=False)
class SeveralSweeps:
    """Analyses of several sweeps; the metric is that of the first."""

    sweeps: tuple[Analysis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sweeps."""
        return tuple(sweep.results.name for sweep in self.sweeps)

    @property
    def metric(self) -> MetricName:
        """Metric of the first sweep."""
        return self.sweeps[0].metric


@dataclass(frozen=True)
class Budget:
    """Cost of a sweep; only methods with equal budgets are compared fairly."""

    cells: int
    trials: int
    seconds: float


@dataclass(frozen=True)
class PairedDifference:
    """Difference of a sweep to the first sweep at one point, paired by seed, with a simultaneous interval."""

    sweep: str
    point: str  # values of the knobs of both cells
    first: str
    second: str
    seeds: int
    difference: float
    low: float
    high: float
    verdict: Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class KnobRank:
    """Agreement of a sweep with the first one on the order of a knob's values."""

    knob: str
    against: str
    agreement: RankAgreement


@dataclass(frozen=True, eq=False)
class SweepComparison(SeveralSweeps):
    """Several sweeps side by side; each is compared with the first."""

    @cached_property
    def level(self) -> float:
        """Error level of all differences together: the lowest level among the compared sweeps."""
        return min(sweep.looks.level for sweep in self.sweeps if sweep.results.name not in self.refusals)

    @cached_property
    def differences(self) -> dict[str, tuple[Value, ...]]:
        """Settings that differ, with their value in each sweep; data and protocol first."""
        by_sweep = [_settings(sweep.results) for sweep in self.sweeps]
        paths = dict.fromkeys((*_FROM_PLAN, *sorted({path for settings in by_sweep for path in settings})))
        rows = {path: tuple(settings.get(path, "-") for settings in by_sweep) for path in paths}
        return {path: values for path, values in rows.items() if len({str(value) for value in values}) > 1}

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Budget of each sweep."""
        return tuple(Budget(len(item.cells), item.results.count("finished"), item.seconds) for item in self.sweeps)

    @property
    def equal_budgets(self) -> bool:
        """Whether all sweeps have the same numbers of cells and finished trials."""
        return len({(budget.cells, budget.trials) for budget in self.budgets}) <= 1

    @cached_property
    def refusals(self) -> dict[str, tuple[str, ...]]:
        """Reasons why a sweep cannot be compared with the first one, by its name."""
        by_sweep = {sweep.results.name: _reasons(self.sweeps[0], sweep) for sweep in self.sweeps[1:]}
        return {name: reasons for name, reasons in by_sweep.items() if reasons}

    @cached_property
    def ranks(self) -> tuple[KnobRank, ...]:
        """Agreement of each other sweep with the first one, for each knob with three common values in both."""
        first = self.sweeps[0]
        return tuple(
            KnobRank(path, other.results.name, agree_in_rank(*tables, alpha=self.rank_level, resolutions=steps))
            for path, other, tables in self._common_tables
            for steps in [(first.resolution, other.resolution)]
        )

    @cached_property
    def rank_level(self) -> float:
        """Error level of the bounds of one agreement: all agreements share the lowest level among the sweeps."""
        return min(sweep.looks.level for sweep in self.sweeps) / max(1, len(self._common_tables))

    @cached_property
    def _common_tables(self) -> list[tuple[str, Analysis, list[Array]]]:
        """Each knob shared with another sweep, that sweep, and the two tables of common values x seeds."""
        first, *others = self.sweeps
        return [(path, other, tables) for other in others for path, tables in _rank_tables(first, other).items()]

    @cached_property
    def same(self) -> dict[str, int]:
        """Number of cells of each sweep with the configuration and the code of a cell of the first sweep."""
        return {
            sweep.results.name: sum(_is_same(a, b) for a, b in _matched(self.sweeps[0], sweep))
            for sweep in self.sweeps[1:]
        }

    @cached_property
    def paired(self) -> tuple[PairedDifference, ...]:
        """Paired differences to the first sweep, with simultaneous intervals."""
        pairs = [
            (sweep, first, second)
            for sweep in self.sweeps[1:]
            if sweep.results.name not in self.refusals
            for first, second in _matched(self.sweeps[0], sweep)
            if not _is_same(first, second) and len(first.values.keys() & second.values.keys()) > 1
        ]
        return _judge_pairs(self.sweeps[0], pairs, self.level) if pairs else ()


def compare_sweeps(results: Sequence[Results], margin: float | None = None) -> SweepComparison:
    """Compare sweeps with the first one; `margin` defaults to each sweep's own."""
    return SweepComparison(tuple(analyse(item, margin) for item in results))


def assume_same_data(results: Sequence[Results]) -> list[Results]:
    """Return the results; imported results without a data set get the first known data set."""
    plan = next((item for item in results if not _is_data_unknown(item)), results[0]).plan
    dataset, digest = plan.dataset, plan.data_digest or "asserted"
    return [
        replace(item, plan=replace(item.plan, dataset=dataset, data_digest=digest)) if _is_data_unknown(item) else item
        for item in results
    ]


def _is_data_unknown(results: Results) -> bool:
    return results.imported is not None and not results.plan.data_digest


def _settings(results: Results) -> dict[str, Value]:
    plan = results.plan
    shared: dict[str, Value] = {
        "metric": plan.metric,
        "data set": plan.dataset,
        "data": plan.data_digest[:12],
        "protocol version": plan.protocol_version,
        "seeds": ", ".join(map(str, plan.seeds)),
    }
    code = {f"code of {name}": " and ".join(digests) for name, digests in _code(results.trials).items()}
    return {**shared, **code, **plan.base_settings, **{knob.path: _SEARCHED for knob in plan.knobs}}


def _code(trials: Sequence[TrialResult]) -> dict[str, list[str]]:
    """Return the digests of each script, by its file name, and of each module of another package."""
    found: dict[str, set[str]] = {}
    for trial in trials:
        for name, digest in trial.code.items():
            found.setdefault(PurePath(name).name if name.endswith(".py") else name, set()).add(digest)
    return {name: sorted(found[name]) for name in sorted(found)}


def _is_same(first: Cell, second: Cell) -> bool:
    """Return whether two cells have the same configuration and were trained by the same code."""
    return first.cell.digest == second.cell.digest and _code(first.trials) == _code(second.trials)


def _reasons(first: Analysis, second: Analysis) -> tuple[str, ...]:
    """Return the reasons why two sweeps cannot be compared; empty if they can."""
    ours, theirs = first.results.plan, second.results.plan
    reasons = []
    if (ours.metric, first.goal) != (theirs.metric, second.goal):
        reasons.append(f"other metric: {theirs.metric}, not {ours.metric}")
    unknown = [sweep.results.name for sweep in (first, second) if _is_data_unknown(sweep.results)]
    if unknown:
        remedy = "log it with mlflow.log_input, or pass --same-data"
        reasons.append(f"the training data of {' and '.join(unknown)} is unknown: {remedy}")
    elif ours.dataset != theirs.dataset:
        reasons.append(f"other data set: {theirs.dataset}, not {ours.dataset}")
    elif ours.data_digest != theirs.data_digest:
        digests = f"{theirs.data_digest[:12]}, not {ours.data_digest[:12]}"
        reasons.append(f"other data: the digest of {ours.dataset} is {digests}")
    if (first.results.imported is None) != (second.results.imported is None):
        reasons.append("one was trained by another program, whose training rules are unknown")
    elif ours.protocol_version != theirs.protocol_version:
        versions = f"{theirs.protocol_version}, not {ours.protocol_version}"
        reasons.append(f"other training rules (protocol version {versions})")
    if reasons:
        return tuple(reasons)
    if len(set(ours.seeds) & set(theirs.seeds)) < 2:
        return ("they share fewer than two seeds, but cells are compared within seeds",)
    matched = _matched(first, second)
    if not matched:
        return ("no cell of one sweep has the knob values of a cell of the other",)
    if not any(len(a.values.keys() & b.values.keys()) > 1 for a, b in matched):
        return ("no two cells with equal knob values have finished the same two seeds",)
    return _other_validation(matched)


def _other_validation(matched: Sequence[tuple[Cell, Cell]]) -> tuple[str, ...]:
    """Return the settings by which a pair of cells is judged on other classes; empty if all are judged on the same."""
    for cells in matched:
        ours, theirs = (effective_settings({**item.cell.settings, **item.cell.knobs}) for item in cells)
        differing = [path for path in _OF_VALIDATION if ours.get(path) != theirs.get(path)]
        if differing:
            values = [f"{path} is {_as_text(theirs, path)}, not {_as_text(ours, path)}" for path in differing]
            return (f"other validation classes: {', '.join(values)}",)
    return ()


def _as_text(settings: Mapping[str, object], path: str) -> str:
    value = settings.get(path)
    return "the trial's seed" if value is None and path == "seeds.split" else "none" if value is None else str(value)


def _matched(first: Analysis, second: Analysis) -> list[tuple[Cell, Cell]]:
    """Pair the cells with equal values of every knob that either sweep searches, and baselines equal in their own."""
    baselines = [cell for sweep in (first, second) for cell in sweep.cells if cell.cell.baseline]
    tuned = {path for cell in baselines for path in cell.cell.knobs}
    paths = {knob.path for sweep in (first, second) for knob in sweep.results.plan.knobs}
    theirs: dict[tuple[object, ...], Cell] = {}
    for cell in second.cells:
        theirs.setdefault(_position(cell, paths, tuned), cell)
    return [(cell, match) for cell in first.cells if (match := theirs.get(_position(cell, paths, tuned))) is not None]


def _position(cell: Cell, paths: Set[str], tuned: Set[str] = frozenset()) -> tuple[object, ...]:
    """Return the cell's arm and its values at `paths`; for a baseline, which may have another name, those at `tuned`."""
    settings: Mapping[str, Value] = {**cell.cell.settings, **cell.cell.knobs}
    values = (settings.get(path) for path in sorted(tuned if cell.cell.baseline else paths))
    return (cell.cell.arm if not cell.cell.baseline else None, *map(level_key, values))


def _judge_pairs(
    reference: Analysis, pairs: Sequence[tuple[Analysis, Cell, Cell]], alpha: float
) -> tuple[PairedDifference, ...]:
    """Judge all differences together, so that they share the error. Each uses the seeds that both cells have."""
    cells: dict[int, Cell] = {id(cell): cell for _, *both in pairs for cell in both}
    row = {key: index for index, key in enumerate(cells)}
    common = sorted({seed for _, a, b in pairs for seed in a.values.keys() & b.values.keys()})
    table = SeedTable.of({str(index): cell.values for index, cell in enumerate(cells.values())}, common)
    gains = [(row[id(second)], row[id(first)]) for _, first, second in pairs]
    resolution = max(sweep.resolution for sweep in (reference, *(sweep for sweep, _, _ in pairs)))
    bounds = estimate_gains(table.values, gains, alpha=alpha, resolution=resolution)
    judged = []
    for (sweep, first, second), (difference, low, high) in zip(pairs, bounds.rows(), strict=True):
        names = (sweep.results.name, _point(first), first.label, second.label)
        shared = len(first.values.keys() & second.values.keys())
        ends, verdict = reference.metric.change_ends(low, high), better_or_worse(low, high, reference.sign)
        judged.append(PairedDifference(*names, shared, difference, *ends, verdict))
    return tuple(judged)


def _point(cell: Cell) -> str:
    if cell.cell.baseline:
        return f"baseline ({cell.label})"
    values = ", ".join(f"{path} = {value_text(value)}" for path, value in cell.cell.knobs.items())
    return ": ".join(part for part in (cell.cell.arm, values) if part) or cell.label


def _rank_tables(first: Analysis, second: Analysis) -> dict[str, list[Array]]:
    """Return both sweeps' tables of each knob that both search at three or more common values, by path."""
    paths = [knob.path for knob in first.results.plan.knobs]
    second_paths = {knob.path for knob in second.results.plan.knobs}
    found = {}
    for path in dict.fromkeys(path for path in paths if path in second_paths):
        levels, second_levels = _complete_cells(first, path), _complete_cells(second, path)
        common = [level for level in levels if level in second_levels]
        if len(common) < 3:
            continue
        tables = [_level_means(own, common) for own in (levels, second_levels)]
        if all(len(table[0]) for table in tables):
            found[path] = tables
    return found


def _complete_cells(sweep: Analysis, path: str) -> _CellsOfLevels:
    """Return the cells by value of the knob, then by other settings; without baselines and cells that lack a seed."""
    levels: dict[Value, dict[tuple[object, ...], Cell]] = {}
    seeds = set(sweep.results.plan.seeds)
    others = {knob.path for knob in sweep.results.plan.knobs} - {path}
    for cell in sweep.cells:
        if path in cell.cell.knobs and not cell.cell.baseline and set(cell.values) >= seeds:
            levels.setdefault(cell.cell.knobs[path], {})[_position(cell, others)] = cell
    return levels


def _level_means(levels: _CellsOfLevels, common: Sequence[Value]) -> Array:
    """Return the mean of each value over the other settings that have every value, (values, seeds).

    There are no seeds if no setting has every value: averages over different settings have no common order.
    """
    settings = [place for place in levels[common[0]] if all(place in levels[level] for level in common)]
    if not settings:
        return np.zeros((len(common), 0))
    seeds = sorted(levels[common[0]][settings[0]].values)
    rows = [[np.mean([levels[level][place].values[seed] for place in settings]) for seed in seeds] for level in common]
    return np.array(rows, dtype=np.float64)
