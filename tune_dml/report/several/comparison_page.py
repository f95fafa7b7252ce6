"""Write a comparison of sweeps as one page and as JSON."""

import math
from pathlib import Path

from tune_dml.report.cells import delta_cells, metric_cells, text_cell
from tune_dml.report.drawing.charts import Whisker
from tune_dml.report.naming import confidence
from tune_dml.report.page import PageHead, write_page
from tune_dml.report.section import Block, Figure, Notes, Section, Table, Text, whisker_figure
from tune_dml.report.several.comparison import PairedDifference, SweepComparison
from tune_dml.report.summary import Answer
from tune_dml.text import counted, duration, joined, value_text

SCHEMA = "tune_dml.comparison/1"
_MAX_WHISKERS = 40  # maximum number of differences in the figure; the largest are shown


def comparison_data(comparison: SweepComparison) -> dict[str, object]:
    """Return the comparison as data for JSON."""
    names = comparison.names
    return {
        "schema": SCHEMA,
        "sweeps": names,
        "metric": comparison.metric.description(comparison.sweeps[0].goal),
        "differences": comparison.differences,
        "budgets": comparison.budgets,
        "refused": comparison.refusals,
        "same_configuration": comparison.same,
        "paired": comparison.paired,
        "ranks": rank_rows(comparison),
        "cells": [
            {"sweep": name, "cell": cell.label, "seeds": len(cell.values), "mean": cell.mean}
            for name, sweep in zip(names, comparison.sweeps, strict=True)
            for cell in sweep.cells
        ],
    }


def rank_rows(comparison: SweepComparison) -> list[dict[str, object]]:
    """Return a row for each knob that the first sweep shares with another sweep."""
    return [
        {"knob": rank.knob, "against": rank.against, "values": rank.agreement.levels,
         **{name: round(getattr(rank.agreement, name), 3) for name in ("tau", "low", "high")}}
        for rank in comparison.ranks
    ]  # fmt: skip


def comparison_sentences(comparison: SweepComparison) -> tuple[str, ...]:
    """Return the findings as sentences; sweeps that cannot be compared come first."""
    first = comparison.names[0]
    refusals = comparison.refusals
    lines = [f"{name} is not compared with {first}: {'; '.join(reasons)}." for name, reasons in refusals.items()]
    for name in comparison.names[1:]:
        rows = [row for row in comparison.paired if row.sweep == name]
        if rows:
            lines.append(_verdict(comparison, name, rows))
        elif comparison.same[name] and name not in refusals:
            lines.append(f"{name} and {first} share only equal configurations, so there is no difference to judge.")
    return tuple(lines)


def _verdict(comparison: SweepComparison, name: str, rows: list[PairedDifference]) -> str:
    metric, first = comparison.metric, comparison.names[0]
    better, worse = (sum(row.verdict == word for row in rows) for word in ("better", "worse"))
    significant = [row for row in rows if row.verdict != "undecided"]
    widest = max(significant or rows, key=lambda row: abs(row.difference))
    which = "significant difference" if 0 < len(significant) < len(rows) else "difference"
    largest = f"the largest {which} is {metric.signed_amount(widest.difference)} at {widest.point}"
    points = counted(len(rows), "shared point")
    if all(math.isclose(row.difference, 0.0, abs_tol=1e-9) for row in rows):
        return f"{name} and {first} have equal means at {'the' if len(rows) == 1 else 'all'} {points}."
    if not better and not worse:
        return f"{name} differs significantly from {first} at none of {points}; {largest}."
    parts = [f"{word} at {count}" for word, count in (("better", better), ("worse", worse)) if count]
    return f"{name} is significantly {' and '.join(parts)} of {points} than {first}; {largest}."


def write_comparison(comparison: SweepComparison, folder: Path) -> tuple[Path, Path]:
    """Write `comparison.html` and `comparison.json` into a folder, which is created if missing."""
    names = comparison.names
    facts = tuple(
        (name, f"{budget.cells} cells, {budget.trials} finished trials, {duration(budget.seconds)}")
        for name, budget in zip(names, comparison.budgets, strict=True)
    )
    title, footer = joined(names), f"Compared within seeds; {names[0]} is the reference."
    answer = Answer(comparison_sentences(comparison), facts=facts)
    head = PageHead(title, "Comparison of sweeps", title, answer, footer)
    sections = [_what_differs(comparison), _differences(comparison), *_ranks(comparison), _cells(comparison)]
    return write_page(folder, "comparison", head, sections, comparison_data(comparison))


