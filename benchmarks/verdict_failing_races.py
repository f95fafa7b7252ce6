"""Races of which trials fail: how often they say something wrong, decide, and what they cost; `verdicts.py` prints it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.sequential.looks import race_level
from tune_dml.stats.sequential.racing import Outcomes, RaceState, judge_block, next_look
from tune_dml.stats.verdicts.best import judge_best
from tune_dml.stats.verdicts.sensitivity import judge_sensitivity

_NOISE = ("iid", "one cell 5x", "t3", "slope", "discrete")
_SHARES = (0.0, 0.01, 0.05, 0.15, 0.4)
_FAILING = ("any trial", "one value", "best value", "whole seeds")
_CELLS, _BEST, _SEEDS, _SD, _MARGIN, _STEP = 6, 3, 200, 1.0, 1.0, 0.5
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class _Row:
    """What became of many races."""

    wrong: Mask
    """The report after the race says something false."""
    right: Mask
    """The race is decided, and the report says nothing false and what is true of the knob."""
    trials: Array


def failing_trials(sweeps: int) -> Iterable[str]:
    """False claims of a report after a race with failed trials; decided rightly; trials used."""
    few = max(60, sweeps // 5)
    yield f"Races of {_CELLS} values to at most {_SEEDS} seeds, margin {_MARGIN:g}, s.d. {_SD}, {few} each; one value 3 margins"
    yield "better, or all are equal. False claims of the report where a block without a number settled its cell (before) / now;"
    yield "share decided rightly now; trials now"
    for better in (3.0, 0.0):
        for failing in _FAILING if better else _FAILING[:2] + _FAILING[3:]:
            for share in _SHARES:
                if not share and failing != _FAILING[0]:
                    continue
                row = [f"{kind} {_rates(kind, better, failing, share, few)}" for kind in _NOISE]
                name = f"{better:g} better, {failing}, {100 * share:g} %"
                yield f"{name:>32}: " + "   ".join(row)


def _rates(kind: str, better: float, failing: str, share: float, sweeps: int) -> str:
    means = better * (np.arange(_CELLS) == _BEST)
    rng = np.random.default_rng([_NOISE.index(kind), int(better), _FAILING.index(failing), round(100 * share)])
    numbers = means[:, None] + _SD * simulate("iid" if kind == "discrete" else kind, _CELLS, _SEEDS, sweeps, rng)
    if kind == "discrete":
        numbers = _STEP * np.round(numbers / _STEP)
    lost = _failed(failing, share, numbers.shape, rng)
    step = _STEP if kind == "discrete" else 0.0
    before, now = (race_with_failures(numbers, lost, means, step, before=old) for old in (True, False))
    return f"{rate(before.wrong)}/ {rate(now.wrong)} {now.right.mean():.2f} {now.trials.mean():3.0f}"


def _failed(failing: str, share: float, shape: tuple[int, ...], rng: np.random.Generator) -> Mask:
    sweeps, cells, seeds = shape
    if failing == "whole seeds":
        return np.broadcast_to(rng.random((sweeps, 1, seeds)) < share, shape)
    rows = {"any trial": np.arange(cells), "one value": np.array([1]), "best value": np.array([_BEST])}[failing]
    return np.asarray((rng.random(shape) < share) & np.isin(np.arange(cells), rows)[:, None])


def race_with_failures(numbers: Array, lost: Mask, means: Array, resolution: float, *, before: bool) -> _Row:
    """Play races of (sweeps, cells, seeds) as `running.race` does; `before`: what failed counts as diverged."""
    sweeps = len(numbers)
    ran = np.zeros(numbers.shape, dtype=bool)
    runs = np.ones(numbers.shape[:2], dtype=bool)
    wrong, right, used = np.zeros(sweeps, dtype=bool), np.zeros(sweeps, dtype=bool), np.zeros(sweeps)
    going, state, seeds, at = np.arange(sweeps), None, 0, []
    while len(going):
        since, seeds = seeds, min(_SEEDS, next_look(seeds))
        ran[going, :, since:seeds] = runs[..., None]
        used[going] += runs.sum(1) * (seeds - since)
        at.append(seeds)
        level = race_level(at, planned=_SEEDS)
        outcomes = _outcomes(numbers[going], lost[going], ran[going], before=before).first(seeds)
        state = judge_block(outcomes, since, _MARGIN, level, state, resolution=resolution)
        over = state.ended | (seeds == _SEEDS)
        for row in np.flatnonzero(over):
            one = RaceState(*(getattr(state, field.name)[row] for field in fields(state)))
            wrong[going[row]], right[going[row]] = _said(outcomes.values[row], one, level, means, resolution)
        state = RaceState(*(getattr(state, field.name)[~over] for field in fields(state)))
        going, runs = going[~over], state.runs
    return _Row(wrong, right, used)


def _outcomes(numbers: Array, lost: Mask, ran: Mask, *, before: bool) -> Outcomes:
    failed, none = lost & ran, np.zeros(lost.shape, dtype=bool)
    found = Outcomes(np.where(ran & ~lost, numbers, np.nan), none, failed)
    return replace(found, diverged=failed, failed=none) if before else found


def _said(values: Array, race: RaceState, level: float, means: Array, resolution: float) -> tuple[bool, bool]:
    """Whether a report says something false, and whether the race is decided and the report says what is true."""
    raced, rows = race.of(range(_CELLS), _MARGIN), np.flatnonzero(np.isfinite(values).any(1))
    table = SeedTable(tuple(map(str, rows)), tuple(range(values.shape[1])), values[rows], resolution=resolution)
    known = race.of(rows.tolist(), _MARGIN)
    failed = [str(cell) for cell in range(_CELLS) if race.lost[cell] or cell not in rows]
    matters = judge_sensitivity(table, _MARGIN, alpha=level, failed=failed, raced=known)
    knob, sensitive = list(range(_CELLS)), matters.verdict == "sensitive"
    best = judge_best(values, knob, _MARGIN, matters=sensitive, alpha=level, raced=raced, resolution=resolution)
    top, truly = means == means.max(), bool(np.ptp(means) > _MARGIN)
    out = np.ones(_CELLS, dtype=bool)
    out[list(best.candidates)] = False
    false = (matters.verdict == "insensitive" and truly) or (sensitive and not truly)
    false |= bool((race.worse & top).any()) or bool((out & top & np.isfinite(values).any(1)).any() and sensitive)
    false |= bool((means.max() - means[list(best.within)] > _MARGIN).any())
    false |= bool(race.decided) and bool((race.tied & (np.abs(means - means[race.leader]) > _MARGIN)).any())
    answer = "sensitive" if truly else "insensitive"
    return false, bool(race.decided) and matters.verdict == answer and not false
