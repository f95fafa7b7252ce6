"""The page: one file that needs no server, no network and no script, readable by keyboard, on paper and on a telephone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

from tune_dml.report.measured import Measured
from tune_dml.report.section import Section, Table

MOST_ROWS = 1500
"""Of a table on the page; the CSV has them all."""


def page_text(measured: Measured, sections: Sequence[Section]) -> str:
    """The HTML text: the cards, then every section that has a title."""
    from jinja2 import Environment, StrictUndefined

    here = files("tune_dml.report")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shortened"] = _shortened
    template = environment.from_string(here.joinpath("report.html").read_text(encoding="utf-8"))
    return template.render(
        plan=measured.results.plan,
        sections=[section for section in sections if section.title],
        css=here.joinpath("report.css").read_text(encoding="utf-8"),
    )


def _shortened(table: Table) -> Table:
    """What the page shows of a table."""
    table = table.without(table.csv_only)
    if len(table.rows) <= MOST_ROWS:
        return table
    caption = f"{table.caption} The first {MOST_ROWS} of {len(table.rows)}; csv/{table.name}.csv has all."
    return replace(table, caption=caption, rows=table.rows[:MOST_ROWS])
