"""How evenly do the embeddings' directions turn? The spread of their updates between looks, over training.

Zhang et al., Deep Metric Learning with Spherical Embedding, supplement C.2 and Figure 2, where SEC makes the distribution of
direction variations more compact. `trainables.directions` has the definition.
"""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.report import histories
from tune_dml.report.curve import Curve
from tune_dml.report.histories import Histories, Panel

__all__ = ["KEYS", "Directions", "draw", "extract"]

KEYS = ("train/direction_variance", "train/direction_mean")
WIDE = 20
"""Figures further apart than this ratio are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Directions:
    """Panels over training and what they say."""

    panels: tuple[Panel, ...]
    every: int
    """Steps between looks; 0 where there was none."""
    sentence: str

    @property
    def log(self) -> bool:
        """Whether the figures span too much for a linear axis."""
        values = [value for panel in self.panels for line in panel.lines for value in line.mean if value > 0]
        return bool(values) and max(values) / min(values) > WIDE * len(self.panels)


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
    text = (
        f"Over the last {every} steps the variance of the updates was smallest for {least} ({last[least]:.2g})"
        f" and largest for {most} ({last[most]:.2g})."
    )
    baseline = curve.baseline.label if curve.baseline else None
    if baseline in last and baseline not in {least, most}:
        text += f" The baseline {baseline} had {last[baseline]:.2g}."
    return text + " A smaller variance means that more embeddings were moved equally far."


def draw(found: Directions, *, narrow: bool, name: str) -> str:
    """Variance and mean side by side."""
    return histories.draw(found.panels, narrow=narrow, name=name, log=found.log)
