"""How long are the embeddings? The norms of two cells' embeddings: what a regularizer of norms acts on."""

from __future__ import annotations

import math

import numpy as np

from tune_dml.report import figure as drawing
from tune_dml.report.measured import Measured
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Figure, Section, Text
from tune_dml.report.traces import Pair, Side


@question(order=310, reads_traces=True)
def norms(measured: Measured) -> Section:
    """The histograms of both cells above one another, and what cannot be shown."""
    pair = measured.pair
    body: list[Block] = [Text(text) for text in pair.missing]
    if pair.sides:
        sentence = _sentence(pair)
        figure = Figure(
            "norms",
            lambda narrow, name: _draw(pair, narrow=narrow, name=name),
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


def _draw(pair: Pair, *, narrow: bool, name: str) -> str:
    """One histogram above the other on one axis of norms."""
    histograms = [side.evidence.norms for side in pair.sides]
    with drawing.canvas(narrow=narrow, height=1.35 * len(histograms) + 0.7) as figure:
        axes = figure.subplots(len(histograms), 1, squeeze=False, sharex=True).ravel().tolist()
        for ax, side, (colour, _, _) in zip(axes, pair.sides, drawing.CYCLE, strict=False):
            norms = side.evidence.norms
            edges = np.linspace(norms.low, norms.high, len(norms.counts) + 1)
            share = 100 * np.array(norms.counts) / sum(norms.counts) / np.diff(edges)
            ax.stairs(share, edges, fill=True, color=colour, alpha=0.35, lw=0)
            ax.stairs(share, edges, color=colour, lw=1)
            ax.axvline(norms.mean, color=drawing.BLACK, lw=1, ls="--")
            ax.set_title(side.title)
            ax.set_ylabel("% per unit")
            ax.margins(y=0.08)
            ax.set_ylim(bottom=0)
        low, high = min(norms.low for norms in histograms), max(norms.high for norms in histograms)
        pad = 0.03 * (high - low)
        axes[-1].set_xlim(low - pad, high + pad)
        axes[-1].set_xlabel("norm of the raw embedding (dashed: mean)")
        return drawing.svg(figure, name)
