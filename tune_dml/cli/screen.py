"""Where a verb speaks: a view as text or as JSON, and the console of its progress."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tune_dml.cli.view import View


def show(view: View, as_json: bool) -> None:
    """Print what a verb found."""
    if as_json:
        typer.echo(json.dumps(view.data(), indent=1, default=str))
        return
    console = console_for(False)
    for part in view.text():
        console.print(part)


def console_for(as_json: bool) -> Console:
    """Where people read: standard output, or standard error when standard output carries JSON."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120  # a file or a pipe has no width of its own
    return Console(stderr=as_json, highlight=False, width=width)
