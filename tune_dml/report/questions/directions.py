"""How evenly do the embeddings' directions turn? The spread of their updates between looks, over training.

Zhang et al., Deep Metric Learning with Spherical Embedding, supplement C.2 and Figure 2, where SEC makes the distribution of
direction variations more compact. `trainables.evidence.directions` has the definition.
"""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.report.questions import histories
from tune_dml.report.questions.curve import Curve
from tune_dml.report.questions.histories import Histories, Panel

KEYS = ("train/direction_variance", "train/direction_mean")
WIDE = 20
"""Means further apart than this ratio are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Directions:
    """Panels over training and what they say."""

    panels: tuple[Panel, ...]
    every: int
    """Steps between looks; 0 where there was none."""
    sentence: str


def extract(curve: Curve, logged: Histories) -> Directions:
    """Mean and variance of direction updates of each value of the knob and the baseline."""
    panels = tuple(panel for key in KEYS if (panel := logged.panel(key)) is not None)
    every = min((line.steps[0] for panel in panels for line in panel.lines), default=0)
    return Directions(panels, every, _sentence(curve, logged, every))


def _sentence(curve: Curve, logged: Histories, every: int) -> str:
    lines = {label: line for label in logged.by_label if (line := logged.line(label, KEYS[0])) is not None}
    if not lines:
        return (
            "No trial logged how its directions turned: each was shorter than 25 steps, or ran before this was "
            "measured."
        )
    last = {label: line.mean[-1] for label, line in lines.items()}
    least, most = min(last, key=lambda name: last[name]), max(last, key=lambda name: last[name])

    def of(label: str) -> str:
        mean = logged.line(label, KEYS[1])
        return f"{last[label]:.2g}{f', mean turn {mean.mean[-1]:.2g}' if mean else ''}"

    text = (
        f"At the last look, at step {lines[most].steps[-1]}, the turns of the {every} steps before had the smallest "
        f"variance for {least} ({of(least)}) and the largest for {most} ({of(most)})."
    )
    baseline = curve.baseline.label if curve.baseline else None
    if baseline in last and baseline not in {least, most}:
        text += f" The baseline {baseline} had {of(baseline)}."
    return (
        f"{text} A smaller variance means that embeddings turned more equally; beside a small mean it says that "
        "little turned at all."
    )


def draw(found: Directions, *, narrow: bool, name: str) -> str:
    """Variance and mean side by side."""
    return histories.draw(found.panels, narrow=narrow, name=name, log_beyond=WIDE)
