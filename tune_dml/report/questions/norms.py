"""How long are the embeddings? The norms of two cells' embeddings: what a regularizer of norms acts on."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from tune_dml.report.drawing.canvas import Canvas, Pen
from tune_dml.report.drawing.charts import width_of
from tune_dml.report.drawing.colours import arm_colour
from tune_dml.report.drawing.frame import Frame, Range, number_text
from tune_dml.report.measured import Measured
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Figure, Section, Text
from tune_dml.report.traces import Pair, Side


@question(order=430, reads_traces=True)
def norms(measured: Measured) -> Section | None:
    """The histograms of both cells above one another, and what cannot be shown."""
    if measured.results.imported is not None:
        return None
    pair = measured.pair
    body: list[Block] = [Text(text) for text in pair.missing]
    if pair.sides:
        sentence = _sentence(pair)
        figure = Figure(
            "norms",
            lambda narrow: _draw(pair, narrow),
            sentence,
            "Share of the pictures per unit of norm; each histogram has a vertical axis of its own.",
        )
        body = [Text(sentence), *body, figure]
    return Section("norms", "How long are the embeddings?", "Norms", tuple(body))


def _sentence(pair: Pair) -> str:
    shown = f"Norms of the raw embeddings of {pair.sides[0].evidence.part}, seed {pair.seed}"
    return f"{shown}: {'; '.join(map(_in_words, pair.sides))}."


def _in_words(side: Side) -> str:
    norms = side.evidence.norms
    spread = math.sqrt(norms.variance) / norms.mean if norms.mean else math.nan
    return (
        f"{side.title} has mean {norms.mean:.3g}, variance {norms.variance:.3g}, "
        f"standard deviation {100 * spread:.2g}% of the mean"
    )


def _draw(pair: Pair, narrow: bool) -> Canvas:
    """One histogram above the other on one axis of norms."""
    width, tall = width_of(narrow), 76.0
    histograms = [side.evidence.norms for side in pair.sides]
    canvas = Canvas(width, 10 + (tall + 38) * len(histograms) + 24)
    low, high = min(norms.low for norms in histograms), max(norms.high for norms in histograms)
    span = Range.of([low, high], pad=0.03)
    for index, side in enumerate(pair.sides):
        norms, top = side.evidence.norms, 34 + (tall + 38) * index
        edges = np.linspace(norms.low, norms.high, len(norms.counts) + 1)
        share = (100 * np.array(norms.counts) / max(sum(norms.counts), 1) / np.diff(edges)).tolist()
        frame = Frame(canvas, 56, top, width - 14, top + tall, Range(0.0, 1.08 * max(share) or 1.0))
        frame.draw_y(most=3)
        frame.name_y(f"{side.title}, % per unit")
        at = [frame.at(span.share(edge)) for edge in edges.tolist()]
        steps = [(at[0], frame.bottom)]
        for (left, right), height in zip(pairwise(at), share, strict=True):
            steps += [(left, frame.up(height)), (right, frame.up(height))]
        steps.append((at[-1], frame.bottom))
        canvas.area(steps, Pen(arm_colour(index), opacity=0.3))
        canvas.line(steps, Pen(arm_colour(index), 1.2))
        middle = frame.at(span.share(norms.mean))
        canvas.line([(middle, frame.top), (middle, frame.bottom)], Pen("ink", 1.2, "5 3"), f"mean {norms.mean:.3g}")
        last = index == len(histograms) - 1
        ticks = [(span.share(tick), number_text(tick)) for tick in span.ticks()]
        frame.draw_x(ticks if last else [], "norm of the raw embedding (dashed: mean)" if last else "")
    return canvas
