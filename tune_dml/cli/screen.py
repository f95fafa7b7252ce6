"""Output of commands: text or JSON, tables, numbers and a progress bar. Imports no heavy package."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import typer

from tune_dml.cli._json import as_json as strict_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


Lines: TypeAlias = Iterable[object]  # content for a terminal
WIDTH = 80  # width that fits every terminal
_UNWRAPPED = ("tune-dml ", "://", "Report:  ")
"""Texts that mark a line with a command, address or path; such lines are not wrapped."""
COMPARISON_BARS = "Two cells differ if their comparison bars do not overlap (within seeds, for all cells at once)."


def print_result(data: object, text: Lines, as_json: bool, *, wrap: bool = True) -> None:
    """Print data as JSON, or else the text. With `wrap`, only lines with a command, path or address are not wrapped."""
    if as_json:
        typer.echo(strict_json(data))
        return
    console = console_for(False)
    for part in text:
        is_whole = isinstance(part, str) and (not wrap or any(sign in part for sign in _UNWRAPPED))
        console.print(part, markup=False, emoji=False, soft_wrap=is_whole)


def console_for(as_json: bool) -> Console:
    """Return a console on standard output, or on standard error if standard output carries JSON."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120  # a file or a pipe has no width
    return Console(stderr=as_json, highlight=False, width=width)


def table(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]], *, right: Sequence[str] = ()) -> Table:
    """Return a table; the columns in `right` are right-aligned. Markup in cells is not interpreted."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return grid


def number(value: float | None, *, of_program: bool = False) -> str:
    """Format a metric with two decimals, or with four digits if `of_program`; empty for None or NaN."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:#.4g}".rstrip(".") if of_program else f"{value:.2f}"


@contextmanager
def progress_bar(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (done, total) of a progress bar that disappears when `done` reaches `total`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tune_dml.running.screen.progress import is_foreground

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(title, total=None, visible=False)

    def advance(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, visible=True)
        if done >= total:
            stop()  # frees the terminal for the next output
        elif console.is_interactive and not bar.live.is_started and is_foreground(console.file):
            bar.start()

    def stop() -> None:
        if bar.live.is_started:  # stopping a bar that has not started would print an empty line
            bar.stop()

    try:
        yield advance
    finally:
        stop()
