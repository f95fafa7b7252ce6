"""Record looks (interim analyses) at a sweep. The error level of a look depends on the looks before it.

    <sweep>/looks.jsonl     one line per look, in order of time

`stats.sequential.looks` computes the level. Several processes write the file: a report is a look, even if another
process runs the sweep, and must not wait for that process. The file is therefore locked only to append a line (ADR
0011).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import FileLock

from trainables.errors import ConfigError, Problem
from tune_dml.record.ledger import READ_ONLY, GrowingFile, append_rows, open_for_append

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from tune_dml.planning.plan import PlannedTrial

_LOOKS = "looks.jsonl"

Subject = Literal["sweep", "confirmation"]  # the trials that a look judges; each kind has its own error budget


@dataclass(frozen=True)
class Look:
    """One look: verdicts or a decision, based on the trials that had ended."""

    seeds: float  # mean per cell that still gets seeds, without failed trials; grows with new data
    planned: int  # seeds per cell that were planned at this time
    by: str  # the verb: report, compare, sweep, resume, extend, confirm, or race (after a block)
    time: float  # seconds since the epoch
    trials: int  # number of ended trials
    data: str  # digest of the ended trials and their statuses
    failed: int = 0  # number of failed trials, which may run again
    cells: int = 0  # number of cells with at least two seeds; 0 in looks of older versions
    subject: Subject = "sweep"


def look_at(
    trials: Mapping[str, PlannedTrial], ended: Mapping[str, str], verb: str, planned: int, subject: Subject = "sweep"
) -> Look | None:
    """Return a look at trials; None if fewer than two cells have two seeds.

    `ended` maps the key of each ended trial to its status; `planned` is the number of planned seeds per cell.
    """
    statuses = {key: status for key, status in ended.items() if key in trials}
    seed_counts = Counter(trials[key].cell.digest for key in statuses)
    comparable = sum(number >= 2 for number in seed_counts.values())
    if comparable < 2:
        return None
    data = hashlib.sha256("\n".join(f"{key} {statuses[key]}" for key in sorted(statuses)).encode()).hexdigest()[:16]
    failed = list(statuses.values()).count("failed")
    results = (trials[key].seed for key, status in statuses.items() if status != "failed")
    seeds = seeds_in((trial.seed for trial in trials.values()), results)
    return Look(seeds, planned, verb, time.time(), len(statuses), data, failed, comparable, subject)


def seeds_in(trials: Iterable[int], results: Iterable[int]) -> float:
    """Return the number of seeds with results, each seed as the share of its trials that have one.

    The arguments are the seed of each trial, and of each result. If a confirmation continues with fewer cells, its
    seeds are those of the cells that continue. The mean over all cells would be less, and the levels of later looks too
    high (docs/verdicts.md, Looks).
    """
    cells = Counter(trials)
    by_cells = Counter(cells[seed] for seed in results)  # number of cells of a seed -> results under such seeds
    return sum(count / number for number, count in by_cells.items())


def record_look(folder: Path, look: Look | None) -> list[Look]:
    """Append a look, unless the last look at its subject had the same data. Return all looks at the subject.

    Raise ConfigError if the sweep's folder is not writable.
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
                with open_for_append(folder / _LOOKS) as file:
                    append_rows(file, asdict(looks[-1]))
    except OSError as error:
        rule = "verdicts on new data are shown only after the look is recorded in the sweep's folder"
        raise ConfigError(Problem(str(folder), f"{rule} ({error.strerror})", None, READ_ONLY)) from None
    return looks


def read_looks(
    folder: Path, subject: Subject = "sweep", on_garbage: Callable[[str], None] = lambda text: None
) -> list[Look]:
    """Return all looks at a subject, in order of time; report unreadable lines to `on_garbage`."""
    looks = []
    for _, end, row in GrowingFile(folder / _LOOKS).read_lines():
        try:
            looks.append(_adapter().validate_python(row))
        except ValueError:
            on_garbage(f"{_LOOKS}: the line that ends at byte {end} is not a look; the error that it spent is unknown")
    return [look for look in looks if look.subject == subject]


@cache
def _adapter() -> TypeAdapter[Look]:
    from pydantic import TypeAdapter

    return TypeAdapter(Look)


def seeds_after(previous: Look | None, seeds: float, trials: int) -> float:
    """Return the seeds of a look, always more than before, even if cells were added or a trial was retried.

    `seeds` is the number of seeds with results, and `trials` the number of ended trials.
    """
    if previous is None or seeds > previous.seeds:
        return seeds
    return previous.seeds + max(seeds, 1) * max(trials - previous.trials, 1) / max(trials, 1)
