"""`tune-dml list`: list the sweeps of a folder, each with its state, age and answer on one line."""

from __future__ import annotations

import builtins
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.cli._answers import headline_of, last_update_time, state_of
from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import Lines, console_for, print_result
from tune_dml.planning.request import Session, file_problems
from tune_dml.text import age

if TYPE_CHECKING:
    from tune_dml.record.results import Results

ORDER = 69
EXAMPLES = """
tune-dml list
tune-dml list --storage /shared/sweeps
"""


_EMPTY_KEYS = {"last": "", "space": "", "dataset": "", "trials": 0, "finished": 0}
"""The other keys of a sweep that cannot be read."""


@verb
def list(*, storage: Path, as_json: Json = False) -> None:
    """List the stored sweeps, latest first: state, age and answer in one line."""
    from tune_dml.record.results import results_of
    from tune_dml.record.state import sweep_names

    folder = storage.absolute()
    raise_if_any(file_problems("--storage", folder))
    readable: builtins.list[tuple[float, dict[str, Any]]] = []
    unreadable: dict[str, tuple[Problem, ...]] = {}
    for name in sweep_names(folder):
        try:
            results = results_of(folder / name)
            readable.append((last_update_time(results), _row(results)))
        except ConfigError as error:
            unreadable[name] = error.problems
        except OSError as error:  # another user's sweep, or not a file
            rule = f"a sweep's files must be readable ({error.strerror})"
            unreadable[name] = (Problem(str(error.filename or folder / name), rule),)
    readable.sort(key=lambda sweep: -sweep[0])
    if readable or not unreadable:
        broken = (
            {"sweep": name, "state": "unreadable", "answer": str(problems[0]), **_EMPTY_KEYS}
            for name, problems in unreadable.items()
        )
        print_result([*(row for _, row in readable), *broken], _text(folder, readable), as_json)
    if readable and unreadable and as_json:  # the problems are in the JSON already
        raise typer.Exit(1)
    raise_if_any(problem for problems in unreadable.values() for problem in problems)


def _row(results: Results) -> dict[str, Any]:
    """Return the line of a sweep; `answer` is the first verdict or warning, empty before the first result."""
    return {
        "sweep": results.name,
        "state": state_of(results),
        "last": datetime.fromtimestamp(last_update_time(results), UTC).isoformat(timespec="seconds"),
        "space": results.plan.space.name,
        "dataset": results.plan.dataset,
        "trials": len(results.trials),
        "finished": results.count("finished"),
        "answer": headline_of(results),
    }


def _text(storage: Path, sweeps: Sequence[tuple[float, Mapping[str, Any]]]) -> Lines:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from tune_dml.record.origin.commands import program

    if not sweeps:
        is_default = storage == Path(Session.storage).absolute()
        storage_flag = "" if is_default else f" --storage {shlex.quote(str(storage))}"
        first = f"{program()} sweep sec_rho{storage_flag}"
        yield f"No sweep under {storage} yet. Start one: {first}, or write a sweep file: tune-dml init FOLDER."
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=console_for(False).width)
    for column in ("sweep", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("answer", no_wrap=True, overflow="ellipsis", ratio=1)
    for updated, row in sweeps:
        table.add_row(*map(Text, (row["sweep"], row["state"], age(time.time() - updated), row["answer"])))
    yield table
