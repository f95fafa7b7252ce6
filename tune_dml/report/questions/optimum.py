"""Is the best value inside the tested range, or at its edge? With a command that extends the range, ready to run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainables.registries import domain_of
from tune_dml.report.measured import Measured
from tune_dml.report.naming import symbol_of
from tune_dml.report.questions.curve import Curve
from tune_dml.stats import Optimum, judge_optimum
from tune_dml.text import is_number, value_text


@dataclass(frozen=True)
class Location:
    """The verdict on one knob's optimum."""

    knob: str
    optimum: Optimum
    sentence: str
    command: str
    """Adds the next values beyond the edge; empty when there is nothing to add."""


def extend_values_command(sweep: str, path: str, values: Sequence[float]) -> str:
    """The command that adds values of a knob to a sweep."""
    return f"tune-dml extend {shlex.quote(sweep)} --add {path}={','.join(value_text(value) for value in values)}"


def extend_seeds_command(sweep: str, seeds: int) -> str:
    """The command that brings a sweep to a number of seeds."""
    return f"tune-dml extend {shlex.quote(sweep)} --seeds {seeds}"


def extract(measured: Measured, curve: Curve) -> Location | None:
    """Judge one knob; None when its values have no order."""
    knob = curve.measured
    if not knob.numeric or knob.knob.domain.scale == "category":
        return None
    values = [value for label in curve.fit.table.labels if is_number(value := knob.level(label))]
    scale: Literal["linear", "log"] = "log" if knob.axis == "log" else "linear"
    flat = curve.sensitivity.verdict == "insensitive"
    found = judge_optimum(curve.fit, values, goal=measured.goal, scale=scale, insensitive=flat)
    if found.extend:
        settings = next((c.cell.settings for c in measured.cells if not c.cell.baseline), {})
        domain = domain_of(knob.knob.path, settings)
        found = judge_optimum(curve.fit, values, goal=measured.goal, scale=scale, domain=domain)
    if curve.sensitivity.largest is None and curve.sensitivity.reason:
        found = replace(found, reason=curve.sensitivity.reason)
    command = ""
    if found.extend:
        whole = all(float(value).is_integer() for value in [*values, *found.extend])
        extend = [int(value) if whole else value for value in found.extend]
        command = extend_values_command(measured.results.name, knob.knob.path, extend)
    return Location(knob.knob.path, found, _sentence(found, symbol_of(knob.knob)), command)


def _sentence(found: Optimum, symbol: str) -> str:
    if found.verdict == "none":
        return f"No optimum of {symbol} to locate: {found.reason.partition(', ')[0]}."
    chance = ""
    if math.isfinite(found.edge_probability):
        chance = f" (probability {_chance(found.edge_probability)} that the best value is an outermost one)"
    if found.verdict == "edge" and found.natural_bound:
        return (
            f"The optimum of {symbol} is at the edge: {found.reason}, {found.best}{chance}. "
            "That is as far as it may go: there is no range left to extend."
        )
    if found.verdict == "edge":
        return (
            f"The optimum of {symbol} is at the edge: {found.reason}, {found.best}{chance}. "
            "The true optimum may lie outside the tested range."
        )
    if found.verdict == "interior":
        return f"The optimum of {symbol} is interior: {found.reason}, at {found.best}{chance}."
    best = f"; the best mean is at {found.best}" if found.best else ""
    return f"Undecided where the optimum of {symbol} lies: {found.reason}{best}{chance}."


def _chance(probability: float) -> str:
    if probability > 0.995:
        return "above 0.99"
    return "below 0.01" if probability < 0.005 else f"{probability:.2f}"
