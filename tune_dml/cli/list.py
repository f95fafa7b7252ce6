"""`tune-dml list`: list the sweeps of a folder, each with its state, age and answer on one line."""

from __future__ import annotations

import builtins
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tune_dml.cli._sweep_status_text import age_of, headline_of, last_update_time, state_of
from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import Lines, console_for, show
from tune_dml.planning.request import Session, file_problems

if TYPE_CHECKING:
    from trainables.errors import Problem
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
    from trainables.errors import ConfigError, Problem, raise_if_any
    from tune_dml.record.results import results_of
    from tune_dml.record.state import sweep_names

    folder = storage.absolute()
    raise_if_any(file_problems("--storage", folder))
    readable: builtins.list[_SweepLine] = []
    unreadable: dict[str, tuple[Problem, ...]] = {}
    for name in sweep_names(folder):
        try:
            readable.append(_SweepLine.of(results_of(folder / name)))
        except ConfigError as error:
            unreadable[name] = error.problems
        except OSError as error:  # another user's sweep, or not a file
            rule = f"a sweep's files must be readable ({error.strerror})"
            unreadable[name] = (Problem(str(error.filename or folder / name), rule),)
    if readable or not unreadable:
        latest = tuple(sorted(readable, key=lambda sweep: -sweep.updated))
        show(_Sweeps(folder, latest, {name: str(problems[0]) for name, problems in unreadable.items()}), as_json)
    if readable and unreadable and as_json:  # the problems are in the JSON already
        raise typer.Exit(1)
    raise_if_any(problem for problems in unreadable.values() for problem in problems)


@dataclass(frozen=True)
class _SweepLine:
    """One line about a sweep."""

    results: Results
    state: str
    updated: float
    answer: str
    """The first verdict of the answer, or its first warning; empty before the first result."""

    @classmethod
    def of(cls, results: Results) -> _SweepLine:
        return cls(results, state_of(results), last_update_time(results), headline_of(results))


@dataclass(frozen=True)
class _Sweeps:
    """All sweeps of a folder."""

    storage: Path
    sweeps: tuple[_SweepLine, ...]
    unreadable: Mapping[str, str]
    """Sweep -> why it cannot be read."""

    def data(self) -> Any:
        return [
            {
                "sweep": sweep.results.name,
                "state": sweep.state,
                "last": datetime.fromtimestamp(sweep.updated, UTC).isoformat(timespec="seconds"),
                "space": sweep.results.plan.space.name,
                "dataset": sweep.results.plan.dataset,
                "trials": len(sweep.results.trials),
                "finished": sweep.results.count("finished"),
                "answer": sweep.answer,
            }
            for sweep in self.sweeps
        ] + [
            {"sweep": name, "state": "unreadable", "answer": problem, **_EMPTY_KEYS}
            for name, problem in self.unreadable.items()
        ]

    def text(self) -> Lines:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        from tune_dml.record.origin.commands import program

        if not self.sweeps:
            storage_flag = (
                ""
                if self.storage == Path(Session.storage).absolute()
                else f" --storage {shlex.quote(str(self.storage))}"
            )
            first = f"{program()} sweep sec_rho{storage_flag}"
            yield f"No sweep under {self.storage} yet. Start one: {first}, or write a sweep file: tune-dml init FOLDER."
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=console_for(False).width)
        for column in ("sweep", "state"):
            table.add_column(column, no_wrap=True)
        table.add_column("age", justify="right", no_wrap=True)
        table.add_column("answer", no_wrap=True, overflow="ellipsis", ratio=1)
        for sweep in self.sweeps:
            table.add_row(*map(Text, (sweep.results.name, sweep.state, age_of(sweep.results), sweep.answer)))
        yield table
