"""Which method is better? Compare every arm at its best configuration, all pairs at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tune_dml.planning.grouping import grouped
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import ArmAnalysis, seed_values
from tune_dml.report.analysis.comparisons import better_or_worse
from tune_dml.report.cells import delta_cells, interval_cells, metric_cells, text_cell
from tune_dml.report.drawing.charts import Whisker, draw_critical_differences, draw_whiskers
from tune_dml.report.drawing.colours import SHAPES, arm_colour
from tune_dml.report.naming import MetricName, confidence
from tune_dml.report.questions import question
from tune_dml.report.section import Card, Figure, FigureView, Section, Table, Text
from tune_dml.report.steps import add_seeds, explain_no_extension
from tune_dml.stats import Difference, SeedTable
from tune_dml.stats.forecast import Forecast, forecast_seeds, pairs_are_decided
from tune_dml.stats.intervals.paired import Interval, cell_interval
from tune_dml.stats.intervals.simultaneous import comparison_bars
from tune_dml.stats.intervals.tuned import TunedLevels
from tune_dml.stats.verdicts.selection import choose_best_cells, expected_best, score_of_best
from tune_dml.stats.verdicts.sensitivity import SensitivityVerdict, judge_sensitivity
from tune_dml.text import joined

_MAX_NAMED = 6  # maximum number of methods that a sentence names; for more methods it gives their number


@dataclass(frozen=True)
class ArmAtBest:
    """An arm at its best configuration."""

    arm: str
    configuration: str
    score: Interval  # mean of that cell, with an interval that allows for the selection of the cell
    bar: float
    against_baseline: Difference | None
    """Difference to the baseline; None for the baseline itself, or without a baseline."""
    tried: int
    of_equal_cells: float  # expected best of the smallest number of configurations that a tuned method tried
    of_equal_hours: float  # expected best of the configurations that fit into the smallest number of hours


@dataclass(frozen=True)
class _Budget:
    """The smallest tuning budget of a method that was tuned."""

    cells: int
    hours: float


@dataclass(frozen=True)
class _ArmComparison:
    arms: tuple[ArmAtBest, ...]
    lost: tuple[str, ...]
    matters: SensitivityVerdict
    tuned: TunedLevels | None  # every trained configuration of every method; None if each method has only one
    table: SeedTable
    budget: _Budget | None  # smallest budget of the tuned methods; None if fewer than two were tuned

    @property
    def leaders(self) -> tuple[str, ...]:
        """The best arm, and the arms with the same mean."""
        return tuple(arm.arm for arm in self.arms if arm is self.arms[0] or arm.score.mean == self.arms[0].score.mean)

    def differences(self, best: str) -> list[Difference]:
        """Return the differences of the arm `best` to every other arm."""
        return [_oriented(best, d) for d in self.matters.differences if best in {d.first, d.second}]


@question(order=150, unanswered={"arms": None})
def arms(analysis: Analysis) -> Section | None:
    """Compare the arms; None for a space without arms, unless its baseline was tuned."""
    tuned_baselines = [arm for arm in analysis.arms if len(arm.cells) > 1 and arm.baseline]
    if len(analysis.arms) < 2 or not (analysis.results.plan.space.arms or tuned_baselines):
        return None
    compared = _compare(analysis)
    if compared is None:
        return None
    sentences, word = _sentences(analysis, compared), _verdict_badge(analysis, compared)
    ahead = _ahead(analysis, compared)
    question = f"how {compared.arms[0].arm} compares with every other method"
    tables = (_table(analysis, compared), _pairs(analysis, compared))
    return Section(
        "arms",
        "Which method is better?",
        "Methods",
        (_figure(analysis, compared), Text(" ".join(sentences)), *tables),
        Card(word, "better" if word != "undecided" else word),
        (sentences[0],),
        headline=_headline(analysis, compared),
        steps=add_seeds(analysis.results, question, 42, ahead) if _is_open(analysis, compared) else (),
        hint=explain_no_extension(ahead, question, "Comparing fewer methods, or a larger `--margin`,"),
        data={
            "arms": {
                "rows": compared.arms,
                "pairs": compared.matters.differences,
                "lost": compared.lost,
                "alpha": compared.matters.alpha,
                "algorithm": compared.matters.algorithm,
                "sentences": sentences,
            }
        },
    )


def _compare(analysis: Analysis) -> _ArmComparison | None:
    """Compare every arm at its best configuration.

    Return None with fewer than two trained arms, or if a single seed would have to select configurations.
    """
    trained = [arm for arm in analysis.arms if arm.trained]
    if len(trained) < 2 or (any(len(arm.trained) > 1 for arm in trained) and len(analysis.seeds) < 2):
        return None
    sign, tables = analysis.sign, [seed_values(arm.trained, analysis.seeds) for arm in trained]
    best = choose_best_cells([sign * table for table in tables], analysis.resolution)
    labels = tuple(_name(analysis, arm) for arm in trained)
    table = SeedTable(labels, analysis.seeds, sign * best.values, resolution=analysis.resolution)
    lost = tuple(_name(analysis, arm) for arm in analysis.arms if not arm.trained)
    level = analysis.looks.level
    matters = judge_sensitivity(
        table, analysis.margin, alpha=level, diverged=lost, tuned=best.tuned, sign=sign, listed=len(labels)
    )
    bars = dict.fromkeys(table.labels, math.nan)
    if matters.bounds is not None:
        means = np.nanmean(table.values[[table.labels.index(label) for label in matters.labels]], axis=1)
        bars |= dict(zip(matters.labels, comparison_bars(matters.bounds, means).tolist(), strict=True))
    baseline = next((label for label, arm in zip(table.labels, trained, strict=True) if arm.baseline), None)
    budget = _budget(trained)
    rows = []
    for row, (label, arm, chosen) in enumerate(zip(table.labels, trained, best.chosen, strict=True)):
        score = _score(analysis, cell_interval(table, row), tables[row])
        pairs = (_oriented(label, d) for d in matters.differences if {label, baseline} == {d.first, d.second})
        equal = [sign * value for value in _at_equal_budgets(sign * tables[row], arm.hours, budget)]
        names = (label, arm.trained[chosen].label)
        rows.append(ArmAtBest(*names, score, bars[label], next(pairs, None), len(arm.trained), *equal))
    beaten = {(d.second if sign * d.low > 0 else d.first) for d in matters.differences if d.at_least > 0}
    rows.sort(key=lambda arm: -sign * np.nan_to_num(arm.score.mean, nan=-sign * np.inf))
    rows.sort(key=lambda arm: arm.arm in beaten)  # lost seeds may raise the mean of a significantly worse method
    return _ArmComparison(tuple(rows), lost, matters, best.tuned, table, budget)


def _score(analysis: Analysis, own: Interval, table: np.ndarray) -> Interval:
    """Return the chosen cell's mean, with an interval that allows for the selection."""
    if len(table) == 1:
        return own
    selected = score_of_best(analysis.sign * table, resolution=analysis.resolution)
    low, high = sorted((analysis.sign * float(selected.low), analysis.sign * float(selected.high)))
    return replace(own, low=low, high=high)


