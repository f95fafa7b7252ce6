"""Who looked at a growing sweep, and what there was to see: the error that a look may spend depends on it (`stats.looks`).

    <sweep>/looks.jsonl     one line a look, in order of time

Looks are the one part of the ledger that several processes write: a report of a sweep that another process runs is a look,
and must not wait for that process. The file therefore has a lock of its own, held while one line is written (ADR 0011).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from trainables.errors import ConfigError, Problem
from tune_dml.record.ledger import READ_ONLY, GrowingFile, append_rows, open_whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_LOOKS = "looks.jsonl"


@dataclass(frozen=True)
class Look:
    """One look: verdicts were drawn, or a decision was taken, from what was there."""

    seeds: float
    """Seeds that a cell had on average, as far as they are counted (`stats.looks.seeds_counted`); of a race, a cell that still
    ran. Every look at new data has more than the last."""
    planned: int
    """Seeds up to which the sweep was planned at that moment."""
    by: str
    """What looked: report, sweep, resume, extend (the end of such a session, or what led to it), race (a block's end)."""
    time: float
    """Seconds since the epoch."""
    trials: int
    """Trials that had ended."""
    data: str
    """Digest of which trials had ended, and how: the same data have the same one."""
    failed: int = 0
    """Trials that had failed, and may be tried again; not counted in a race, nor by versions before this word."""


def record_look(folder: Path, look: Look | None) -> list[Look]:
    """Write a look down, unless the last one saw the same data; every look that there is then.

    Raises ConfigError where the sweep cannot be written to.
    """
    looks = read_looks(folder)
    if look is None or (looks and looks[-1].data == look.data):
        return looks
    try:
        with FileLock(folder / f"{_LOOKS}.lock", timeout=60):
            looks = read_looks(folder)
            if not looks or looks[-1].data != look.data:
                looks.append(_after(looks[-1] if looks else None, look))
                with open_whole(folder / _LOOKS) as file:
                    append_rows(file, asdict(looks[-1]))
    except OSError as error:
        rule = "verdicts on data that nobody has looked at yet are shown once the look is recorded with the sweep"
        raise ConfigError(Problem(str(folder), f"{rule} ({error.strerror})", None, READ_ONLY)) from None
    return looks


def read_looks(folder: Path, on_garbage: Callable[[str], None] = lambda text: None) -> list[Look]:
    """Every look, in order of time; `on_garbage` is told of lines that are none."""

    def spoilt(behind: int) -> None:
        on_garbage(f"{_LOOKS}: the line that ends at byte {behind} is no look; what it spent of the error is not known")

    looks = []
    for behind, row in GrowingFile(folder / _LOOKS).unread(lambda at, line: spoilt(at + len(line))):
        try:
            looks.append(_adapter().validate_python(row))
        except ValueError:
            spoilt(behind)
    return looks


@cache
def _adapter() -> TypeAdapter[Look]:
    from pydantic import TypeAdapter

    return TypeAdapter(Look)


def _after(before: Look | None, look: Look) -> Look:
    """A look at other data never passes for a repeated one: values added later, a trial tried again."""
    from tune_dml.stats.looks import seeds_counted  # loads scipy, which a driver's first trials do not wait for

    paid, seeds = before.seeds if before else 0.0, look.seeds
    if before and seeds <= paid:
        seeds = paid + seeds * max(look.trials - before.trials, 1) / look.trials
    return replace(look, seeds=seeds_counted(seeds, paid, failed=bool(look.failed)))
