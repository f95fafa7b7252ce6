"""The look that would be taken now: what a sweep, or its confirmation, has to show."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tune_dml.planning.plan import Trial
from tune_dml.record.looks import Look
from tune_dml.record.race import Block

if TYPE_CHECKING:
    from tune_dml.record.state import SweepState


def look_at_sweep(state: SweepState, by: str) -> Look | None:
    """Return a look at the sweep's own trials; None while no two cells have two seeds each."""
    planned = state.race.rule.max_seeds if state.race else len(state.plan.seeds)
    look = _look_at(state, state.trials, by, planned)
    return replace(look, seeds=_seeds_of_race(state), failed=0) if look and state.race else look


def look_at_confirmation(state: SweepState, by: str) -> Look | None:
    """Return a look at the fresh seeds; None while no two cells have two of them each."""
    planned = len({trial.seed for trial in state.confirming.values()})
    look = _look_at(state, state.confirming, by, planned)
    return look and replace(look, subject="confirmation")


def _look_at(state: SweepState, trials: Mapping[str, Trial], by: str, planned: int) -> Look | None:
    ended = {key: trial.status for key, trial in state.recorded.items() if trial.ended and key in trials}
    seeds = Counter(trials[key].cell.digest for key in ended)
    comparable = sum(number >= 2 for number in seeds.values())
    if comparable < 2:
        return None
    data = hashlib.sha256("\n".join(f"{key} {ended[key]}" for key in sorted(ended)).encode()).hexdigest()[:16]
    failed = list(ended.values()).count("failed")
    cells = len({trial.cell.digest for trial in trials.values()})
    return Look((len(ended) - failed) / cells, planned, by, time.time(), len(ended), data, failed, comparable)


def _seeds_of_race(state: SweepState) -> float:
    """Return the seeds that have ended in a cell that still runs, on average."""
    blocks = state.race.blocks if state.race else []
    later = {trial.key for block in blocks for trial in block.trials}
    first = Block(len(state.stored.seeds), tuple(trial for trial in state.asked.values() if trial.key not in later))
    return sum(
        block.seeds * sum(state.trial(trial.key).ended is not None for trial in block.trials) / len(block.trials)
        for block in (first, *blocks)
        if block.trials
    )
