"""Reproduce a published table: the sweep's result beside each number, and reasons against comparing the two."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainables.files import write_whole
from tune_dml.papers.published import PublishedRow, is_cited
from tune_dml.planning.cells import Cell
from tune_dml.planning.checks.conditions import conditions_of, equals_printed, table_of
from tune_dml.planning.reproduction import PrintedTable
from tune_dml.record.results import Results
from tune_dml.report.export.tables import csv_text
from tune_dml.report.published.comparable import condition_differences, data_difference, our_metric
from tune_dml.report.section import Table
from tune_dml.space import Selection, Value
from tune_dml.stats.intervals.paired import mean_interval
from tune_dml.stats.intervals.resolution import is_step_unknown, variance_floor


@dataclass(frozen=True)
class ReproducedNumber:
    """A published number and the sweep's result."""

    method: str
    hyperparameters: Mapping[str, Value]
    metric: str
    printed: float
    ours: float
    half_width: float
    """Half the 95% interval of the mean; NaN with fewer than two seeds, if the seeds chose the cell, or `is_constant`."""
    seeds: int
    cell: str  # label of our cell with the paper's settings; empty if the sweep has no such cell
    why_not: tuple[str, ...]  # reasons against comparing the two numbers; empty if they can be compared
    not_printed: tuple[str, ...] = ()  # conditions of the published number that neither paper nor code states
    is_constant: bool = False  # whether all trials gave the same number, so that the noise of seeds is unknown

    @property
    def gap(self) -> float:
        """The sweep's result minus the published number."""
        return self.ours - self.printed


@dataclass(frozen=True)
class _Match:
    """The cell of the sweep that has the method and values of a printed row; without one, the reason."""

    cell: Cell | None = None
    missing: str = ""
    is_chosen: bool = False  # whether the cell is the best of several that match


def reproduce(results: Results, printed: PrintedTable) -> tuple[ReproducedNumber, ...]:
    """Return the sweep's result for every published number, in table order."""
    cells: dict[str, _Match] = {}
    numbers = []
    for row in printed.rows:
        key = f"{row.method} {json.dumps(dict(row.hyperparameters), sort_keys=True)}"
        if key not in cells:
            cells[key] = _cell_of(results, row)
        numbers.append(_reproduce_number(results, printed, row, cells[key]))
    return tuple(numbers)


def write_reproduction(rows: Sequence[ReproducedNumber], printed: PrintedTable, folder: Path) -> tuple[Path, Path]:
    """Write `reproduction.csv`, with one row per number, and `reproduction.md`, the table with the sweep's results."""
    folder.mkdir(parents=True, exist_ok=True)
    csv_file, markdown_file = folder / "reproduction.csv", folder / "reproduction.md"
    columns = ("method", "hyperparameters", "metric", "paper", "ours", "half_width", "seeds", "gap", "cell", "why_not")
    numbers = [
        (row.method, json.dumps(dict(row.hyperparameters), sort_keys=True), row.metric, row.printed, row.ours,
         row.half_width, row.seeds, row.gap, row.cell, "; ".join(row.why_not))
        for row in rows
    ]  # fmt: skip
    write_whole(csv_file, csv_text(Table("reproduction", "", columns, numbers)))
    write_whole(markdown_file, markdown(rows, printed))
    return csv_file, markdown_file


