"""`tune-dml version`."""

import typer

from tune_dml import __version__
from tune_dml.cli._json import as_json as strict_json
from tune_dml.cli.options import Json, verb

ORDER = 150


@verb
def version(as_json: Json = False) -> None:
    """Print the installed version."""
    typer.echo(strict_json({"version": __version__}) if as_json else __version__)
