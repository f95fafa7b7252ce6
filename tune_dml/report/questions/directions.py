"""How evenly do the embeddings' directions turn? The spread of their updates between looks, over training.

Zhang et al., Deep Metric Learning with Spherical Embedding, supplement C.2 and Figure 2, where SEC makes the distribution of
direction variations more compact. `trainables.evidence.directions` has the definition.
"""

from __future__ import annotations

from collections.abc import Sequence

from tune_dml.report import figure as drawing
from tune_dml.report.knob import MeasuredKnob
from tune_dml.report.measured import Measured
from tune_dml.report.questions import knob_question
from tune_dml.report.section import Block, Figure, Section, Text
from tune_dml.report.traces import Histories, Panel

VARIANCE, MEAN = "train/direction_variance", "train/direction_mean"
WIDE = 20
"""Means further apart than this ratio are drawn on a logarithmic axis."""


@knob_question(order=250, reads_traces=True)
def directions(measured: Measured, knob: MeasuredKnob) -> Section:
    """Mean and variance of direction updates of each value of the knob and the baseline."""
    histories = measured.histories[knob.key]
    panels = histories.panels((VARIANCE, MEAN))
    every = min((line.steps[0] for panel in panels for line in panel.lines), default=0)
    sentence = _sentence(knob, histories, every)
    body: list[Block] = [Text(sentence)]
    if panels:
        body.append(_figure(knob, panels, every, sentence))
    title = f"How evenly do directions turn, for each {knob.symbol}?"
    return Section("directions", title, "Directions", tuple(body))


def _sentence(knob: MeasuredKnob, histories: Histories, every: int) -> str:
    lines, means = histories.lines(VARIANCE), histories.lines(MEAN)
    if not lines:
        return (
            "No trial logged how its directions turned: each was shorter than 25 steps, or ran before this was "
            "measured."
        )
    last = {label: line.mean[-1] for label, line in lines.items()}
    least, most = min(last, key=lambda name: last[name]), max(last, key=lambda name: last[name])

    def numbers(label: str) -> str:
        return f"{last[label]:.2g}{f', mean turn {means[label].mean[-1]:.2g}' if label in means else ''}"

    text = (
        f"At the last look, at step {lines[most].steps[-1]}, the turns of the {every} steps before had the smallest "
        f"variance for {least} ({numbers(least)}) and the largest for {most} ({numbers(most)})."
    )
    baseline = knob.baseline.label if knob.baseline else None
    if baseline in last and baseline not in {least, most}:
        text += f" The baseline {baseline} had {numbers(baseline)}."
    return (
        f"{text} A smaller variance means that embeddings turned more equally; beside a small mean it says that "
        "little turned at all."
    )


def _figure(knob: MeasuredKnob, panels: Sequence[Panel], every: int, sentence: str) -> Figure:
    return Figure(
        f"directions-{knob.slug}",
        lambda narrow, name: drawing.over_training(panels, narrow=narrow, name=name, log_beyond=WIDE),
        f"Over training, for each value: {', '.join(panel.metric.name for panel in panels)}. {sentence}",
        f"How far the unit embeddings of a fixed sample of training pictures moved in {every} steps "
        "(chord, 0 to 2): variance and mean over the pictures; mean over seeds (lines), range over seeds (bands). "
        "Definition after Zhang et al., supplement C.2, which shows the distribution per 1000 steps.",
    )
