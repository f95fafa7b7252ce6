"""The shape of everything a verb shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


class View(Protocol):
    """Something to show."""

    def data(self) -> Any:
        """The content as a JSON-able object."""

    def text(self) -> Iterable[RenderableType]:
        """The content for a terminal."""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A plain table; the columns in `right` hold numbers. No markup is read from the content."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        drawn.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return drawn
