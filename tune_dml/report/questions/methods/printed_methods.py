"""Do the arms agree with the paper's methods of the same names? Compare their values and their order."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.papers.published import PublishedCurve, PublishedRow, published_curve
from tune_dml.planning.checks.conditions import conditions_of, equals_printed, our_name
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.cells import metric_cells
from tune_dml.report.naming import metric_name
from tune_dml.report.published.comparable import (
    condition_differences,
    data_difference,
    our_metric,
    selection_difference,
    summarize_reasons,
)
from tune_dml.report.published.order import PaperDeviation, compare_orders, order_sentence, paper_deviation
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Fold, Heading, Notes, Section, Table, Text
from tune_dml.space import METHOD
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.verdicts.equivalence import OrderAgreement


@dataclass(frozen=True)
class _PrintedArms:
    """Arms of the sweep whose methods are in a published table."""

    published: PublishedCurve
    cells: tuple[CellAnalysis, ...]
    printed: tuple[float, ...]
    reasons: tuple[str, ...]  # conditions that differ in any arm; empty if levels may be compared
    order: OrderAgreement | None  # None with fewer than three arms, or without a noise estimate
    deviation: PaperDeviation  # run-to-run deviation that is assumed for the published numbers


@question(order=330, unanswered={"printed_methods": ()})
def printed_methods(analysis: Analysis) -> Section | None:
    """Compare with each published table; tables on the same data set come first."""
    declared = [item for item in analysis.results.plan.space.published if item.hyperparameter == METHOD]
    dataset = our_name(analysis.results.plan.dataset)
    same_data_first = sorted(declared, key=lambda item: our_name(item.dataset) != dataset)
    tables = [arms for item in same_data_first if (arms := _arms(analysis, published_curve(item))).cells]
    if not tables:
        return None
    notes: list[Block] = []
    for arms in tables:
        notes += [Heading(arms.published.source), Notes((*arms.published.notes, *arms.reasons))]
    differs = [arms for arms in tables if arms.reasons]
    level = f"Levels: not comparable with {len(differs)} of {len(tables)} printed tables ({{}})." if differs else ""
    body: list[Block] = [_table(analysis, tables), _orders(tables)]
    body += [Text(level.format(summarize_reasons(differs[0].reasons)))] if differs else []
    body += [_other_metrics(tables), Fold("What differs, and notes on the printed numbers", notes)]
    return Section(
        "printed-methods",
        "Do the arms agree with the paper's methods?",
        "The paper's methods",
        body,
        data={"printed_methods": [_data(arms) for arms in tables]},
    )


def _arms(analysis: Analysis, published: PublishedCurve) -> _PrintedArms:
    """Return the arms with results whose methods are in the table, in the order of the table."""
    found = [(point, _cell_at(analysis, point.row)) for point in published.points]
    points = [point for point, cell in found if cell is not None]
    cells = tuple(cell for _, cell in found if cell is not None)
    reasons = data_difference(analysis.results.plan.dataset, published.published.dataset)
    for point, cell in zip(points, cells, strict=True):
        reasons += condition_differences(point.row, cell.cell.settings)
    if cells:
        split = str(cells[0].cell.settings.get("data.split", "class_disjoint"))
        reasons += selection_difference(split, published.published.selection)
    printed = tuple(point.y for point in points)
    deviation = paper_deviation(analysis, published)
    labels = [cell.label for cell in cells]
    order = _order(analysis, published, dict(zip(labels, printed, strict=True)), deviation)
    return _PrintedArms(published, cells, printed, tuple(dict.fromkeys(reasons)), order, deviation)


def _cell_at(analysis: Analysis, row: PublishedRow) -> CellAnalysis | None:
    """Return the best cell of a method's arm, among those at the printed values of its knobs if there are any."""
    conditions = conditions_of(row)
    printed = conditions.settings if conditions else {}
    cells = [cell for cell in analysis.ranked if cell.cell.arm == row.method]
    at_printed = [
        cell
        for cell in cells
        if all(equals_printed(value, printed[path]) for path, value in cell.cell.knobs.items() if path in printed)
    ]
    return next(iter(at_printed or cells), None)


