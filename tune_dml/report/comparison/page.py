"""A comparison as one page and as JSON, from the parts of the sweep's page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tune_dml.report.comparison.comparison import PairedDifference, SweepComparison
from tune_dml.report.drawing.charts import Whisker, whiskers
from tune_dml.report.page import PageHead, page_of, write_page
from tune_dml.report.section import (
    Block,
    Figure,
    Notes,
    Section,
    Table,
    TableCell,
    Text,
    delta_cell,
    metric_cell,
    text_cell,
    value_cell,
)
from tune_dml.report.summary import Answer
from tune_dml.text import counted, duration, value_text

SCHEMA = "tune_dml.comparison/1"
_MOST_WHISKERS = 40
"""Differences that one figure shows: the largest."""


def comparison_data(comparison: SweepComparison) -> dict[str, Any]:
    """Everything as JSON; null where a number does not exist."""
    return {
        "schema": SCHEMA,
        "sweeps": list(comparison.names),
        "differences": {path: list(values) for path, values in comparison.differences.items()},
        "budgets": [vars(budget) for budget in comparison.budgets],
        "refused": {item.sweep: list(item.reasons) for item in comparison.refusals},
        "same_configuration": comparison.same,
        "paired": [_plain(vars(item)) for item in comparison.paired],
        "cells": [
            {"sweep": name, "cell": cell.label, "seeds": len(cell.values), "mean": _number(cell.mean)}
            for name, sweep in zip(comparison.names, comparison.sweeps, strict=True)
            for cell in sweep.cells
        ],
    }


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _number(value) if isinstance(value, float) else value for name, value in item.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def sentences(comparison: SweepComparison) -> tuple[str, ...]:
    """What the comparison says, in plain words; what cannot be compared first."""
    first = comparison.names[0]
    lines = [f"{item.sweep} is not compared with {first}: {'; '.join(item.reasons)}." for item in comparison.refusals]
    for name in comparison.names[1:]:
        rows = [row for row in comparison.paired if row.sweep == name]
        if rows:
            lines.append(_verdict(comparison, name, rows))
        elif comparison.same[name] and name not in {item.sweep for item in comparison.refusals}:
            lines.append(f"What {name} and {first} share is the very same configuration: it cannot differ.")
    return tuple(lines)


def _verdict(comparison: SweepComparison, name: str, rows: list[PairedDifference]) -> str:
    metric, first = comparison.sweeps[0].metric, comparison.names[0]
    better, worse = (sum(row.verdict == word for row in rows) for word in ("better", "worse"))
    widest = max(rows, key=lambda row: abs(row.difference))
    most = f"the largest difference is {metric.signed(widest.difference)} {metric.unit}".strip() + f" at {widest.point}"
    of = counted(len(rows), "shared point")
    if not better and not worse:
        return f"{name} certainly differs from {first} at none of {of}; {most}."
    parts = [f"{word} at {count}" for word, count in (("better", better), ("worse", worse)) if count]
    return f"{name} is certainly {' and '.join(parts)} of {of} than {first}; {most}."


def write_comparison(comparison: SweepComparison, folder: Path) -> tuple[Path, Path]:
    """`comparison.html` and `comparison.json` in a folder, made if missing."""
    return write_page(folder, "comparison", _page(comparison), comparison_data(comparison))


def _page(comparison: SweepComparison) -> str:
    names = comparison.names
    facts = tuple(
        (name, f"{budget.cells} cells, {budget.trials} finished trials, {duration(budget.seconds)}")
        for name, budget in zip(names, comparison.budgets, strict=True)
    )
    answer = Answer(sentences(comparison), None, "", facts)
    title = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    head = PageHead(
        title, "Comparison of sweeps", title, answer, f"Compared within seeds; {names[0]} is what the others are compared with.",
        "comparison.json (every number in full precision)",
    )  # fmt: skip
    return page_of(head, [_what_differs(comparison), _differences(comparison), _cells(comparison)])


def _what_differs(comparison: SweepComparison) -> Section:
    rows = tuple(
        (text_cell(path), *(text_cell(value_text(value)) for value in values))
        for path, values in comparison.differences.items()
    )
    body: list[Block] = [
        Table("differs", "What is not the same in all: data and protocol first.", ("setting", *comparison.names), rows)
    ]
    if not rows:
        body = [Text("The sweeps share every setting.")]
    if not comparison.equal_budgets:
        body.append(Text("The budgets differ: a larger one finds a better best cell by chance alone."))
    return Section("differs", "What differs?", "What differs", tuple(body))


def _differences(comparison: SweepComparison) -> Section:
    metric, rows = comparison.sweeps[0].metric, comparison.paired
    body: list[Block] = [
        Text(f"{item.sweep} is not compared: {'; '.join(item.reasons)}.", badge="refused")
        for item in comparison.refusals
    ]
    if rows:
        body += [_figure(comparison), _table(comparison)]
    same = [f"{name}: {count} cells are the very same configuration as {comparison.names[0]}'s and are left out."
            for name, count in comparison.same.items() if count]  # fmt: skip
    body += [Notes(tuple(same))] if same else []
    return Section("paired", f"How far apart is {metric.name}, seed by seed?", "Paired differences", tuple(body))


def _figure(comparison: SweepComparison) -> Figure:
    metric = comparison.sweeps[0].metric
    several = len({row.sweep for row in comparison.paired}) > 1
    kept = sorted(comparison.paired, key=lambda row: -abs(row.difference))[:_MOST_WHISKERS]
    shown = [row for row in comparison.paired if row in kept]
    items = [
        Whisker(
            f"{row.sweep}: {row.second}" if several else row.second, row.difference, row.low, row.high,
            tip=f"{row.sweep} minus {comparison.names[0]} at {row.point}: {metric.signed(row.difference)}",
        )
        for row in shown
    ]  # fmt: skip
    unit = f", {metric.unit}" if metric.unit else ""
    title = f"{metric.label} minus that of {comparison.names[0]}{unit}"
    return Figure(
        "paired", lambda narrow: whiskers(items, title, narrow=narrow, zero=True), " ".join(sentences(comparison)),
        _caption(comparison),
    )  # fmt: skip


def _caption(comparison: SweepComparison) -> str:
    more = len(comparison.paired) - _MOST_WHISKERS
    return (
        f"Differences within seeds at equal knobs, with {100 * (1 - comparison.level):.3g}% intervals that hold at once."
        + (f" The largest {_MOST_WHISKERS}; {more} more are in the table." if more > 0 else "")
    )


def _table(comparison: SweepComparison) -> Table:
    metric = comparison.sweeps[0].metric
    rows = tuple(
        (text_cell(row.sweep), text_cell(row.point), value_cell(row.seeds),
         *(delta_cell(metric, value) for value in (row.difference, row.low, row.high)), text_cell(row.verdict, mark=row.verdict))
        for row in comparison.paired
    )  # fmt: skip
    columns = ("sweep", "at", "seeds", f"minus {comparison.names[0]}", "low", "high", "verdict")
    return Table("paired", _caption(comparison), columns, rows, folded="Every difference")


def _cells(comparison: SweepComparison) -> Section:
    blocks = []
    for index, (name, sweep) in enumerate(zip(comparison.names, comparison.sweeps, strict=True)):
        rows: list[tuple[TableCell, ...]] = []
        for cell in sweep.cells:
            low, high = sweep.bar(cell)
            numbers = (metric_cell(sweep.metric, value) for value in (cell.mean, low, high))
            rows.append((text_cell(cell.label), value_cell(len(cell.values)), *numbers))
        caption = f"{name} on {sweep.results.plan.dataset}, with comparison bars that hold within this sweep alone."
        columns = ("cell", "seeds", sweep.metric.axis, "bar low", "bar high")
        blocks.append(Table(f"cells-{index + 1}", caption, columns, tuple(rows)))
    return Section("cells", "Every cell, a table a sweep", "Every cell", tuple(blocks), appendix=True)
