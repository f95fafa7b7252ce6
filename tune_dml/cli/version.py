"""`tune-dml version`."""

from __future__ import annotations

import json

import typer

from tune_dml.cli.options import Json, verb

ORDER = 120


@verb
def version(as_json: Json = False) -> None:
    """Print the installed version."""
    from tune_dml import __version__

    typer.echo(json.dumps({"version": __version__}) if as_json else __version__)