def _budget(arms: Sequence[ArmAnalysis]) -> _Budget | None:
    tuned = [arm for arm in arms if len(arm.trained) > 1]
    if len(tuned) < 2:
        return None
    return _Budget(min(len(arm.trained) for arm in tuned), min(arm.hours for arm in tuned))


def _at_equal_budgets(table: np.ndarray, hours: float, budget: _Budget | None) -> tuple[float, float]:
    """Return the expected best of equally many configurations, and of equal hours; larger is better."""
    if budget is None:
        return math.nan, math.nan
    cells = len(table)
    of_equal_cells = expected_best(table, min(cells, budget.cells))
    if not budget.hours:
        return of_equal_cells, math.nan
    affordable = int(cells * budget.hours / hours + 1e-9) if hours else cells
    return of_equal_cells, expected_best(table, max(1, min(cells, affordable)))


def _name(analysis: Analysis, arm: ArmAnalysis) -> str:
    return arm.name or analysis.results.plan.space.name


def _oriented(first: str, d: Difference) -> Difference:
    """Return the difference with the arm `first` as its first arm."""
    return d if d.first == first else Difference(first, d.first, -d.estimate, -d.high, -d.low, d.at_most)


def _verdict(analysis: Analysis, difference: Difference) -> str:
    if max(abs(difference.low), abs(difference.high)) < analysis.margin:
        return "equivalent"
    return better_or_worse(difference.low, difference.high, analysis.sign)


def _verdict_badge(analysis: Analysis, compared: _ArmComparison) -> str:
    best = compared.arms[0].arm
    verdicts = {_verdict(analysis, d) for d in compared.differences(best)}
    if verdicts == {"better"}:
        return best
    # a noisy method and a quiet one may both be close to the best mean, but far from each other
    return "no difference" if verdicts == {"equivalent"} and compared.matters.flat else "undecided"


