"""Read the papers' printed numbers from `published.csv`, the file beside the search spaces, as curves.

Reading them imports no search space.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.papers.paper import METHOD, CurveReference, Value
from tune_dml.text import is_number

_COLUMNS = "paper, table, dataset, method, hyperparameters (a JSON object), metric, value (a number), note (errata)"


@dataclass(frozen=True)
class PublishedRow:
    """One printed number."""

    paper: str
    table: str
    dataset: str
    method: str
    hyperparameters: Mapping[str, Value]
    metric: str
    value: float
    note: str


@dataclass(frozen=True)
class PublishedPoint:
    """One printed number of a curve."""

    x: float | str
    y: float
    row: PublishedRow


@dataclass(frozen=True)
class PublishedCurve:
    """A printed curve with its source."""

    published: CurveReference
    points: tuple[PublishedPoint, ...]
    """In order of x."""
    baseline: float | None
    """The curve's metric for the baseline method; None if the table does not print it."""
    others: Mapping[str, tuple[PublishedPoint, ...]]
    """The table's other metrics along the same knob (`final_norm_var`, `NMI`)."""
    baseline_others: Mapping[str, float]
    """The table's other metrics of the baseline method."""
    source: str
    notes: tuple[str, ...]
    """The note of the reference, notes on how the numbers were read, and errata."""

    def values(self, metric: str | None = None) -> dict[float | str, float]:
        """Return y by x, for the curve's metric or another metric of the table."""
        points = self.points if metric is None else self.others.get(metric, ())
        return {point.x: point.y for point in points}


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """Return every printed number in the `published.csv` of each package of spaces, without importing the packages."""
    specs = [find_spec(entry.value) for entry in entry_points(group="tune_dml.space_packages")]
    folders = [Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    paths = [path for folder in folders if (path := folder / "published.csv").is_file()]
    return tuple(row for path in paths for row in _read_rows(path))


def _read_rows(path: Path) -> Iterator[PublishedRow]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in (reader := csv.DictReader(file)):
            try:
                hyperparameters, value = dict(json.loads(row["hyperparameters"])), float(row["value"])
                names = (row["paper"], row["table"], row["dataset"], row["method"])
                yield PublishedRow(*names, hyperparameters, row["metric"], value, row["note"])
            except (KeyError, TypeError, ValueError) as error:
                rule, got = f"a line must have the columns {_COLUMNS}", f"{type(error).__name__}: {error}"
                raise ConfigError(Problem(f"{path}, line {reader.line_num}", rule, got)) from error


def published_curve(published: CurveReference) -> PublishedCurve:
    """Return the curve of a reference. Raise ConfigError if its rows are missing or a value has two numbers."""
    table = [
        row
        for row in published_rows()
        if (row.paper, row.table, row.dataset) == (published.paper, published.table, published.dataset)
        and all(row.hyperparameters.get(key) == value for key, value in published.where.items())
    ]
    curve_rows = [row for row in table if _is_on_curve(published, row)]
    by_metric: dict[str, list[PublishedRow]] = {}
    for row in curve_rows:
        by_metric.setdefault(row.metric, []).append(row)
    raise_if_any(_problems(published, table, by_metric.get(published.metric, [])))
    curves = {metric: _points(rows, published.hyperparameter) for metric, rows in by_metric.items()}
    points = curves.pop(published.metric)
    baseline_rows = [row for row in table if row.method == published.baseline_method]
    baseline = {row.metric: row.value for row in baseline_rows}
    rows = curve_rows + baseline_rows
    notes = [published.note]
    notes += [f"{row.hyperparameters['source_note']}." for row in rows if "source_note" in row.hyperparameters]
    notes += [row.note for row in rows]
    return PublishedCurve(
        published,
        points,
        baseline.pop(published.metric, None),
        curves,
        baseline,
        ", ".join(filter(None, (published.paper, f"Table {published.table}", published.dataset, published.backbone))),
        tuple(dict.fromkeys(_sentence(note) for note in notes if note)),
    )


def is_cited(row: PublishedRow) -> bool:
    """Return whether the paper cites the number from another paper, whose conditions it does not state."""
    return str(row.hyperparameters.get("source_note", "")).startswith(("cited", "copied"))


def _is_on_curve(published: CurveReference, row: PublishedRow) -> bool:
    if published.hyperparameter == METHOD:
        return not is_cited(row) and (not published.methods or row.method in published.methods)
    return row.method in published.methods and published.hyperparameter in row.hyperparameters


def _value_on_curve(row: PublishedRow, key: str) -> object:
    return row.method if key == METHOD else row.hyperparameters[key]


def _points(rows: Iterable[PublishedRow], key: str) -> tuple[PublishedPoint, ...]:
    found = [(_value_on_curve(row, key), row) for row in rows]
    points = [PublishedPoint(float(x) if is_number(x) else str(x), row.value, row) for x, row in found]
    if key == METHOD:
        return tuple(points)  # in the order of the table
    return tuple(sorted(points, key=lambda point: (isinstance(point.x, str), point.x)))


def _problems(published: CurveReference, table: list[PublishedRow], rows: list[PublishedRow]) -> Iterable[Problem]:
    location = f"{published.paper}, Table {published.table}, {published.dataset}"
    if not table:
        tables = sorted({f"{row.paper}, Table {row.table}, {row.dataset}" for row in published_rows()})
        yield Problem("published", "no package has numbers of this table", location, known=tables, kind="table")
        return
    methods = sorted({row.method for row in table})
    for method in published.methods:
        if method not in methods:
            yield Problem(location, "the table has no such method", method, known=methods, kind="method")
    if not rows:
        rule = f"no {published.metric} of these methods varies with {published.hyperparameter!r}"
        yield Problem(location, rule, list(published.methods), "Check `hyperparameter` and `metric`.")
    values = [repr(_value_on_curve(row, published.hyperparameter)) for row in rows]
    for value in dict.fromkeys(value for value in values if values.count(value) > 1):
        yield Problem(location, "a curve must have one number per value", value, "Name fewer `methods`.")


def _sentence(note: str) -> str:
    note = note.strip()
    return note[0].upper() + note[1:] + ("" if note.endswith((".", "!", "?")) else ".")
