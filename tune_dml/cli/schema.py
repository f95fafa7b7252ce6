"""`tune-dml schema`: print the JSON schema of a sweep file, for editors, or of a verb's output with --json."""

import json
from pathlib import Path
from typing import Annotated

import typer

from trainables.errors import ConfigError, Problem
from tune_dml.cli._json import as_json as strict_json
from tune_dml.cli._json import schemas
from tune_dml.cli.options import Json, absolute, verb

ORDER = 36
EXAMPLES = """
tune-dml schema status                                # what `status --json` prints
tune-dml schema -o sweep.schema.json
# then, as the first line of a sweep file:
# yaml-language-server: $schema=sweep.schema.json
"""


@verb
def schema(
    of: Annotated[str | None, typer.Argument(metavar="[VERB]", help="A verb, or `error`; else a sweep file.")] = None,
    *,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write to.")] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON schema of sweep files; with a verb, of its output with --json."""
    content = _schema_of(of)
    path = absolute(output)
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(strict_json({"schema": content, "file": None if path is None else str(path)}))
    elif path is None:
        typer.echo(json.dumps(content, indent=1))
    elif of is not None:
        typer.echo(f"Wrote {path}.")
    else:
        typer.echo(f"Wrote {path}. First line of a sweep file: # yaml-language-server: $schema={path.name}")


def _schema_of(verb_name: str | None) -> dict[str, object]:
    from tune_dml.planning.files.keys import sweep_file_schema

    if verb_name is None:
        return sweep_file_schema()
    by_verb = schemas()
    if verb_name not in by_verb:
        raise ConfigError(Problem("VERB", "unknown verb with JSON", verb_name, known=by_verb, kind="verb"))
    return by_verb[verb_name]
