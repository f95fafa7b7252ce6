"""Build the look (interim analysis) at the current state of a sweep or its confirmation."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Mapping

from tune_dml.planning.plan import PlannedTrial
from tune_dml.record.judging.looks import Look, Subject
from tune_dml.record.judging.race import Block


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
    seeds_per_cell = (len(statuses) - failed) / len({trial.cell.digest for trial in trials.values()})
    return Look(seeds_per_cell, planned, verb, time.time(), len(statuses), data, failed, comparable, subject)


def seeds_per_running_cell(blocks: Collection[Block], ended: Collection[str]) -> float:
    """Return the mean number of ended seeds per running cell, from the blocks of a race."""
    return sum(
        block.seeds * sum(trial.key in ended for trial in block.trials) / len(block.trials)
        for block in blocks
        if block.trials
    )
