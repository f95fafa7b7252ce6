"""Run benchmarks as programs, and time contestants that take turns."""

import functools
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import typer


def run_program(main: Callable[..., int | None], description: str | None) -> None:
    """Run `main` as a program: its parameters are the options, its result is the exit code."""

    @functools.wraps(main)
    def command(**options: Any) -> None:
        raise typer.Exit(main(**options) or 0)

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help="\b\n" + (description or "").replace("\n\n", "\n\n\b\n"))(command)
    app()


def take_turns(
    contestants: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Return the seconds of each contestant in every round; other load affects all alike. A first round warms up."""
    turns = []
    for _ in range(rounds + 1):
        times = [clock()]
        for contestant in contestants:
            contestant()
            times.append(clock())
        turns.append([after - before for before, after in pairwise(times)])
    return [list(seconds) for seconds in zip(*turns[1:], strict=True)]
