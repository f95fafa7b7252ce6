"""Read the rows of a table as text: CSV with commas, semicolons or tabs, TSV, or Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from trainables.data.formats.stored import list_names
from trainables.errors import DataError, Problem, nearest, raise_if_any

TABLES = (".csv", ".tsv", ".parquet")
_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?\r?\n', re.IGNORECASE)
"""First line by which Excel states the separator."""
_WHOLE_NUMBER = re.compile(r"-?\d+(\.0+)?")
_Row = tuple[int, Sequence[str]]
"""Line at which a row begins, and its cells."""


def in_class_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names sorted; by value if all are whole numbers, such as -1, 9 and 10.0."""
    distinct = set(names)
    by_value = all(map(_WHOLE_NUMBER.fullmatch, distinct))
    return sorted(distinct, key=lambda name: (Decimal(name) if by_value else 0, name))


@dataclass(frozen=True)
class TableRows:
    """The cells of a table as text; column names are in lower case."""

    path: Path
    header_line: int
    header: Sequence[str]
    rows: Sequence[_Row]

    @classmethod
    def read(cls, path: Path) -> TableRows:
        """Read a table. Raise DataError if it is unreadable or empty, or if a row is longer or shorter than the header."""
        rows = read_rows(path)
        if len(rows) < 2:
            remedy = "Write a header and a line for each picture, such as `path,label` and `1.png,cat`."
            raise DataError(Problem(str(path), "the table lists no picture", None, remedy))
        table = cls(path, rows[0][0], [name.strip().casefold() for name in rows[0][1]], rows[1:])
        width = len(table.header)
        wrong = [(i, f"{len(cells)} cells") for i, (_, cells) in enumerate(table.rows) if len(cells) != width]
        rule = f"every line must have {width} cells, as the header has, but {{n}} {{have}} not"
        remedy = 'Put quotes around a value that holds a separator: "a, b.png".'
        raise_if_any(table.mistakes(wrong, rule, remedy), DataError)
        return table

    def name_of(self, names: Sequence[str]) -> str:
        """Return the first of the names that is a column; an empty text without one."""
        return next((name for name in names if name in self.header), "")

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        position = self.header.index(name)
        return [cells[position] for _, cells in self.rows]

    def header_problems(self, names: Sequence[str]) -> list[Problem]:
        """Return a problem if none of the names is a column, or if one is two columns."""
        name, place = self.name_of(names), f"{self.path}:{self.header_line}"
        if not name:
            rule = f"the header must have a column {' or '.join(names)}"
            return [Problem(place, rule, None, nearest(names[0], self.header, what="column"))]
        count = self.header.count(name)
        return [Problem(place, f"the header must have one column {name}", count)] if count > 1 else []

    def line(self, row: int) -> int:
        """Return the line at which a row begins."""
        return self.rows[row][0]

    def mistakes(self, wrong: Sequence[tuple[int, str]], rule: str, remedy: str) -> list[Problem]:
        """Return a problem with the wrong (row, text), at the line of the first; none if there are none.

        `rule` may hold {n}, {are} and {have}.
        """
        if not wrong:
            return []
        are, have = ("is", "has") if len(wrong) == 1 else ("are", "have")
        shown = list_names(dict.fromkeys(text for _, text in wrong))
        rule = rule.format(n=len(wrong), are=are, have=have)
        return [Problem(f"{self.path}:{self.line(wrong[0][0])}", rule, shown, remedy)]


def read_rows(path: Path) -> list[_Row]:
    """Return line and cells of each row, a header first. Raise DataError if the table is unreadable."""
    try:
        return list(_parquet_rows(path) if path.suffix.lower() == ".parquet" else _text_rows(path))
    except OSError as error:
        raise DataError(Problem(str(path), "the table must be readable", error.strerror or str(error))) from error


def _text_rows(path: Path) -> Iterator[_Row]:
    """Yield the rows of a CSV file, without blank ones."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")  # spreadsheets write a byte-order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start)
        value = raw.split(b"\n")[line].decode("latin-1")
        remedy = "Save it as UTF-8; Excel calls that CSV UTF-8."
        raise DataError(Problem(f"{path}:{line + 1}", "the table must be UTF-8 text", value, remedy)) from error
    stated = _SEPARATOR.match(text)
    delimiter = stated[1] if stated else max(",;\t", key=text.partition("\n")[0].count)
    before = 1 if stated else 0  # lines
    body = io.StringIO(text[stated.end() if stated else 0 :], newline="")
    reader, begin = csv.reader(body, delimiter=delimiter, strict=True), before + 1
    try:
        for row in reader:
            if any(map(str.strip, row)):
                yield begin, row
            begin = before + reader.line_num + 1
    except csv.Error as error:
        remedy = "Close every quotation mark; inside a quoted value write it twice."
        raise DataError(Problem(f"{path}:{begin}", "the line must be readable as CSV", str(error), remedy)) from error


def _parquet_rows(path: Path) -> Iterator[_Row]:
    """Yield the names of the columns, then the rows; columns of bytes or lists are left out."""
    from pyarrow import ArrowException, parquet, types

    try:
        table = parquet.read_table(path)
    except ArrowException as error:
        raise DataError(Problem(str(path), "the table must be readable as Parquet", str(error))) from error
    kept = [
        column.name for column in table.schema if not (types.is_nested(column.type) or types.is_binary(column.type))
    ]
    yield 1, kept
    columns = [table[name].to_pylist() for name in kept]
    for number, row in enumerate(zip(*columns, strict=True), start=1):
        yield number, ["" if cell is None or cell != cell else str(cell) for cell in row]  # noqa: PLR0124 - NaN