def _sentences(analysis: Analysis, compared: _ArmComparison) -> list[str]:
    """Return sentences: the best arm against every other arm, how arms were tuned, and which arms were lost."""
    metric, best = analysis.metric, compared.arms[0]
    by_verdict = grouped(compared.differences(best.arm), lambda difference: _verdict(analysis, difference))
    wordings = {
        "better": "significantly better than {}",
        "equivalent": f"equivalent to {{}} (less than {metric.rough(analysis.margin)} apart)",
        "undecided": "not yet told apart from {}",
        "worse": "significantly worse than {}",
    }
    parts = [wordings[word].format(_named(metric, by_verdict[word])) for word in wordings if word in by_verdict]
    level = f"{confidence(compared.matters.alpha)} simultaneous intervals over all pairs"
    leaders = (best.arm,) if parts else compared.leaders
    subject = f"{joined(leaders)} {'has' if len(leaders) == 1 else 'have'} the best"
    text = f"Of {len(compared.arms)} methods {subject} {metric.label}, {metric.number(best.score.mean)}"
    sentences = [f"{text}: {'; '.join(parts)} ({level})." if parts else f"{text}; {compared.matters.reason}."]
    if compared.tuned is not None:
        choice = "The same seeds select and judge it: means are optimistic, intervals allow for the selection."
        sentences.append(f"Each method is at its best configuration{_that_finished(analysis)}. {choice}")
    if compared.budget is not None and len({arm.tried for arm in compared.arms if arm.tried > 1}) > 1:
        ranked = sorted(compared.arms, key=lambda arm: -analysis.sign * arm.of_equal_cells)
        scores = ", ".join(f"{arm.arm} {metric.number(arm.of_equal_cells)}" for arm in ranked)
        expected = f"Expected best of {compared.budget.cells} each: {scores}."
        sentences.append(f"They tried unequal numbers of configurations. {expected}")
    if compared.lost:
        sentences.append(f"Every configuration of {joined(compared.lost)} diverged or failed.")
    return sentences


def _named(metric: MetricName, rivals: Sequence[Difference]) -> str:
    sizes = [rival.estimate for rival in rivals]
    if len(rivals) <= _MAX_NAMED:
        return ", ".join(f"{rival.second} ({metric.signed(rival.estimate)})" for rival in rivals)
    return f"{len(rivals)} others ({metric.signed(min(sizes))} to {metric.signed(max(sizes))})"


def _that_finished(analysis: Analysis) -> str:
    return " that finished training" if analysis.stopped else ""


def _headline(analysis: Analysis, compared: _ArmComparison) -> str:
    word, best = _verdict_badge(analysis, compared), compared.arms[0]
    dataset, margin = analysis.results.plan.dataset, analysis.metric.rough(analysis.margin)
    each = f"each at its best configuration{_that_finished(analysis)}"
    if word == best.arm:
        return f"{best.arm} is the best of {len(compared.arms)} methods on {dataset}, {each}."
    if word == "no difference":
        return f"No two of {len(compared.arms)} methods differ by {margin} or more on {dataset}, {each}."
    leaders = compared.leaders
    lead = f"{joined(leaders)} {'leads' if len(leaders) == 1 else 'lead'} on {dataset}"
    if not compared.matters.differences:
        return f"{lead}; {compared.matters.reason}."
    rivals = [d for d in compared.differences(best.arm) if d.second not in leaders]
    by_verdict = grouped(rivals, lambda difference: _verdict(analysis, difference))
    close = by_verdict.get("equivalent", [])
    open_rivals = [*by_verdict.get("undecided", []), *by_verdict.get("worse", [])]
    clauses = [lead, *([f"less than {margin} ahead of {_counted_or_named(close)}"] if close else [])]
    if open_rivals or not close or len(leaders) > 1:
        apart = "but cannot yet be told apart"
        clauses.append(f"{apart} from {_counted_or_named(open_rivals)}" if open_rivals else apart)
    return f"{', '.join(clauses)}."


def _counted_or_named(rivals: Sequence[Difference]) -> str:
    return joined([rival.second for rival in rivals]) if len(rivals) < 4 else f"{len(rivals)} others"


def _is_open(analysis: Analysis, compared: _ArmComparison) -> bool:
    verdicts = {_verdict(analysis, difference) for difference in compared.differences(compared.arms[0].arm)}
    return not verdicts or "undecided" in verdicts


def _ahead(analysis: Analysis, compared: _ArmComparison) -> Forecast | None:
    """Forecast whether further seeds would decide how the leading arm compares with the others."""
    if not _is_open(analysis, compared) or compared.matters.noise is None:
        return None
    table, tuned = compared.table.with_numbers(), compared.tuned
    values, rows = (table.values, None) if tuned is None else (tuned.values, tuned.rows)
    seeds, level, step = len(analysis.seeds), analysis.looks.level_at, table.resolution
    decided = pairs_are_decided(table.labels.index(compared.arms[0].arm), analysis.margin, step, tuned=rows)
    return forecast_seeds(values, seeds, level, decided, scale=analysis.margin, resolution=step)


