"""What every reader of other programs' results gives, and what the user says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainables.errors import ConfigError, Problem, nearest
from tune_dml.record.state import TrialStatus
from tune_dml.space import Value
from tune_dml.text import one_line, shortened

_LONGEST_NAME = 80
"""Letters of a name or a value that the report shows."""


@dataclass(frozen=True)
class ImportRequest:
    """What the user says of somebody's results."""

    name: str
    """What the report calls them."""
    metric: str | None = None
    """The column or logged name; None where the source has one of its own."""
    goal: Literal["maximize", "minimize"] | None = None
    """None: the source's own, else maximize."""
    margin: float | None = None
    seed_column: str | None = None
    """Which setting is the seed; None: `seed`, where there is one."""
    knobs: tuple[str, ...] = ()
    """The settings that the report is about; empty: every one that varies."""


@dataclass(frozen=True)
class Row:
    """One training."""

    name: str
    """Where it stands: `line 7`, a trial's number, a run's id."""
    settings: Mapping[str, Value]
    """What it was trained with, the seed included."""
    metrics: Mapping[str, float]
    status: TrialStatus = "finished"
    reason: str = ""
    seconds: float = 0.0
    history: Sequence[Mapping[str, Any]] = ()
    """Its evaluations in order, each with a `step`."""
    run_id: str = ""


@dataclass(frozen=True)
class ImportedRows:
    """What a reader found."""

    source: str
    """As people call it: `the file runs.csv`."""
    rows: tuple[Row, ...]
    metric: str = ""
    """The source's own; empty where it has none."""
    goal: Literal["maximize", "minimize"] | None = None
    notes: tuple[str, ...] = field(default=())
    """What had to be decided."""
    data_set: tuple[str, str] | None = None
    """Name and digest of the data that all were trained on; None where that is not known."""


def chosen_metric(data: ImportedRows, request: ImportRequest) -> str:
    """The metric asked for, or the source's own. Raises ConfigError where neither is known, or no row has it."""
    known = sorted({name for row in data.rows for name in row.metrics})
    listed = f"It has {', '.join(known[:12])}{' ...' if len(known) > 12 else ''}." if known else "It has no numbers."
    metric = request.metric or data.metric
    if not metric:
        rule = f"which metric is meant must be said for {data.source}"
        raise ConfigError(Problem("--metric", rule, None, listed))
    if metric not in known:
        rule = f"must be a metric of {data.source}"
        raise ConfigError(Problem("--metric", rule, metric, f"{nearest(metric, known, what='metric')} {listed}"))
    return metric


def parsed(text: str) -> Value:
    """A written setting: a number, yes or no, nothing, or the text in one line."""
    text = one_line(text)
    if text.lower() in {"", "none", "null", "nan", "n/a"}:
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return shortened(text, _LONGEST_NAME)
    if not math.isfinite(number):
        return shortened(text, _LONGEST_NAME)
    return int(number) if text.lstrip("+-").isdigit() else number


def plain_value(value: object) -> Value:
    """A setting as a knob can have it; lists and mappings become their text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    return shortened(one_line(str(value)), _LONGEST_NAME)


def is_measured(value: object) -> bool:
    """Whether it is a finite number; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
