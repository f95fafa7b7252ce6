"""How did training go? The metric and the loss over training, and whether the metric was still moving at the end."""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.report.measured import Measured
from tune_dml.report.questions import histories
from tune_dml.report.questions.histories import Histories, Line, Panel

LOSS = "train/loss"
LAST = 0.25
"""The share of training over which a metric that still moves is called unfinished."""


@dataclass(frozen=True)
class Training:
    """Panels over training and what they say."""

    panels: tuple[Panel, ...]
    """The metric at each evaluation, and the training loss; what was not logged is missing."""
    sentence: str
    omitted: tuple[str, ...]


def extract(measured: Measured, logged: Histories) -> Training:
    """The curves of each value of the knob and the baseline, means and ranges over seeds."""
    metric = measured.metric
    panels = [panel for key in (metric.key, LOSS) if (panel := logged.panel(key)) is not None]
    lines = [line for label in logged.by_label if (line := logged.line(label, metric.key)) is not None]
    return Training(tuple(panels), _sentence(measured, lines), logged.omitted)


def _sentence(measured: Measured, lines: list[Line]) -> str:
    metric, better = measured.metric, 1 if measured.goal == "maximize" else -1
    if not lines:
        return f"No trial logged {metric.label} while it trained, so there is no curve to show."
    moved = {line.label: change for line in lines if (change := _last_change(line)) is not None}
    if not moved:
        return "Every trial was evaluated too rarely to tell whether training had settled."
    going = {label: change for label, change in moved.items() if better * change > measured.margin}
    if not going:
        return (
            f"Over the last quarter of training no value gained more than the margin of "
            f"{metric.amount(measured.margin)}: longer training would hardly change the picture."
        )
    most = max(going, key=lambda label: better * going[label])
    others = len(going) - 1
    more = f", and of {others} more {'value' if others == 1 else 'values'} by more than the margin" if others else ""
    return (
        f"Still gaining: over the last quarter of training {metric.label} of {most} moved by "
        f"{metric.signed(going[most])} {metric.unit}".rstrip()
        + f"{more} (margin {metric.amount(measured.margin)}). Longer training may change the order."
    )


def _last_change(line: Line) -> float | None:
    """Last mean minus that of the latest evaluation at least a quarter of training earlier; None where there is none."""
    end = line.steps[-1]
    earlier = [mean for step, mean in zip(line.steps, line.mean, strict=True) if step <= (1 - LAST) * end]
    return line.mean[-1] - earlier[-1] if earlier else None


def draw(found: Training, *, narrow: bool, name: str) -> str:
    """The metric and the loss side by side."""
    return histories.draw(found.panels, narrow=narrow, name=name, with_set=True)
