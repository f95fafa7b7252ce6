"""Rows of results of other programs, and the user's description of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from trainables.errors import ConfigError, Problem
from tune_dml.record.ledger import HistoryRow
from tune_dml.record.state import TrialStatus
from tune_dml.space import Value
from tune_dml.text import is_measurable, is_number, one_line, shortened

_MAX_LENGTH = 80  # most characters of a name or a value in the report


@dataclass(frozen=True)
class ImportRequest:
    """The user's description of imported results."""

    name: str
    metric: str | None = None  # column or logged name; None for the metric of the source
    goal: Literal["maximize", "minimize"] | None = None  # None for the goal of the source or maximize
    margin: float | None = None
    seed_column: str | None = None  # the setting that holds the seed; None for `seed`, if it exists
    knobs: tuple[str, ...] = ()  # settings to analyse; empty means every setting that varies


@dataclass(frozen=True)
class ImportedTraining:
    """One training of another program."""

    name: str  # such as `line 7`, the number of a trial or the id of a run
    settings: Mapping[str, Value]  # settings of the training, the seed included
    metrics: Mapping[str, float]
    status: TrialStatus = "finished"
    reason: str = ""
    seconds: float = 0.0
    history: Sequence[HistoryRow] = ()
    run_id: str = ""


@dataclass(frozen=True)
class ImportedRows:
    """The rows of one source."""

    source: str  # description of the source, such as `the file runs.csv`
    rows: tuple[ImportedTraining, ...]
    metric: str = ""  # the metric of the source; empty if it names none
    goal: Literal["maximize", "minimize"] | None = None
    notes: tuple[str, ...] = field(default=())  # notes about decisions of the reader
    data_set: tuple[str, str] | None = None  # name and digest of the data set; None if unknown
    repeat_remedy: str = "Remove the repeat."  # what to do if a seed occurs twice in a configuration


def choose_metric(data: ImportedRows, request: ImportRequest) -> str:
    """Return the requested metric, otherwise the metric of the source. Raise ConfigError if no row has it."""
    names = sorted({name for row in data.rows for name in row.metrics})
    names_text = (
        f"It has {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}." if names else "It has no numbers."
    )
    metric = request.metric or data.metric
    if not metric:
        rule = f"name the metric of {data.source}"
        raise ConfigError(Problem("--metric", rule, None, names_text))
    if metric not in names:
        rule = f"must be a metric of {data.source}"
        remedy = "" if names else names_text
        raise ConfigError(Problem("--metric", rule, metric, remedy, known=names or None, kind="metric"))
    return metric


def parse_value(text: str) -> Value:
    """Parse a setting: a number, a truth value, None or text, joined to one line."""
    text = one_line(text)
    if text.lower() in {"", "none", "null", "nan", "n/a"}:
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return shortened(text, _MAX_LENGTH)
    if not math.isfinite(number):
        return shortened(text, _MAX_LENGTH)
    return int(text) if text.lstrip("+-").isdigit() else number


def to_knob_value(value: object) -> Value:
    """Return a setting as the value of a knob; lists and mappings become text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    return shortened(one_line(str(value)), _MAX_LENGTH)


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number, not a truth value."""
    return is_number(value) and is_measurable(value)
