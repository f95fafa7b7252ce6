"""Is the method better than its baseline, at each value of the knob?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tune_dml.report import figure as drawing
from tune_dml.report.measured import Measured
from tune_dml.report.naming import MetricName
from tune_dml.stats import BaselineComparison, compare_with_baseline

_WORDS: tuple[Literal["better", "worse", "undecided"], ...] = ("better", "worse", "undecided")


@dataclass(frozen=True)
class AgainstBaselineView:
    """All cells against the baseline."""

    comparison: BaselineComparison
    metric: MetricName
    margin: float
    sentence: str

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        verdicts = [row.verdict for row in self.comparison.rows]
        unanimous = next((word for word in _WORDS if verdicts.count(word) == len(verdicts)), "")
        better = verdicts.count("better")
        return unanimous or (f"better at {better} of {len(verdicts)}" if better else "mixed")


def extract(measured: Measured) -> AgainstBaselineView | None:
    """Compare every cell with the baseline; None without one, or when it has no numbers."""
    if measured.baseline is None:
        return None
    found = compare_with_baseline(measured.table(), measured.baseline.label, goal=measured.goal)
    if found is None:
        return None
    return AgainstBaselineView(found, measured.metric, measured.margin, _sentence(found))


def _sentence(found: BaselineComparison) -> str:
    if found.df < 1:
        return f"Undecided against {found.baseline}: one seed gives no noise estimate."
    words = {word: [row.label for row in found.rows if row.verdict == word] for word in _WORDS}
    parts = [f"{word} {_listed(labels, len(found.rows))}" for word, labels in words.items() if labels]
    level = f"{100 * found.confidence:.3g}%"
    return f"Against {found.baseline} ({level} simultaneous intervals, Dunnett): {'; '.join(parts)}."


def _listed(labels: list[str], every: int) -> str:
    if len(labels) == every:
        return "at every value" if every < 3 else f"at all {every} values"
    return f"at {' and '.join(labels)}" if len(labels) < 5 else f"at {len(labels)} of {every} values"


def draw(view: AgainstBaselineView, *, narrow: bool, name: str) -> str:
    """A whisker for each cell around the line of no difference, the margin shaded."""
    rows = view.comparison.rows[::-1]
    with drawing.figure(narrow=narrow, height=1.1 + 0.28 * len(rows)) as made:
        (ax,) = drawing.panels(made, 1, narrow=narrow)
        ax.axvspan(-view.margin, view.margin, color=drawing.GREY, alpha=0.14, lw=0)
        ax.axvline(0, color=drawing.GREY, lw=1, ls="--")
        marks = {
            "better": ("o", drawing.BLUE),
            "worse": ("X", drawing.VERMILLION),
            "undecided": ("D", drawing.GREY),
        }
        for height, row in enumerate(rows):
            marker, colour = marks[row.verdict]
            if math.isfinite(row.low):
                ax.plot([row.low, row.high], [height, height], color=colour, lw=1.6, solid_capstyle="butt")
            ax.plot(row.difference, height, marker, color=colour, ms=6.5, mec="white", mew=0.6)
        ax.set_yticks(range(len(rows)), [row.label for row in rows])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.grid(visible=False, axis="y")
        unit = f" [{view.metric.unit}]" if view.metric.unit else ""
        ax.set_xlabel(f"{view.metric.label} minus {view.comparison.baseline}{unit}")
        return drawing.svg(made, name)
