"""How long are the embeddings? The norms of two cells' embeddings: what a regularizer of norms acts on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tune_dml.report import figure as drawing
from tune_dml.report.questions.compared import Pair, Side


@dataclass(frozen=True)
class Norms:
    """Histograms to draw above one another, and what they say."""

    sides: tuple[Side, ...]
    sentence: str
    missing: tuple[str, ...]
    """What cannot be shown, and why."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is to be said."""
        return tuple(text for text in (self.sentence, *self.missing) if text)


def extract(pair: Pair) -> Norms:
    """The histograms of both cells."""
    parts = []
    for side in pair.sides:
        norms = side.evidence.norms
        spread = math.sqrt(norms.variance) / norms.mean if norms.mean else math.nan
        parts.append(
            f"{side.title} has mean {norms.mean:.3g}, variance {norms.variance:.3g}, "
            f"standard deviation {100 * spread:.2g}% of the mean"
        )
    if not parts:
        return Norms((), "", pair.missing)
    shown = f"Norms of the raw embeddings of {pair.sides[0].evidence.part}, seed {pair.seed}"
    return Norms(pair.sides, f"{shown}: {'; '.join(parts)}.", pair.missing)


def draw(found: Norms, *, narrow: bool, name: str) -> str:
    """One histogram above the other on one axis of norms."""
    count = len(found.sides)
    with drawing.figure(narrow=narrow, height=1.35 * count + 0.7) as made:
        axes = made.subplots(count, 1, squeeze=False, sharex=True).ravel().tolist()
        for index, (ax, side) in enumerate(zip(axes, found.sides, strict=True)):
            norms = side.evidence.norms
            edges = np.linspace(norms.low, norms.high, len(norms.counts) + 1)
            share = 100 * np.array(norms.counts) / sum(norms.counts) / np.diff(edges)
            colour = drawing.CYCLE[index][0]
            ax.stairs(share, edges, fill=True, color=colour, alpha=0.35, lw=0)
            ax.stairs(share, edges, color=colour, lw=1)
            ax.axvline(norms.mean, color=drawing.BLACK, lw=1, ls="--")
            ax.set_title(side.title)
            ax.set_ylabel("% per unit")
            ax.margins(y=0.08)
            ax.set_ylim(bottom=0)
        low = min(side.evidence.norms.low for side in found.sides)
        high = max(side.evidence.norms.high for side in found.sides)
        pad = 0.03 * (high - low)
        axes[-1].set_xlim(low - pad, high + pad)
        axes[-1].set_xlabel("norm of the raw embedding (dashed: mean)")
        return drawing.svg(made, name)
