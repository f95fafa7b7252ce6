"""The report's tables as CSV: full numbers, one file a table."""

from __future__ import annotations

import csv
import io

from tune_dml.report.tables import Entry, Table


def csv_text(table: Table) -> str:
    """A table with a header line; numbers in full precision, empty where there is none."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_field(item) for item in row] for row in table.rows)
    return buffer.getvalue()


def _field(item: Entry) -> str:
    if item.value is not None:
        return repr(item.value)
    text = "" if item.text == "-" else item.text
    # a spreadsheet would run a text that begins like a formula
    return f"'{text}" if text[:1] in {"=", "+", "@"} or (text[:1] == "-" and len(text) > 1) else text