def _order(
    analysis: Analysis, published: PublishedCurve, printed: Mapping[str, float], deviation: PaperDeviation
) -> OrderAgreement | None:
    if len(printed) < 3:
        return None
    labels, level = analysis.table.labels, analysis.looks.level
    rows = {labels.index(label): number for label, number in printed.items()}
    bounds = all_pairs(analysis.table.values, level, analysis.table.noise)
    if not np.isfinite(bounds.low[np.ix_(list(rows), list(rows))][np.triu_indices(len(rows), 1)]).any():
        return None
    return compare_orders(bounds, rows, published, deviation, level)


def _sentences(arms: _PrintedArms) -> list[str]:
    source, order = arms.published.source, arms.order
    if arms.reasons:
        level = f"Not comparable in level with {source}: {summarize_reasons(arms.reasons)}."
    else:
        level = f"All printed conditions of {source} are met, so levels can be compared."
    if order is None:
        why = "three arms with numbers are needed" if len(arms.cells) < 3 else "there is no noise estimate"
        return [level, f"The orders cannot be compared: {why}."]
    return [level, order_sentence(order, arms.deviation, "arms")]


def _orders(tables: Sequence[_PrintedArms]) -> Table:
    rows = []
    for arms in tables:
        numbers: tuple[float, ...] = (math.nan,) * 6
        if order := arms.order:
            counts = (order.pairs, order.paper_certain, order.same, order.opposite, order.open)
            numbers = (*counts, round(order.tau, 2))
        rows.append((arms.published.source, *numbers))
    deviations = ", ".join(dict.fromkeys(str(arms.deviation) for arms in tables))
    caption = (
        "Pairs of arms by their order. A pair counts as same or opposite only if both orders are significant, ours and the "
        f"printed one ({deviations}). Kendall's tau of the means is 1 if all pairs agree."
    )
    columns = ("printed", "pairs", "printed order certain", "same", "opposite", "open", "tau")
    return Table("printed-order", caption, columns, rows)


def _table(analysis: Analysis, tables: Sequence[_PrintedArms]) -> Table:
    metric = analysis.metric
    columns = [dict(zip((cell.label for cell in arms.cells), arms.printed, strict=True)) for arms in tables]
    means = {cell.label: cell.mean for arms in tables for cell in arms.cells}
    ranked = sorted(means, key=lambda label: -analysis.sign * means[label])
    rows = [
        (label, *metric_cells(metric, means[label], *(column.get(label, math.nan) for column in columns)))
        for label in ranked
    ]
    caption = f"The best cell of each arm by {metric.axis}, at the printed values if it tried them, beside the published numbers."
    titles = (f"{arms.published.published.dataset}, Table {arms.published.published.table}" for arms in tables)
    return Table("printed-methods", caption, ("arm", "ours", *titles), rows)


def _other_metrics(tables: Sequence[_PrintedArms]) -> Table:
    rows = []
    for arms in tables:
        for name, points in arms.published.others.items():
            key, printed = our_metric(name) or "", {str(point.x): point.y for point in points}
            for cell in arms.cells:
                ours = [t.metrics[key] for t in cell.trials if t.status == "finished" and key in t.metrics]
                if ours and cell.cell.arm in printed:
                    numbers = metric_cells(metric_name(key), float(np.mean(ours)), printed[cell.cell.arm])
                    rows.append((arms.published.source, name, cell.label, *numbers))
    folded = "The other metrics of the printed tables"
    caption = f"{folded}, beside ours at the best cell of each arm: the mean over seeds."
    columns = ("printed in", "metric", "arm", "ours", "printed")
    return Table("printed-metrics", caption, columns, rows, folded=folded, for_paper=False)


def _data(arms: _PrintedArms) -> dict[str, object]:
    order = arms.order
    return {
        "source": arms.published.source,
        "published": arms.published.published,
        "reasons": arms.reasons,
        "arms": [
            {"arm": cell.cell.arm, "cell": cell.label, "ours": cell.mean, "published": printed}
            for cell, printed in zip(arms.cells, arms.printed, strict=True)
        ],
        "order": {**vars(order), "low": order.low, "high": order.high} if order else None,
        "deviation": arms.deviation,
        "sentences": _sentences(arms),
    }