def markdown(rows: Sequence[ReproducedNumber], printed: PrintedTable) -> str:
    """Return the table in Markdown, with reasons against comparing as footnotes."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    by_line: dict[tuple[str, str], dict[str, ReproducedNumber]] = {}
    for row in rows:
        by_line.setdefault((row.method, _knobs(row.hyperparameters)), {})[row.metric] = row
    reasons = list(dict.fromkeys(row.why_not for row in rows if row.why_not))
    lines = [
        f"# {printed.name}",
        "",
        f"{printed.table.holds[0].upper()}{printed.table.holds[1:]}. Each cell: the paper's number, ours with its 95% interval "
        f"over seeds, on {printed.trained_on}. The best of several cells has no interval, because its seeds chose it. A letter "
        "says why the two cannot be compared.",
        "",
        f"| method | printed at | our cell | {' | '.join(metrics)} |",
        f"|---|---|---|{'---|' * len(metrics)}",
    ]
    for (method, knobs), by_metric in by_line.items():
        cell = next(iter(by_metric.values())).cell or "none"
        numbers = [_pair(by_metric[metric], reasons) if metric in by_metric else "" for metric in metrics]
        lines.append(f"| {method} | {knobs or '-'} | {cell} | {' | '.join(numbers)} |")
    lines += ["", *(f"({_letter(index)}) {'; '.join(reason)}.  " for index, reason in enumerate(reasons))]
    constant = list(dict.fromkeys(row.metric for row in rows if row.is_constant))
    if constant:
        reason = "so the noise of seeds is unknown and there is no interval"
        lines += ["", f"Every trial gave the same {', '.join(constant)}, {reason}."]
    not_printed = list(dict.fromkeys(item for row in rows if not row.why_not for item in row.not_printed))
    if not_printed:
        lines += ["", f"Not printed, and assumed to equal ours: {', '.join(not_printed)}."]
    return "\n".join(lines).rstrip() + "\n"


def _cell_of(results: Results, row: PublishedRow) -> _Match:
    """Return the sweep's cell with a row's method and values; the best one if several match."""
    table = table_of(row.paper, row.table)
    method = table.method(row.method) if table else None
    if method is None or is_cited(row):
        return _Match(missing="the paper cites it from others" if is_cited(row) else "its method is not described")
    names = {path: value for path, value in method.settings.items() if path.split(".")[1] in {"name", "base", "head"}}
    matching = [cell for cell in results.cells if all(cell.settings.get(path) == v for path, v in names.items())]
    named = [cell for cell in matching if cell.arm == row.method] or matching
    printed = {path: row.hyperparameters[key] for key, path in method.knobs.items() if key in row.hyperparameters}
    printed |= {path: value for path, value in method.settings.items() if path not in names}

    def has_printed_values(cell: Cell) -> bool:
        return all(equals_printed(cell.knobs[path], value) for path, value in printed.items() if path in cell.knobs)

    exact = list(filter(has_printed_values, named))
    if (rho := printed.get("regularizer.rho")) is not None:
        exact = [cell for cell in exact if equals_printed(cell.settings.get("regularizer.rho"), rho)] or exact
    if not exact:
        why = "no cell of ours is this method at these values" if named else "no arm of ours is this method"
        return _Match(missing=why)
    means = {cell.digest: mean_interval(_values(results, cell, results.plan.metric)).mean for cell in exact}
    trained = [cell for cell in exact if math.isfinite(means[cell.digest])]
    return _Match(max(trained or exact, key=lambda cell: means[cell.digest]), is_chosen=len(trained) > 1)


def _reproduce_number(results: Results, printed: PrintedTable, row: PublishedRow, match: _Match) -> ReproducedNumber:
    values: list[float] = []
    not_printed: tuple[str, ...] = ()
    cell, reasons, step = match.cell, [match.missing], 0.0
    if cell:
        key, conditions = our_metric(row.metric), conditions_of(row)
        if key:
            values, step = _values(results, cell, key), results.resolution_of(key)
        reasons = [] if values else [f"ours has no {row.metric}"]
        reasons += _reasons(results, printed, row, cell)
        not_printed = conditions.unprinted if conditions else ()
    remarks = (*printed.table.remarks, "source_note")
    shown = {name: value for name, value in row.hyperparameters.items() if name not in remarks}
    ours, is_constant = mean_interval(values, floor=float(variance_floor(step))), is_step_unknown(step, values)
    half_width = math.nan if match.is_chosen or is_constant else ours.high - ours.mean
    return ReproducedNumber(
        row.method, shown, row.metric, row.value, ours.mean, half_width, len(values),
        cell.label if cell else "", tuple(reasons), not_printed, is_constant,
    )  # fmt: skip


def _reasons(results: Results, printed: PrintedTable, row: PublishedRow, cell: Cell) -> list[str]:
    reasons = [*data_difference(results.plan.dataset, row.dataset), *condition_differences(row, cell.settings)]
    selection: Selection = "test" if cell.settings.get("data.split") == "paper_test_selection" else "validation"
    theirs = printed.table.selection
    if theirs not in {"unknown", selection}:
        reasons.append(f"other selection: ours on {selection} classes, the paper's on {theirs} classes")
    return reasons


def _values(results: Results, cell: Cell, key: str) -> list[float]:
    trials = [trial for trial in results.trials if trial.cell.digest == cell.digest and trial.status == "finished"]
    return [trial.metrics[key] for trial in trials if math.isfinite(trial.metrics.get(key, math.nan))]


def _pair(row: ReproducedNumber, reasons: list[tuple[str, ...]]) -> str:
    letter = f" ({_letter(reasons.index(row.why_not))})" if row.why_not else ""
    if not math.isfinite(row.ours):
        return f"{row.printed:g} / -{letter}"
    spread = f" ± {row.half_width:.2f}" if math.isfinite(row.half_width) else ""
    return f"{row.printed:g} / {row.ours:.2f}{spread}{letter}"


def _letter(index: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    first, second = divmod(index, 26)
    return (chr(96 + first) if first else "") + chr(97 + second)


def _knobs(hyperparameters: Mapping[str, Value]) -> str:
    hidden = {"backbone", "embedding_dim", "instances_per_class", "batch_size", "runs"}
    return ", ".join(f"{name}={value}" for name, value in hyperparameters.items() if name not in hidden)
