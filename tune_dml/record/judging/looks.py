"""Record looks (interim analyses) at a growing sweep: the error that a look may spend depends on them.

    <sweep>/looks.jsonl     one line per look, in order of time

`stats.sequential.looks` computes the error. Several processes write the file: a report of a sweep that another process runs is
a look, and must not wait for that process. The file is therefore locked only while one line is written (ADR 0011).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import FileLock

from trainables.errors import ConfigError, Problem
from tune_dml.record.ledger import READ_ONLY, GrowingFile, append_rows, open_whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_LOOKS = "looks.jsonl"


Subject = Literal["sweep", "confirmation"]
"""The trials that a look judges: the sweep's, or those of its confirmation. Each has an error budget."""


@dataclass(frozen=True)
class Look:
    """One look: verdicts were drawn, or a decision was taken, from the trials that had ended."""

    seeds: float
    """Mean seeds per cell, without failed trials; in a race, per cell that still ran. Grows with each look at new data."""
    planned: int
    """Seeds per cell that were planned at that moment."""
    by: str
    """The verb that looked: report, compare, sweep, resume, extend, confirm, or race (the end of a block)."""
    time: float
    """Seconds since the epoch."""
    trials: int
    """Trials that had ended."""
    data: str
    """Digest of the trials that had ended and their status."""
    failed: int = 0
    """Trials that had failed, and may be tried again."""
    cells: int = 0
    """Cells that had two seeds; 0 in looks that were recorded before this field existed."""
    subject: Subject = "sweep"


def cells_added(looks: Sequence[Look]) -> frozenset[int]:
    """Return the positions of the looks that had more cells to compare than some earlier look."""
    known = [(at, look.cells) for at, look in enumerate(looks) if look.cells]
    return frozenset(at for (_, before), (at, cells) in pairwise(known) if cells > before)


def record_look(folder: Path, look: Look | None) -> list[Look]:
    """Append a look, unless the last one of its subject saw the same data. Return every look at that subject.

    Raises:
        ConfigError: if the sweep's folder cannot be written to.
    """
    if look is None:
        return read_looks(folder)
    looks = read_looks(folder, look.subject)
    if looks and looks[-1].data == look.data:
        return looks
    try:
        with FileLock(folder / f"{_LOOKS}.lock", timeout=60):
            looks = read_looks(folder, look.subject)
            if not looks or looks[-1].data != look.data:
                seeds = seeds_after(looks[-1] if looks else None, look.seeds, look.trials)
                looks.append(replace(look, seeds=seeds))
                with open_whole(folder / _LOOKS) as file:
                    append_rows(file, asdict(looks[-1]))
    except OSError as error:
        rule = "verdicts on new data are shown only after the look is recorded in the sweep's folder"
        raise ConfigError(Problem(str(folder), f"{rule} ({error.strerror})", None, READ_ONLY)) from None
    return looks


def read_looks(
    folder: Path, subject: Subject = "sweep", on_garbage: Callable[[str], None] = lambda text: None
) -> list[Look]:
    """Return every look at a subject, in order of time; report unreadable lines to `on_garbage`."""

    def spoilt(behind: int) -> None:
        on_garbage(f"{_LOOKS}: the line that ends at byte {behind} is no look; the error that it spent is unknown")

    looks = []
    for behind, row in GrowingFile(folder / _LOOKS).unread(lambda at, line: spoilt(at + len(line))):
        try:
            looks.append(_adapter().validate_python(row))
        except ValueError:
            spoilt(behind)
    return [look for look in looks if look.subject == subject]


@cache
def _adapter() -> TypeAdapter[Look]:
    from pydantic import TypeAdapter

    return TypeAdapter(Look)


def seeds_after(before: Look | None, seeds: float, trials: int) -> float:
    """Return the seeds of a look: more than those of the look before, even if values were added or a trial was retried.

    Args:
        before: the look before, if any.
        seeds: mean seeds per cell now.
        trials: trials that have ended now.
    """
    if before is None or seeds > before.seeds:
        return seeds
    return before.seeds + max(seeds, 1) * max(trials - before.trials, 1) / max(trials, 1)
