"""Build the look at the present state of a sweep or its confirmation."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Mapping

from tune_dml.planning.plan import PlannedTrial
from tune_dml.record.judging.looks import Look, Subject
from tune_dml.record.judging.race import Block


def look_at(
    trials: Mapping[str, PlannedTrial], ended: Mapping[str, str], by: str, planned: int, subject: Subject = "sweep"
) -> Look | None:
    """Return a look at trials; None until two cells have two seeds each.

    Args:
        trials: key -> planned trial.
        ended: key -> status, of the trials that have ended.
        by: the verb that looks.
        planned: planned seeds per cell.
        subject: the trials that the look judges.
    """
    known = {key: status for key, status in ended.items() if key in trials}
    seeds = Counter(trials[key].cell.digest for key in known)
    comparable = sum(number >= 2 for number in seeds.values())
    if comparable < 2:
        return None
    data = hashlib.sha256("\n".join(f"{key} {known[key]}" for key in sorted(known)).encode()).hexdigest()[:16]
    failed = list(known.values()).count("failed")
    seen = (len(known) - failed) / len({trial.cell.digest for trial in trials.values()})
    return Look(seen, planned, by, time.time(), len(known), data, failed, comparable, subject)


def seeds_of_blocks(blocks: Collection[Block], ended: Collection[str]) -> float:
    """Return the mean number of ended seeds per running cell, from the blocks of a race."""
    return sum(
        block.seeds * sum(trial.key in ended for trial in block.trials) / len(block.trials)
        for block in blocks
        if block.trials
    )
