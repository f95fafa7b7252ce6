"""Rows of other programs' results, and the request that describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainables.errors import ConfigError, Problem, nearest
from tune_dml.record.ledger import HistoryRow
from tune_dml.record.state import TrialStatus
from tune_dml.space import Value
from tune_dml.text import is_measurable, one_line, shortened

_LONGEST_NAME = 80
"""Most characters of a name or a value in the report."""


@dataclass(frozen=True)
class ImportRequest:
    """The user's description of imported results."""

    name: str
    """Name in the report."""
    metric: str | None = None
    """Column or logged name; None for the source's own."""
    goal: Literal["maximize", "minimize"] | None = None
    """None for the source's own, else maximize."""
    margin: float | None = None
    seed_column: str | None = None
    """The setting that is the seed; None for `seed`, if there is one."""
    knobs: tuple[str, ...] = ()
    """Settings to analyse; empty means every setting that varies."""


@dataclass(frozen=True)
class ImportedTraining:
    """One training."""

    name: str
    """`line 7`, a trial's number or a run's id."""
    settings: Mapping[str, Value]
    """Settings of the training, the seed included."""
    metrics: Mapping[str, float]
    status: TrialStatus = "finished"
    reason: str = ""
    seconds: float = 0.0
    history: Sequence[HistoryRow] = ()
    """Its evaluations in order, each with a `step`."""
    run_id: str = ""


@dataclass(frozen=True)
class ImportedRows:
    """The rows of one source."""

    source: str
    """Name for the reader, such as `the file runs.csv`."""
    rows: tuple[ImportedTraining, ...]
    metric: str = ""
    """The source's own metric; empty if it has none."""
    goal: Literal["maximize", "minimize"] | None = None
    notes: tuple[str, ...] = field(default=())
    """Decisions that were taken while reading."""
    data_set: tuple[str, str] | None = None
    """Name and digest of the data set; None if unknown."""


def chosen_metric(data: ImportedRows, request: ImportRequest) -> str:
    """Return the requested metric, or else the source's own. Raise ConfigError if no row has it."""
    known = sorted({name for row in data.rows for name in row.metrics})
    listed = f"It has {', '.join(known[:12])}{' ...' if len(known) > 12 else ''}." if known else "It has no numbers."
    metric = request.metric or data.metric
    if not metric:
        rule = f"name the metric of {data.source}"
        raise ConfigError(Problem("--metric", rule, None, listed))
    if metric not in known:
        rule = f"must be a metric of {data.source}"
        raise ConfigError(Problem("--metric", rule, metric, nearest(metric, known, what="metric") if known else listed))
    return metric


def parsed(text: str) -> Value:
    """Parse a written setting: a number, a truth value, None or the text on one line."""
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
    return int(text) if text.lstrip("+-").isdigit() else number


def plain_value(value: object) -> Value:
    """Return a setting as a knob's value; lists and mappings become text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    return shortened(one_line(str(value)), _LONGEST_NAME)


def is_measured(value: object) -> bool:
    """Whether a value is a finite number and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_measurable(value)
