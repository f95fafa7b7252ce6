"""`tune-dml schema`: the JSON schema of a sweep file, so that editors complete and check it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tune_dml.cli.options import absolute, verb

ORDER = 36
EXAMPLES = """
tune-dml schema -o sweep.schema.json
# then, as the first line of a sweep file:
# yaml-language-server: $schema=sweep.schema.json
"""


@verb
def schema(output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write to.")] = None) -> None:
    """Print the JSON schema of a sweep file: its keys, their meaning and all settings."""
    from tune_dml.planning.sweep_file import sweep_file_schema

    text = json.dumps(sweep_file_schema(), indent=1)
    path = absolute(output)
    if path is None:
        typer.echo(text)
        return
    path.write_text(text + "\n", encoding="utf-8")
    typer.echo(f"Wrote {path}. First line of a sweep file: # yaml-language-server: $schema={path.name}")