def _table(analysis: Analysis, compared: _ArmComparison) -> Table:
    metric, budget = analysis.metric, compared.budget
    baselines = {arm.name for arm in analysis.arms if arm.baseline}
    baseline = next((arm.arm for arm in compared.arms if arm.arm in baselines), "")
    rows = []
    for arm in compared.arms:
        against, ends = arm.against_baseline, metric.level_ends(arm.score.mean - arm.bar, arm.score.mean + arm.bar)
        numbers, verdict = (math.nan, math.nan, math.nan), "baseline" if arm.arm == baseline else "-"
        if against:
            numbers = (against.estimate, *metric.change_ends(against.low, against.high))
            verdict = _verdict(analysis, against)
        rows.append(
            (arm.arm, arm.configuration, arm.score.n, *metric_cells(metric, arm.score.mean, *ends),
             arm.tried, *metric_cells(metric, arm.of_equal_cells, arm.of_equal_hours),
             *delta_cells(metric, *numbers), text_cell(verdict, mark=verdict))
        )  # fmt: skip
    equal = (f"best of {budget.cells}", f"best in {budget.hours:.2g} h") if budget else ("best of", "best in")
    against_baseline = ("difference", "diff. low", "diff. high", "against baseline")
    columns = ("method", "configuration", "seeds", "mean", "low", "high", "tried", *equal, *against_baseline)
    empty = [] if any(arm.arm != arm.configuration for arm in compared.arms) else ["configuration"]
    empty += [] if baseline else against_baseline
    empty += ["tried", *equal] if budget is None else [] if budget.hours else equal[1:]
    caption = f"{metric.axis} of each method at its best configuration, with the ends of its comparison bar"
    if compared.tuned is not None:
        caption += ", which allows for the choice of the configuration by the same seeds"
    if budget is not None:
        caption += "; the expected best of equal numbers of configurations, and of equal hours of trials"
    if baseline:
        caption += f"; beside it the paired difference to {baseline}, simultaneous over all pairs"
    return Table("arms", f"{caption}.", columns, rows).without(empty)


def _pairs(analysis: Analysis, compared: _ArmComparison) -> Table:
    metric = analysis.metric
    matters = compared.matters
    rows = [
        (d.first, d.second, *interval_cells(metric, d.estimate, d.low, d.high), _verdict(analysis, d))
        for d in matters.differences
    ]
    level = f"with simultaneous {confidence(matters.alpha)} intervals"
    caption = f"Every pair of methods, first minus second, {level}: {matters.algorithm}."
    columns = ("first", "second", "difference", "low", "high", "the first is")
    return Table("arm-pairs", caption, columns, rows, folded="Every pair of methods")


def _figure(analysis: Analysis, compared: _ArmComparison) -> Figure:
    """Draw the methods by rank; in a second view, bars join the methods that do not differ significantly."""
    metric = analysis.metric
    means = "; ".join(f"{arm.arm}: {metric.number(arm.score.mean)}" for arm in compared.arms)
    names = [_name(analysis, arm) for arm in analysis.arms]
    items = []
    for arm in compared.arms:
        index, mean = names.index(arm.arm), arm.score.mean
        low, high = metric.level_ends(mean - arm.bar, mean + arm.bar)
        tip = f"{arm.arm} at {arm.configuration}: {metric.number(mean)}"
        items.append(Whisker(arm.arm, mean, low, high, arm_colour(index), SHAPES[index % len(SHAPES)], tip))
    groups = _indistinguishable_groups(compared)
    listed = "; ".join(joined([compared.arms[i].arm for i in group]) for group in groups) or "none"
    group_view = FigureView(
        "groups", lambda narrow: draw_critical_differences(items, groups, metric.axis, narrow=narrow),
        f"{_headline(analysis, compared)} Methods that cannot be told apart: {listed}.",
        f"Each bar joins methods of which no two differ significantly: {listed}.",
    )  # fmt: skip
    return Figure(
        "arms",
        lambda narrow: draw_whiskers(items, metric.axis, narrow=narrow, zero=False),
        f"{_headline(analysis, compared)} {metric.label} of each method. Means: {means}.",
        "Each method at its best configuration. Methods whose comparison bars do not overlap differ.",
        "ranking",
        (group_view,),
    )


def _indistinguishable_groups(compared: _ArmComparison) -> list[list[int]]:
    """Return the longest runs of ranks in which no two methods differ significantly."""
    names = [arm.arm for arm in compared.arms]
    differ = {
        frozenset((names.index(d.first), names.index(d.second)))
        for d in compared.matters.differences
        if d.low > 0 or d.high < 0
    }
    runs: list[list[int]] = []
    for first in range(len(names)):
        last = first
        while last + 1 < len(names) and all(frozenset((i, last + 1)) not in differ for i in range(first, last + 1)):
            last += 1
        if last > first and not (runs and runs[-1][-1] >= last):
            runs.append(list(range(first, last + 1)))
    return runs
