"""A figure of logged metrics over training, with one view for each metric."""

from collections.abc import Mapping, Sequence

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.analysis.traces import Histories, Panel
from tune_dml.report.drawing.canvas import Canvas
from tune_dml.report.drawing.charts import Series, draw_lines
from tune_dml.report.drawing.colours import series_colours
from tune_dml.report.section import Figure, FigureView

_WIDE = 20.0
"""Ratio of the largest to the smallest mean above which the axis is logarithmic; never for percentages."""


def means_and_ranges(analysis: Analysis, knob: KnobAnalysis) -> str:
    """Return the first words of the caption, which say whether trials of one value differ in other knobs as well."""
    has_other_knobs = any(len(point.trials) > len(analysis.seeds) for point in knob.points)
    over = "seeds and the other knobs" if has_other_knobs else "seeds"
    return f"Mean (lines) and range (bands) over {over}"


def figure_of(
    name: str, histories: Histories, sentences: Mapping[str, str], caption: str, *, labels: Sequence[str], ordered: bool
) -> Figure | None:
    """Return a figure with a view for each metric of `sentences`; None if none was logged at two steps.

    Each line of `labels` has its own colour, from an ordered palette if `ordered`. Other lines have the baseline's
    colour.
    """
    if histories.omitted:
        caption += f" {len(histories.omitted)} more values are omitted."
    panels = histories.panels(list(sentences))
    views = [_view(labels, ordered, panel, sentences[panel.metric.key]) for panel in panels]
    return Figure.of(name, views, caption) if views else None


def _view(coloured: Sequence[str], numeric: bool, panel: Panel, sentence: str) -> FigureView:
    labels = [line.label for line in panel.lines]
    valued = [label for label in labels if label in coloured]
    colours = dict(zip(valued, series_colours(len(valued), numeric), strict=True))
    series = [
        Series(line.label, colours.get(line.label, "base"), line.steps, line.mean, line.low, line.high)
        for line in panel.lines
    ]
    means = [mean for line in panel.lines for mean in line.mean]
    log = not panel.metric.percent and min(means) > 0 and max(means) > _WIDE * min(means)

    def draw(narrow: bool) -> Canvas:
        return draw_lines(series, panel.metric.axis + (", log" if log else ""), "training step", narrow=narrow, log=log)

    description = f"{sentence} {panel.metric.label} over training, for each value: {', '.join(labels)}.".strip()
    return FigureView(panel.metric.name, draw, description, sentence)
