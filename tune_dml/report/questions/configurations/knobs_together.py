"""Several knobs, or a search: all configurations at once, and the effect of each knob."""

import math
from collections.abc import Sequence

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis, level_key
from tune_dml.report.drawing.charts import HeatCell, Whisker, draw_heat_map
from tune_dml.report.drawing.configurations import (
    SearchedKnob,
    TriedConfiguration,
    draw_best_so_far,
    draw_each_knob,
    draw_parallel_coordinates,
    draw_plane,
)
from tune_dml.report.naming import symbol_of
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Figure, FigureView, Section, whisker_figure
from tune_dml.text import value_text

_MAX_LINES = 300  # maximum number of configurations in one figure; the best are shown


@question(order=302)
def knobs_together(analysis: Analysis) -> Section | None:
    """Show all configurations; None for a single listed knob, fewer than two results, or several methods."""
    plan = analysis.results.plan
    if sum(not arm.baseline for arm in analysis.arms) > 1:  # methods have different knobs, so no axis is common
        return None
    cells = _configurations(analysis)
    if (len(plan.knobs) < 2 and not plan.search.num_samples) or len(cells) < 2:
        return None
    best = f" The best {_MAX_LINES} of {len(cells)}." if len(cells) > _MAX_LINES else ""
    body: list[Block] = [Figure.of("together", _views(analysis, cells), f"Means over seeds.{best}")]
    judged = [knob for knob in analysis.knobs if knob.sensitivity.largest is not None]
    if len(judged) > 1:
        body.append(_importance(analysis, judged))
    return Section("together", "How do the knobs work together?", "All configurations", body)


def _configurations(analysis: Analysis) -> list[TriedConfiguration]:
    paths = [knob.path for knob in analysis.results.plan.knobs]
    return [
        TriedConfiguration(
            cell.label, tuple(cell.cell.knobs[path] for path in paths), cell.mean,
            f"{cell.label}: {analysis.metric.number(cell.mean)}",
        )
        for cell in analysis.cells
        if cell.values and not cell.cell.baseline
    ]  # fmt: skip


def _searched_knobs(analysis: Analysis, cells: Sequence[TriedConfiguration]) -> list[SearchedKnob]:
    """Return every knob of the space, including nuisance knobs, with its tried values."""
    analyses = {knob.path: knob for knob in analysis.knobs}
    axes = []
    for index, knob in enumerate(analysis.results.plan.knobs):
        tried = {level_key(cell.values[index]): cell.values[index] for cell in cells}
        if analysed := analyses.get(knob.path):
            axes.append(SearchedKnob(analysed.symbol, analysed.axis, analysed.levels))
        else:
            axes.append(SearchedKnob(symbol_of(knob), "ordered", tuple(sorted(tried.values(), key=str))))
    return axes


def _views(analysis: Analysis, cells: list[TriedConfiguration]) -> list[FigureView]:
    knobs, sign, score = _searched_knobs(analysis, cells), analysis.sign, analysis.metric.axis
    kept = sorted(cells, key=lambda cell: -sign * cell.score)[:_MAX_LINES]
    best = kept[0]
    finding = f"The best mean is at {best.label} ({analysis.metric.number(best.score)})."
    views = [
        FigureView(
            "parallel coordinates", lambda narrow: draw_parallel_coordinates(knobs, kept, score, narrow=narrow),
            f"{finding} A line for each configuration across {', '.join(knob.name for knob in knobs)}.", finding,
        ),
        FigureView(
            "each knob alone", lambda narrow: draw_each_knob(knobs, kept, sign, score, narrow=narrow),
            f"{finding} Every configuration at its value of each knob, and the best of each value.",
            "Every configuration at its value of each knob; the line joins the best of each value.",
        ),
    ]  # fmt: skip
    if len(analysis.knobs) == len(knobs) == 2 and len(cells) > max(len(knob.levels) for knob in knobs):
        views.insert(0, _map(analysis, cells, analysis.knobs[0], analysis.knobs[1], finding))
    elif len(knobs) == 2:
        described = f"{finding} Every configuration by {knobs[0].name} and {knobs[1].name}."
        colours = f"{finding} Colours run from the lowest mean (blue) to the highest (red)."
        plane = FigureView("map", lambda narrow: draw_plane(knobs, kept, score, narrow=narrow), described, colours)
        views.insert(0, plane)
    if analysis.results.plan.search.num_samples:
        number = next(index for index, cell in enumerate(cells, 1) if cell is best)
        when = f"The best of {len(cells)} configurations was number {number}."
        views.append(
            FigureView("best so far", lambda narrow: draw_best_so_far(cells, sign, score, narrow=narrow), when, when)
        )
    return views


def _map(
    analysis: Analysis, cells: list[TriedConfiguration], down: KnobAnalysis, across: KnobAnalysis, finding: str
) -> FigureView:
    by_values = {(level_key(cell.values[0]), level_key(cell.values[1])): cell for cell in cells}

    def field(row: object, column: object) -> HeatCell:
        cell = by_values.get((level_key(row), level_key(column)))  # type: ignore[arg-type]
        if cell is None:
            return HeatCell(math.nan, "\N{EN DASH}")
        return HeatCell(cell.score, analysis.metric.number(cell.score), cell.tip)

    fields = [[field(row, column) for column in across.levels] for row in down.levels]
    rows, columns = [value_text(level) for level in down.levels], [value_text(level) for level in across.levels]
    return FigureView(
        "map", lambda narrow: draw_heat_map(rows, columns, fields, (down.symbol, across.symbol), narrow=narrow),
        f"{finding} Means of {analysis.metric.label} by {down.symbol} and {across.symbol}.", finding,
    )  # fmt: skip


def _importance(analysis: Analysis, knobs: Sequence[KnobAnalysis]) -> Figure:
    metric = analysis.metric
    items = []
    for knob in knobs:
        if largest := knob.sensitivity.largest:
            size = abs(largest.estimate)
            tip = f"{knob.symbol}: {metric.amount(size)} between {largest.first} and {largest.second}"
            items.append(Whisker(knob.symbol, size, largest.at_least, largest.reach, tip=tip))
    items.sort(key=lambda item: -item.middle)
    finding = f"{items[0].label} moves {metric.label} most: {'; '.join(item.tip for item in items)}."
    caption = "The largest effect of each knob, averaged over the others, with simultaneous intervals."
    title = f"largest difference between two values{metric.unit_after}"
    return whisker_figure("importance", items, title, finding, caption)
