"""The next values beyond the tested range of a knob."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from trainables.registries import domain_of
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.space import Value
from tune_dml.stats.verdicts.best import extension
from tune_dml.text import is_number

Side = Literal["low", "high", ""]
"""An end of the range, or neither."""


def numbers_of(knob: KnobAnalysis, labels: Iterable[str]) -> list[float]:
    """Return the numeric values of a knob behind labels."""
    return [float(value) for label in labels if is_number(value := knob.level(label))]


def values_beyond(analysis: Analysis, knob: KnobAnalysis, side: Side) -> tuple[float, ...]:
    """Return the next values beyond the outermost one that trained; none at the domain's bound or without an order."""
    trained = [label for label in knob.isolated.table.labels if math.isfinite(knob.isolated.means[label])]
    numbers = sorted(numbers_of(knob, trained))
    if not side or len(numbers) < 2:
        return ()
    domain = domain_of(knob.path, analysis.settings_of(knob.arm))
    scale: Literal["linear", "log"] = "log" if knob.axis == "log" else "linear"
    tried = {float(level) for level in knob.levels if is_number(level)}
    return tuple(value for value in extension(numbers, side, scale=scale, domain=domain) if value not in tried)


def as_tried(knob: KnobAnalysis, values: Sequence[float]) -> list[Value]:
    """Return the values to add, as integers if all tried values are integers."""
    tried = numbers_of(knob, knob.isolated.table.labels)
    whole = all(float(value).is_integer() for value in [*tried, *values])
    return [int(value) if whole else value for value in values]
