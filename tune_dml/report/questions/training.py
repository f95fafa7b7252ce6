"""How did training go? The metric and the loss over training, and whether the metric was still moving at the end."""

from __future__ import annotations

from tune_dml.report import figure as drawing
from tune_dml.report.knob import MeasuredKnob
from tune_dml.report.measured import Measured
from tune_dml.report.questions import knob_question
from tune_dml.report.section import Block, Figure, Section, Text
from tune_dml.report.traces import Line

LOSS = "train/loss"
LAST = 0.25
"""The share of training over which a metric that still moves is called unfinished."""


@knob_question(order=230, reads_traces=True)
def training(measured: Measured, knob: MeasuredKnob) -> Section:
    """The curves of each value of the knob and the baseline, means and ranges over seeds; what was not logged is missing."""
    histories = measured.histories[knob.key]
    panels = histories.panels((measured.metric.key, LOSS))
    sentence = _sentence(measured, list(histories.lines(measured.metric.key).values()))
    body: list[Block] = [Text(sentence)]
    if panels:
        omitted = len(histories.omitted)
        body.append(
            Figure(
                f"training-{knob.slug}",
                lambda narrow, name: drawing.over_training(panels, narrow=narrow, name=name, with_set=True),
                f"Over training, for each value: {', '.join(panel.metric.name for panel in panels)}. {sentence}",
                "Mean over seeds (lines) and range over seeds (bands); a trial that stopped early counts as far as it "
                "got." + (f" For clarity, {omitted} more values are left out." if omitted else ""),
            )
        )
    return Section("training", f"How did training go, for each {knob.symbol}?", "Training", tuple(body))


def _sentence(measured: Measured, lines: list[Line]) -> str:
    metric = measured.metric
    if not lines:
        return f"No trial logged {metric.label} while it trained, so there is no curve to show."
    changes = {line.label: change for line in lines if (change := _last_change(line)) is not None}
    if not changes:
        return "Every trial was evaluated too rarely to tell whether training had settled."
    gaining = {label: change for label, change in changes.items() if measured.sign * change > measured.margin}
    if not gaining:
        return (
            f"Over the last quarter of training no value gained more than the margin of "
            f"{metric.amount(measured.margin)}: longer training would hardly change the picture."
        )
    most = max(gaining, key=lambda label: measured.sign * gaining[label])
    others = len(gaining) - 1
    more = f", and of {others} more {'value' if others == 1 else 'values'} by more than the margin" if others else ""
    return (
        f"Still gaining: over the last quarter of training {metric.label} of {most} moved by "
        f"{metric.signed(gaining[most])} {metric.unit}".rstrip()
        + f"{more} (margin {metric.amount(measured.margin)}). Longer training may change the order."
    )


def _last_change(line: Line) -> float | None:
    """Last mean minus that of the latest evaluation at least a quarter of training earlier; None where there is none."""
    end = line.steps[-1]
    earlier = [mean for step, mean in zip(line.steps, line.mean, strict=True) if step <= (1 - LAST) * end]
    return line.mean[-1] - earlier[-1] if earlier else None
