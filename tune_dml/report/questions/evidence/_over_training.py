"""A figure of logged metrics over training, with one view for each metric."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.analysis.traces import Histories, Line
from tune_dml.report.drawing.canvas import Canvas
from tune_dml.report.drawing.charts import draw_lines
from tune_dml.report.drawing.colours import series_colours
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.section import Figure, FigureView

_WIDE = 20.0  # ratio of the largest to the smallest mean above which the axis is logarithmic; never for percentages


def means_and_ranges(analysis: Analysis, knob: KnobAnalysis) -> str:
    """Return the first words of the caption, which say whether trials of one value differ in other knobs as well."""
    has_other_knobs = any(len(point.trials) > len(analysis.seeds) for point in knob.points)
    over = "seeds and the other knobs" if has_other_knobs else "seeds"
    return f"Mean (lines) and range (bands) over {over}"


def last_values_sentence(histories: Histories, key: str) -> str:
    """Return a sentence on the values whose last mean of a metric is lowest and highest; empty without any."""
    last, name = {label: line.mean[-1] for label, line in histories.lines(key).items()}, metric_name(key).label
    if not last:
        return ""
    low, high = min(last, key=lambda label: last[label]), max(last, key=lambda label: last[label])
    if low == high:
        where = f"for {low}" if len(last) == 1 else "at every value"
        return f"At the end, {name} is {last[low]:.3g} {where}."
    return f"At the end, {name} is lowest for {low} ({last[low]:.3g}) and highest for {high} ({last[high]:.3g})."


def figure_of(
    name: str, histories: Histories, sentences: Mapping[str, str], caption: str, *,
    labels: Sequence[str], ordered: bool, metric: MetricName,
) -> Figure | None:  # fmt: skip
    """Return a figure with a view for each metric of `sentences`; None if none was logged at two steps.

    Each line of `labels` has its own colour, from an ordered palette if `ordered`. Other lines have the baseline's
    colour. `metric` is that of the sweep.
    """
    if histories.omitted:
        caption += f" {len(histories.omitted)} more values are omitted."
    views = []
    for key, lines in histories.shown_lines(sentences).items():
        valued = [line.label for line in lines if line.label in labels]
        colours = dict(zip(valued, series_colours(len(valued), ordered), strict=True))
        coloured = [replace(line, colour=colours.get(line.label, line.colour)) for line in lines]
        views.append(_view(metric if key == metric.key else metric_name(key), coloured, sentences[key]))
    return Figure.of(name, views, caption) if views else None


def _view(metric: MetricName, lines: Sequence[Line], sentence: str) -> FigureView:
    means = [mean for line in lines for mean in line.mean]
    log = not metric.percent and min(means) > 0 and max(means) > _WIDE * min(means)

    def draw(narrow: bool) -> Canvas:
        return draw_lines(lines, metric.axis + (", log" if log else ""), "training step", narrow=narrow, log=log)

    labels = ", ".join(line.label for line in lines)
    description = f"{sentence} {metric.label} over training, for each value: {labels}.".strip()
    return FigureView(metric.name, draw, description, sentence)
