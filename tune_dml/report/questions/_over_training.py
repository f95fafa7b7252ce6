"""Logged figures over training as one drawing, of which the reader chooses the figure: what several questions show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.analysis.traces import Panel
from tune_dml.report.drawing.canvas import Canvas
from tune_dml.report.drawing.charts import Series, lines
from tune_dml.report.drawing.colours import series_colours
from tune_dml.report.section import Figure, FigureView

_WIDE = 20.0
"""A figure whose means are further apart than this ratio has a logarithmic axis."""


def figure_of(
    knob: KnobAnalysis, name: str, panels: Sequence[Panel], sentences: Mapping[str, str], *,
    omitted: Sequence[str], caption: str,
) -> Figure:  # fmt: skip
    """A view for each panel; `sentences` says by the figure's key what is seen."""
    if omitted:
        caption += f" For clarity, {len(omitted)} more values are left out."
    views = [_view(knob, panel, sentences.get(panel.metric.key, "")) for panel in panels]
    first, *others = views
    return Figure(name, first.draw, first.description, caption, first.title, tuple(others), sentence=first.sentence)


def _view(knob: KnobAnalysis, panel: Panel, sentence: str) -> FigureView:
    labels = [line.label for line in panel.lines]
    valued = [label for label in labels if label in knob.labels]
    colours = dict(zip(valued, series_colours(len(valued), knob.numeric), strict=True))
    series = [
        Series(line.label, colours.get(line.label, "base"), line.steps, line.mean, line.low, line.high)
        for line in panel.lines
    ]
    means = [mean for line in panel.lines for mean in line.mean]
    log = min(means) > 0 and max(means) > _WIDE * min(means)

    def draw(narrow: bool) -> Canvas:
        return lines(series, panel.metric.axis + (", log" if log else ""), "training step", narrow=narrow, log=log)

    description = f"{sentence} {panel.metric.label} over training, for each value: {', '.join(labels)}.".strip()
    return FigureView(panel.metric.name, draw, description, sentence)
