"""Is the best value inside the tested range, or at its edge? With a command that extends the range, ready to run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from trainables.registries import domain_of
from tune_dml.report.measured import Measured, MeasuredKnob
from tune_dml.report.naming import extend_command
from tune_dml.report.questions import knob_question
from tune_dml.report.section import Block, Card, Command, Entry, Section, Table, Text, words
from tune_dml.stats import Optimum, judge_optimum
from tune_dml.text import is_number, value_text


@knob_question(order=210, unanswered={"optimum": None})
def optimum(measured: Measured, knob: MeasuredKnob) -> Section | None:
    """None when the knob's values have no order; an edge that can be extended is a finding."""
    if not knob.numeric or knob.knob.domain.scale == "category":
        return None
    verdict = _judge(measured, knob)
    sentence, command = _sentence(verdict, knob.symbol), _command(measured, knob, verdict)
    body: list[Block] = [Text(sentence)]
    if command:
        body += [Text("To extend the range by two steps:"), Command(command)]
    word = {"edge": "at the edge", "none": "flat"}.get(verdict.verdict, verdict.verdict)
    return Section(
        "optimum",
        f"Is the best {knob.symbol} inside the tested range?",
        "Optimum",
        (*body, _table_of_chances(knob, verdict)),
        Card(word, verdict.verdict, f"Where is the best {knob.symbol}?", sentence),
        (sentence,),
        findings=(sentence,) if verdict.verdict == "edge" and not verdict.natural_bound else (),
        commands=(command,) if command else (),
        data={"optimum": {**vars(verdict), "sentence": sentence, "command": command}},
    )


def _values(knob: MeasuredKnob) -> list[float]:
    """Of the fitted levels."""
    return [value for label in knob.fit.table.labels if is_number(value := knob.level(label))]


def _judge(measured: Measured, knob: MeasuredKnob) -> Optimum:
    values = _values(knob)
    scale: Literal["linear", "log"] = "log" if knob.axis == "log" else "linear"
    flat = knob.sensitivity.verdict == "insensitive"
    verdict = judge_optimum(knob.fit, values, goal=measured.goal, scale=scale, insensitive=flat)
    if verdict.extend:  # only now is the domain asked for: it loads the method's package
        domain = domain_of(knob.path, measured.settings)
        verdict = judge_optimum(knob.fit, values, goal=measured.goal, scale=scale, domain=domain)
    if knob.sensitivity.largest is None and knob.sensitivity.reason:
        verdict = replace(verdict, reason=knob.sensitivity.reason)
    return verdict


def _command(measured: Measured, knob: MeasuredKnob, verdict: Optimum) -> str:
    """Adds the next values beyond the edge; empty when there is nothing to add."""
    if not verdict.extend:
        return ""
    whole = all(float(value).is_integer() for value in [*_values(knob), *verdict.extend])
    values = [value_text(int(value) if whole else value) for value in verdict.extend]
    return extend_command(measured.results.name, f"--add {knob.path}={','.join(values)}")


def _sentence(verdict: Optimum, symbol: str) -> str:
    if verdict.verdict == "none":
        return f"No optimum of {symbol} to locate: {verdict.reason.partition(', ')[0]}."
    chance = ""
    if math.isfinite(verdict.edge_probability):
        chance = f" (probability {_chance(verdict.edge_probability)} that the best value is an outermost one)"
    if verdict.verdict == "edge":
        beyond = "The true optimum may lie outside the tested range."
        if verdict.natural_bound:
            beyond = "That is as far as it may go: there is no range left to extend."
        return f"The optimum of {symbol} is at the edge: {verdict.reason}, {verdict.best}{chance}. {beyond}"
    if verdict.verdict == "interior":
        return f"The optimum of {symbol} is interior: {verdict.reason}, at {verdict.best}{chance}."
    best = f"; the best mean is at {verdict.best}" if verdict.best else ""
    return f"Undecided where the optimum of {symbol} lies: {verdict.reason}{best}{chance}."


def _chance(probability: float) -> str:
    if probability > 0.995:
        return "above 0.99"
    return "below 0.01" if probability < 0.005 else f"{probability:.2f}"


def _table_of_chances(knob: MeasuredKnob, verdict: Optimum) -> Table:
    rows = tuple((words(label), Entry(f"{share:.3f}", share)) for label, share in verdict.probabilities)
    caption = f"Probability that each tested value is the best. {verdict.algorithm}."
    folded = "How likely each value is the best"
    return Table(f"chances-{knob.slug}", caption, ("value", "probability"), rows, folded=folded, for_paper=False)
