"""Analyse a study: does the order of a knob's values transfer between sweeps, and what does tuning gain in each?

Results of different data sets are never averaged. Gains are judged on seeds that did not select the value
(`verdicts.selection`). If each value has its best nuisance setting, those seeds selected it: then only the gain over the
baseline is known, from all settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np

from trainables.errors import Problem, raise_if_any
from trainables.option_names import option_problem
from tune_dml.record.results import Results
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.analysis.cell import seed_values
from tune_dml.report.analysis.knob import KnobAnalysis, same_value
from tune_dml.report.several.comparison import SeveralSweeps
from tune_dml.stats.intervals.simultaneous import Bounds
from tune_dml.stats.verdicts.ranks import kendall_tau, significant_order, tau_bounds
from tune_dml.stats.verdicts.selection import lead_of_best, score_of_best
from tune_dml.text import level_key

_MIN_VALUES = 3  # minimum number of shared values for a statement about their order


@dataclass(frozen=True)
class TuningGain:
    """Mean gain over seeds that did not select the value, with its interval; NaN if unknown."""

    estimate: float = math.nan
    low: float = math.nan
    high: float = math.nan
    keeps_default: bool = False  # whether the reference itself has the best mean, so that tuning would change nothing


@dataclass(frozen=True)
class Tuning:
    """Gain of tuning a knob in one sweep."""

    sweep: str
    dataset: str
    knob: str
    best: str
    default: str  # reference of the gain: the paper's best value, else the baseline; empty if there is neither
    tunability: TuningGain | None
    mistunability: TuningGain  # mean loss of a value picked at random from those tried
    tolerant: int  # number of values whose mean is within the margin of the best
    values: int
    why_unknown: str  # reason why a gain or loss may be unknown


@dataclass(frozen=True)
class Transfer:
    """Agreement of the order of a knob's values between two sweeps."""

    knob: str
    first: str
    second: str
    shared: int
    refusal: str  # reason why the orders are not compared; empty if they are
    tau: float = math.nan
    low: float = math.nan
    """Lower bound of tau, which counts every pair that is uncertain in either sweep as a disagreement."""
    high: float = math.nan  # upper bound of tau, which counts such pairs as agreement
    lost: TuningGain | None = None  # gain of tuning in the second sweep over the best value of the first sweep
    carried: str = ""


class StudyAnalysis(SeveralSweeps):
    """Analyses of the sweeps of one study."""

    @cached_property
    def tunings(self) -> tuple[Tuning, ...]:
        """Gain of tuning each knob of each sweep, if at least two of its values have results."""
        knobs = ((sweep, knob) for sweep in self.sweeps for knob in sweep.knobs)
        return tuple(_tuning(sweep, knob) for sweep, knob in knobs if len(knob.isolated.table.labels) > 1)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Transfer of each knob that two sweeps share, for each ordered pair of sweeps."""
        return tuple(
            _transfer(first, second, knob, other)
            for first, second in permutations(self.sweeps, 2)
            for knob in first.knobs
            for other in second.knobs
            if knob.key == other.key
        )


def analyse_study(results: Sequence[Results], margin: float | None = None) -> StudyAnalysis:
    """Analyse sweeps of one space together. Raises ConfigError unless they share metric, goal and a knob."""
    first, *later_results = results
    paths, problems = {knob.path for knob in first.plan.knobs}, []
    for sweep in later_results:
        if (first.plan.metric, first.plan.space.goal) != (sweep.plan.metric, sweep.plan.space.goal):
            expected, given = (f"{plan.metric} ({plan.space.goal})" for plan in (first.plan, sweep.plan))
            rule = f"the sweeps of a study must share metric and goal, {expected} of {first.name}"
            problems.append(Problem(f"SWEEP {sweep.name}", rule, given, "Report it by itself."))
        if not paths & {knob.path for knob in sweep.plan.knobs}:
            rule = f"the sweeps of a study must share a knob; those of {first.name} are {', '.join(sorted(paths))}"
            given = ", ".join(knob.path for knob in sweep.plan.knobs)
            problems.append(Problem(f"SWEEP {sweep.name}", rule, given, "Report it by itself, or `tune-dml compare`."))
    names = [item.name for item in results]
    repeated = sorted({name for name in names if names.count(name) > 1})
    problems += [option_problem("sweep", "a sweep may be named once", name, "Remove the repeat.") for name in repeated]
    raise_if_any(problems)
    return StudyAnalysis(tuple(analyse(item, margin) for item in results))


def _tuning(sweep: Analysis, knob: KnobAnalysis) -> Tuning:
    table = knob.isolated.table
    values = sweep.sign * table.values
    means = {label: sweep.sign * mean for label, mean in knob.isolated.means.items() if math.isfinite(mean)}
    best = max(means, key=lambda label: means[label])
    tuned, why_unknown = knob.isolated.tuned, "fewer than two seeds have all values"
    label, row = _default(sweep, knob)
    gain = None if row is None else _gain(values if tuned is None else tuned.values, sweep.sign * row, sweep)
    loss = _loss_of_random(values, sweep)
    if tuned is not None:
        loss, why_unknown = TuningGain(), "each value has its best nuisance setting, chosen on the same seeds"
    tolerant = sum(mean > means[best] - sweep.margin for mean in means.values())
    return Tuning(
        sweep.results.name, sweep.results.plan.dataset, knob.symbol, best, label, gain, loss, tolerant, len(means),
        why_unknown,
    )  # fmt: skip


def _default(sweep: Analysis, knob: KnobAnalysis) -> tuple[str, np.ndarray | None]:
    """Return the untuned choice and its metric by seed: the paper's best value, else the baseline, else nothing."""
    table = knob.isolated.table
    for curve in knob.published:
        printed = curve.values()
        if not printed or knob.isolated.tuned is not None:
            continue
        advised = max(printed, key=lambda x: sweep.sign * printed[x])
        for label, row in zip(table.labels, table.values, strict=True):
            if same_value(knob.level(label), advised):
                return f"{label}, the paper's best on {curve.published.dataset}", row
    if len(sweep.baselines) == 1 and not knob.arm:  # of several, the same seeds would choose the best
        return f"{sweep.baselines[0].label}, the baseline", seed_values(sweep.baselines, table.seeds)[0]
    return "", None


