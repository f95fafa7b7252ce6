"""Compare races with uniform allocation, and measure error rates of their verdicts, which `verdicts.py` prints."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from simulated_sweeps import KINDS, Array, rate, simulate

from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.looks import race_level
from tune_dml.stats.sequential.racing import RaceState, judge_race, next_look

DEMO = (56.4, 56.0, 65.9, 75.5, 76.8, 76.1)


@dataclass(frozen=True)
class RaceCost:
    """Mean cost and error rates of races, or of uniform allocation."""

    trials: float
    decided: float
    wrong: float
    missed: float
    """Share of races whose report has an interval that misses its true difference."""


def run_race(
    means: Array, noise: Array, *, racing: bool, pairs: bool = False, margin: float = 1.0, limit: int | None = None
) -> RaceCost:
    """Run sweeps with noise (sweeps, cells, seeds) until every cell is settled or the seeds are used up.

    If `pairs`, judge every cell by the intervals of all pairs, as the report of an extended sweep does.
    """
    numbers, (sweeps, cells, available) = means[:, None] + noise, noise.shape
    limit = limit or available
    observed = np.full_like(numbers, np.nan)
    runs, used = np.ones((sweeps, cells), dtype=bool), np.zeros(sweeps)
    wrong, missed, decided = (np.zeros(sweeps, dtype=bool) for _ in range(3))
    open_races, state, seeds, looks = np.arange(sweeps), None, 0, []
    while len(open_races) and seeds < limit:
        ahead = min(limit, next_look(seeds))
        observed[open_races, :, seeds:ahead] = np.where(
            runs[open_races][..., None], numbers[open_races, :, seeds:ahead], np.nan
        )
        used[open_races] += runs[open_races].sum(1) * (ahead - seeds)
        seeds = ahead
        looks.append(seeds)
        level = race_level(looks, planned=limit)
        state = judge_race(observed[open_races][..., :seeds], margin, level, state)
        if pairs:
            state = _judge_by_all_pairs(state, margin)
        gap = means[state.leader][:, None] - means
        false = (state.worse & (means == means.max())) | (state.tied & (np.abs(gap) > margin))
        decided_now = state.decided
        flat = decided_now & ~state.matters
        wrong[open_races] |= (
            false.any(1) | (state.matters & (np.ptp(means) <= margin)) | (flat & (np.ptp(means) > margin))
        )
        ends = decided_now | (seeds == limit)
        if ends.any():
            final = open_races[ends]
            missed[final] = _misses(observed[final][..., :seeds], means, level, select_sweeps(state, ends))
        decided[open_races[decided_now]] = True
        runs[open_races] = state.runs if racing else True
        if pairs:  # every difference shares the error until all cells are settled
            state = replace(state, worse=np.zeros_like(state.worse), tied=np.zeros_like(state.tied))
        state, open_races = select_sweeps(state, ~decided_now), open_races[~decided_now]
    return RaceCost(float(used.mean()), float(decided.mean()), float(wrong.mean()), float(missed.mean()))


def select_sweeps(state: RaceState, selection: Any) -> RaceState:
    """Return the state of the sweeps at an index or mask."""
    return RaceState(*(getattr(state, field.name)[selection] for field in fields(state)))


def _misses(values: Array, means: Array, level: float, state: RaceState) -> Array:
    """Return whether a report has a wrong interval. Its intervals are those of look and race together."""
    found, true = all_pairs(values, level), means[:, None] - means
    low, high = np.maximum(found.low, state.low), np.minimum(found.high, state.high)
    return np.asarray(((low > true + 1e-9) | (high < true - 1e-9)).any((1, 2)))


def _judge_by_all_pairs(state: RaceState, margin: float) -> RaceState:
    """Return the state with ties judged by the simultaneous intervals."""
    at = state.leader[:, None, None]
    behind = np.take_along_axis(state.high, at, 1)[:, 0]
    ahead = -np.take_along_axis(state.low, at, 1)[:, 0]
    return replace(state, tied=~state.worse & (behind < margin) & (ahead < margin))


def race(sweeps: int) -> Iterable[str]:
    """Print the trials of races and of uniform allocation, and false final verdicts."""
    draws = max(60, sweeps // 10)
    x = np.linspace(-1, 1, 18)
    yield f"Trials until settled (at most 200 seeds, margin 1, {draws} sweeps): race; uniform allocation judged by all"
    yield "pairs, ratio (goal); judged by the race's rule, ratio; share decided; wrong final verdicts of the race"
    for name, means, sd, goal in (
        ("demo's curve, s.d. 2.06", np.array(DEMO), 2.06, 0.45),
        ("demo's curve, s.d. 1", np.array(DEMO), 1.0, 0.45),
        ("18 cells, 6 deep", -6 * x**2, 1.0, 0.35),
        ("18 cells, 3 deep", -3 * x**2, 1.0, 0.35),
        ("18 cells, flat", 0 * x, 1.0, 0.7),
        ("6 cells at the margin", np.array([0.0, 0, 0, 0, 0, 1.0]), 1.0, 1.0),
    ):
        noise = sd * simulate("iid", len(means), 200, draws, np.random.default_rng(0))
        ours = run_race(means, noise, racing=True)
        by_pairs = run_race(means, noise, racing=False, pairs=True)
        uniform = run_race(means, noise, racing=False)
        yield (
            f"{name:>24}: {ours.trials:6.0f}; {by_pairs.trials:6.0f}  {ours.trials / by_pairs.trials:.2f} ({goal}); "
            f"{uniform.trials:6.0f}  {ours.trials / uniform.trials:.2f};  {ours.decided:.2f}  "
            f"{rate(np.full(draws, ours.wrong))}"
        )
    yield f"Wrong final verdicts / a wrong interval in the report; races to at most 60 seeds, {4 * draws} each"
    for name, means in (
        ("17 equal, one 3 below", np.array([0.0] * 17 + [-3])),
        ("17 at 1.05 below one", np.array([0.0] + [-1.05] * 17)),
        ("9 at 1.05, 8 at 4 below", np.array([0.0] + [-1.05] * 9 + [-4.0] * 8)),
        ("one at the margin", np.array([0.0] * 5 + [1.0])),
        ("six over 1.02", np.linspace(0, 1.02, 6)),
        ("six over 1.1", np.linspace(0, 1.1, 6)),
        ("flat", np.zeros(6)),
    ):
        row = []
        for kind in KINDS:
            numbers = 0.5 * simulate(kind, len(means), 60, 4 * draws, np.random.default_rng(1))
            cost = run_race(means, numbers, racing=True)
            row.append(f"{kind} {rate(np.full(4 * draws, cost.wrong))}/ {rate(np.full(4 * draws, cost.missed))}")
        yield f"{name:>24}: " + "  ".join(row)
