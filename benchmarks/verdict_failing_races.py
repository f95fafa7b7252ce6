"""Measure error rate, power and cost of races with failed trials, which `verdicts.py` prints."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import Array, rate, simulate
from verdict_races import select_sweeps

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
class _RaceResults:
    """Results of many races, one entry per race."""

    wrong: Mask
    """Whether the report after the race makes a false claim."""
    right: Mask
    """Whether the race is decided, and its report states the true verdict and no false claim."""
    trials: Array


def failing_trials(sweeps: int) -> Iterable[str]:
    """Print false claims, correct decisions and trials of races with failed trials."""
    draws = max(60, sweeps // 5)
    yield f"Races of {_CELLS} values to at most {_SEEDS} seeds, margin {_MARGIN:g}, s.d. {_SD}, {draws} each; one value"
    yield "is 3 margins better, or all are equal. False claims of the report; share decided correctly, and trials"
    for better in (3.0, 0.0):
        for failing in _FAILING if better else _FAILING[:2] + _FAILING[3:]:
            for share in _SHARES:
                if not share and failing != _FAILING[0]:
                    continue
                row = [f"{kind} {_rates(kind, better, failing, share, draws)}" for kind in _NOISE]
                name = f"{better:g} better, {failing}, {100 * share:g} %"
                yield f"{name:>32}: " + "   ".join(row)


def _rates(kind: str, better: float, failing: str, share: float, sweeps: int) -> str:
    means = better * (np.arange(_CELLS) == _BEST)
    rng = np.random.default_rng([_NOISE.index(kind), int(better), _FAILING.index(failing), round(100 * share)])
    numbers = means[:, None] + _SD * simulate(kind, _CELLS, _SEEDS, sweeps, rng)
    if kind == "discrete":
        numbers = _STEP * np.round(numbers / _STEP)
    lost = _draw_failures(failing, share, numbers.shape, rng)
    step = _STEP if kind == "discrete" else 0.0
    races = run_races(numbers, lost, means, step)
    return f"{rate(races.wrong)} {races.right.mean():.2f} {races.trials.mean():3.0f}"


def _draw_failures(failing: str, share: float, shape: tuple[int, ...], rng: np.random.Generator) -> Mask:
    sweeps, cells, seeds = shape
    if failing == "whole seeds":
        return np.broadcast_to(rng.random((sweeps, 1, seeds)) < share, shape)
    rows = {"any trial": np.arange(cells), "one value": np.array([1]), "best value": np.array([_BEST])}[failing]
    return np.asarray((rng.random(shape) < share) & np.isin(np.arange(cells), rows)[:, None])


def run_races(numbers: Array, lost: Mask, means: Array, resolution: float) -> _RaceResults:
    """Run races by the platform's rules, on numbers (sweeps, cells, seeds)."""
    sweeps = len(numbers)
    ran = np.zeros(numbers.shape, dtype=bool)
    runs = np.ones(numbers.shape[:2], dtype=bool)
    wrong, right, used = np.zeros(sweeps, dtype=bool), np.zeros(sweeps, dtype=bool), np.zeros(sweeps)
    open_races, state, seeds, looks = np.arange(sweeps), None, 0, []
    while len(open_races):
        since, seeds = seeds, min(_SEEDS, next_look(seeds))
        ran[open_races, :, since:seeds] = runs[..., None]
        used[open_races] += runs.sum(1) * (seeds - since)
        looks.append(seeds)
        level = race_level(looks, planned=_SEEDS)
        failed, ended = lost[open_races] & ran[open_races], ran[open_races] & ~lost[open_races]
        values = np.where(ended, numbers[open_races], np.nan)
        outcomes = Outcomes(values, np.zeros(values.shape, dtype=bool), failed).first(seeds)
        state = judge_block(outcomes, since, _MARGIN, level, state, resolution=resolution)
        over = state.ended | (seeds == _SEEDS)
        for row in np.flatnonzero(over):
            race = open_races[row]
            wrong[race], right[race] = _judge_report(
                outcomes.values[row], select_sweeps(state, row), level, means, resolution
            )
        state, open_races = select_sweeps(state, ~over), open_races[~over]
        runs = state.runs
    return _RaceResults(wrong, right, used)


def _judge_report(values: Array, race: RaceState, level: float, means: Array, resolution: float) -> tuple[bool, bool]:
    """Return whether the report after a race is wrong, and whether race and report reach the true verdict."""
    raced, rows = race.of(range(_CELLS), _MARGIN), np.flatnonzero(np.isfinite(values).any(1))
    table = SeedTable(tuple(map(str, rows)), tuple(range(values.shape[1])), values[rows], resolution=resolution)
    raced_rows = race.of(rows.tolist(), _MARGIN)
    failed = [str(cell) for cell in range(_CELLS) if race.lost[cell] or cell not in rows]
    matters = judge_sensitivity(table, _MARGIN, alpha=level, failed=failed, raced=raced_rows)
    knob, sensitive = list(range(_CELLS)), matters.verdict == "sensitive"
    best = judge_best(values, knob, _MARGIN, matters=sensitive, alpha=level, raced=raced, resolution=resolution)
    top, is_sensitive = means == means.max(), bool(np.ptp(means) > _MARGIN)
    is_excluded = np.ones(_CELLS, dtype=bool)
    is_excluded[list(best.candidates)] = False
    is_wrong = (matters.verdict == "insensitive" and is_sensitive) or (sensitive and not is_sensitive)
    is_wrong |= bool((race.worse & top).any())
    is_wrong |= sensitive and bool((is_excluded & top & np.isfinite(values).any(1)).any())
    is_wrong |= bool((means.max() - means[list(best.within)] > _MARGIN).any())
    is_wrong |= bool(race.decided) and bool((race.tied & (np.abs(means - means[race.leader]) > _MARGIN)).any())
    truth = "sensitive" if is_sensitive else "insensitive"
    return is_wrong, bool(race.decided) and matters.verdict == truth and not is_wrong