def _gain(values: np.ndarray, default: np.ndarray, sweep: Analysis) -> TuningGain:
    """Return the cross-fitted gain of the best row over the default."""
    table = np.vstack([values, default])
    complete = table[:, np.isfinite(table).all(0)]
    if complete.shape[1] < 2:
        return TuningGain()
    best = score_of_best(complete, default=len(values), alpha=sweep.looks.level, resolution=sweep.resolution)
    keeps_default = np.array_equal(complete[int(best.best)], complete[-1])
    return TuningGain(float(best.mean), float(best.low), float(best.high), keeps_default)


def _loss_of_random(values: np.ndarray, sweep: Analysis) -> TuningGain:
    """Return what a value picked at random loses against the best."""
    found = _gain(values, values.mean(0), sweep)
    if not math.isfinite(found.estimate):
        return found
    complete = values[:, np.isfinite(values).all(0)]
    low, high = map(float, lead_of_best(complete, sweep.looks.level, resolution=sweep.resolution))
    return TuningGain(min(max(found.estimate, low), high), low, high)


def _transfer(first: Analysis, second: Analysis, knob: KnobAnalysis, other: KnobAnalysis) -> Transfer:
    theirs = {level_key(other.level(label)): label for label in other.isolated.table.labels}
    mine = {level_key(knob.level(label)): label for label in knob.isolated.table.labels}
    shared = [key for key in mine if key in theirs]
    names = (knob.symbol, first.results.name, second.results.name, len(shared))
    if len(shared) < _MIN_VALUES:
        return Transfer(*names, f"fewer than {_MIN_VALUES} values were tried in both")
    bounds, other_bounds = knob.sensitivity.bounds, other.sensitivity.bounds
    if bounds is None or other_bounds is None:
        untestable = knob if bounds is None else other
        return Transfer(*names, f"the noise of one of them is unknown: {untestable.sensitivity.reason}")
    means, order = _order(knob, bounds, [mine[key] for key in shared])
    other_means, other_order = _order(other, other_bounds, [theirs[key] for key in shared])
    tau, ends = kendall_tau(means, other_means), tau_bounds(order, other_order)
    best = shared[int(np.argmax(first.sign * means))]
    values = second.sign * other.isolated.table.values
    row = values[other.isolated.table.labels.index(theirs[best])]
    lost = _gain(values, row, second) if other.isolated.tuned is None else None
    return Transfer(*names, "", tau, *ends, lost, theirs[best])


def _order(knob: KnobAnalysis, bounds: Bounds, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the means, and the order of each pair of values: 1 or -1 if it is significant, else 0."""
    rows = [knob.sensitivity.labels.index(label) for label in labels]
    means = np.array([knob.isolated.means[label] for label in labels])
    return means, significant_order(bounds, rows)