def _what_differs(comparison: SweepComparison) -> Section:
    rows = [(path, *map(value_text, values)) for path, values in comparison.differences.items()]
    caption, columns = "Settings that differ, data and protocol first.", ("setting", *comparison.names)
    body: list[Block] = [Table("differs", caption, columns, rows) if rows else Text("The sweeps share every setting.")]
    if not comparison.equal_budgets:
        body.append(Text("The budgets differ: with a larger one the best cell is better by chance alone."))
    return Section("differs", "What differs?", "What differs", body)


def _differences(comparison: SweepComparison) -> Section:
    body: list[Block] = [
        Text(f"{name} is not compared: {'; '.join(reasons)}.", badge="refused")
        for name, reasons in comparison.refusals.items()
    ]
    if comparison.paired:
        body += [_figure(comparison), _table(comparison)]
    equal = f"the configuration of a cell of {comparison.names[0]} and"
    same = [
        f"{name}: {'1 cell has' if count == 1 else f'{count} cells have'} {equal} {'is' if count == 1 else 'are'} left out."
        for name, count in comparison.same.items()
        if count
    ]
    body += [Notes(same)] if same else []
    title = f"How far apart is {comparison.metric.name}, seed by seed?"
    return Section("paired", title, "Paired differences", body)


def _figure(comparison: SweepComparison) -> Figure:
    metric, first = comparison.metric, comparison.names[0]
    several = len({row.sweep for row in comparison.paired}) > 1
    kept = sorted(comparison.paired, key=lambda row: -abs(row.difference))[:_MAX_WHISKERS]
    items = [
        Whisker(
            f"{row.sweep}: {row.second}" if several else row.second, row.difference, row.low, row.high,
            tip=f"{row.sweep} minus {first} at {row.point}: {metric.signed(row.difference)}",
        )
        for row in comparison.paired
        if row in kept
    ]  # fmt: skip
    texts = " ".join(comparison_sentences(comparison)), _caption(comparison)
    return whisker_figure("paired", items, f"{metric.label} minus that of {first}{metric.unit_after}", *texts)


def _caption(comparison: SweepComparison) -> str:
    more = len(comparison.paired) - _MAX_WHISKERS
    return (
        f"Differences within seeds at equal knobs, with {confidence(comparison.level)} intervals that hold at once."
        + (f" The largest {_MAX_WHISKERS}; {more} more are in the table." if more > 0 else "")
    )


def _table(comparison: SweepComparison) -> Table:
    rows = [
        (row.sweep, row.point, row.seeds, *delta_cells(comparison.metric, row.difference, row.low, row.high),
         text_cell(row.verdict, mark=row.verdict))
        for row in comparison.paired
    ]  # fmt: skip
    columns = ("sweep", "at", "seeds", f"minus {comparison.names[0]}", "low", "high", "verdict")
    return Table("paired", _caption(comparison), columns, rows, folded="Every difference")


def _ranks(comparison: SweepComparison) -> list[Section]:
    """Return the agreement on the order of values; no section without a knob of three common values."""
    first = comparison.names[0]
    if not (rows := rank_rows(comparison)):
        return []
    caption = "Kendall's tau between two orders of a knob's values: 1 if they are equal, -1 if one is reversed. "
    caption += "The bounds count a pair of values only if its order is significant in both sweeps; "
    caption += f"each has {confidence(comparison.rank_level)}."
    table = Table("ranks", caption, tuple(rows[0]), [tuple(row.values()) for row in rows])
    return [Section("ranks", f"Do the others order a knob's values like {first}?", "Order of values", [table])]


def _cells(comparison: SweepComparison) -> Section:
    blocks = []
    for index, (name, sweep) in enumerate(zip(comparison.names, comparison.sweeps, strict=True)):
        rows = [
            (cell.label, len(cell.values), *metric_cells(sweep.metric, cell.mean, *sweep.bar(cell)))
            for cell in sweep.cells
        ]
        caption = f"{name} on {sweep.results.plan.dataset}, with comparison bars that hold within this sweep alone."
        columns = ("cell", "seeds", sweep.metric.axis, "bar low", "bar high")
        blocks.append(Table(f"cells-{index + 1}", caption, columns, rows))
    return Section("cells", "Every cell, one table per sweep", "Every cell", blocks, appendix=True)
