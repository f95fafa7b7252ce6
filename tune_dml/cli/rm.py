"""`tune-dml rm`: a sweep is taken from the disk."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from tune_dml.cli.options import Json, SweepArgument, verb

ORDER = 71
EXAMPLES = """
tune-dml rm old                                       # asks first
tune-dml rm old --yes
"""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@verb
def rm(sweep_name: SweepArgument, *, yes: Yes = False, storage: Path, as_json: Json = False) -> None:
    """Remove a sweep and everything it left on disk or in object storage; its runs in MLflow stay. Refused while it runs."""
    from trainables.errors import ConfigError, Problem
    from tune_dml.record.fetching import delete_remaining_files
    from tune_dml.record.ledger import Ledger
    from tune_dml.record.results import Results
    from tune_dml.record.state import load_state

    state = load_state(storage.absolute(), sweep_name)
    results = Results.of(state)
    finished = results.count("finished")
    if not yes and not sys.stdin.isatty():
        raise ConfigError(
            Problem("--yes", "nobody can be asked here, so removal must be confirmed", None, "Add --yes.")
        )
    if not yes and not typer.confirm(f"Remove {results.folder} with {finished} finished trials?"):
        raise typer.Abort
    with Ledger(results.folder):  # refused while another process runs it
        delete_remaining_files(state)
        gone = results.folder.with_name(f".{results.folder.name}.removed")
        results.folder.rename(gone)
    shutil.rmtree(gone)
    gone_for_good = f"Removed {results.folder} ({finished} finished trials). Its runs in MLflow are still there."
    typer.echo(json.dumps({"removed": str(results.folder), "finished": finished}) if as_json else gone_for_good)
