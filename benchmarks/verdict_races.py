"""What races cost beside uniform allocation, and how often their final verdicts are wrong; `verdicts.py` prints it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from simulated_sweeps import KINDS, Array, rate, simulate

from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.looks import race_level
from tune_dml.stats.sequential.racing import RaceState, next_look, standing

DEMO = (56.4, 56.0, 65.9, 75.5, 76.8, 76.1)


@dataclass(frozen=True)
class Cost:
    """What a race (or uniform allocation) costs, and what it says wrongly."""

    trials: float
    decided: float
    wrong: float
    missed: float
    """Some interval that a report then prints misses its true difference."""


def run_race(
    means: Array, noise: Array, *, racing: bool, pairs: bool = False, margin: float = 1.0, most: int | None = None
) -> Cost:
    """Play sweeps, (sweeps, cells, seeds) of noise, until every cell is settled or the seeds are spent.

    `pairs`: every cell is judged by the intervals of all pairs, as a report of an extended sweep is.
    """
    numbers, (sweeps, cells, available) = means[:, None] + noise, noise.shape
    most = most or available
    seen = np.full_like(numbers, np.nan)
    runs, used = np.ones((sweeps, cells), dtype=bool), np.zeros(sweeps)
    wrong, missed, decided = (np.zeros(sweeps, dtype=bool) for _ in range(3))
    going, state, seeds, at = np.arange(sweeps), None, 0, []
    while len(going) and seeds < most:
        ahead = min(most, next_look(seeds))
        seen[going, :, seeds:ahead] = np.where(runs[going][..., None], numbers[going, :, seeds:ahead], np.nan)
        used[going] += runs[going].sum(1) * (ahead - seeds)
        seeds = ahead
        at.append(seeds)
        level = race_level(at, planned=most)
        state = standing(seen[going][..., :seeds], margin, level, state)
        if pairs:
            state = _by_all_pairs(state, margin)
        gap = means[state.leader][:, None] - means
        false = (state.worse & (means == means.max())) | (state.tied & (np.abs(gap) > margin))
        done = state.decided
        flat = done & ~state.matters
        wrong[going] |= false.any(1) | (state.matters & (np.ptp(means) <= margin)) | (flat & (np.ptp(means) > margin))
        ends = done | (seeds == most)
        if ends.any():
            missed[going[ends]] = _misses(seen[going[ends]][..., :seeds], means, level, _some(state, ends))
        decided[going[done]] = True
        runs[going] = state.runs if racing else True
        if pairs:  # nothing is settled before all is, so every difference goes on sharing the error
            state = replace(state, worse=np.zeros_like(state.worse), tied=np.zeros_like(state.tied))
        state, going = _some(state, ~done), going[~done]
    return Cost(float(used.mean()), float(decided.mean()), float(wrong.mean()), float(missed.mean()))


def _some(state: RaceState, kept: Array) -> RaceState:
    return RaceState(*(getattr(state, field.name)[kept] for field in fields(state)))


def _misses(values: Array, means: Array, level: float, state: RaceState) -> Array:
    """Whether an interval of a report is wrong: those of its own look, narrowed by the race's."""
    found, true = all_pairs(values, level), means[:, None] - means
    low, high = np.maximum(found.low, state.low), np.minimum(found.high, state.high)
    return np.asarray(((low > true + 1e-9) | (high < true - 1e-9)).any((1, 2)))


def _by_all_pairs(state: RaceState, margin: float) -> RaceState:
    """The same, "tied" by the simultaneous intervals too."""
    at = state.leader[:, None, None]
    behind = np.take_along_axis(state.high, at, 1)[:, 0]
    ahead = -np.take_along_axis(state.low, at, 1)[:, 0]
    return replace(state, tied=~state.worse & (behind < margin) & (ahead < margin))


def race(sweeps: int) -> Iterable[str]:
    """Trials until every cell is settled, racing against uniform allocation; false final verdicts."""
    few = max(60, sweeps // 10)
    x = np.linspace(-1, 1, 18)
    yield f"Trials until settled (at most 200 seeds, margin 1, {few} sweeps): race; uniform allocation judged by all pairs, as a"
    yield "sweep that is extended, ratio (goal), and judged by the race's rule, ratio; decided; wrong final verdicts of the race"
    for name, means, sd, goal in (
        ("demo's curve, s.d. 2.06", np.array(DEMO), 2.06, 0.45),
        ("demo's curve, s.d. 1", np.array(DEMO), 1.0, 0.45),
        ("18 cells, 6 deep", -6 * x**2, 1.0, 0.35),
        ("18 cells, 3 deep", -3 * x**2, 1.0, 0.35),
        ("18 cells, flat", 0 * x, 1.0, 0.7),
        ("6 cells at the margin", np.array([0.0, 0, 0, 0, 0, 1.0]), 1.0, 1.0),
    ):
        noise = sd * simulate("iid", len(means), 200, few, np.random.default_rng(0))
        ours = run_race(means, noise, racing=True)
        extended = run_race(means, noise, racing=False, pairs=True)
        same = run_race(means, noise, racing=False)
        yield (
            f"{name:>24}: {ours.trials:6.0f}; {extended.trials:6.0f}  {ours.trials / extended.trials:.2f} ({goal}); "
            f"{same.trials:6.0f}  {ours.trials / same.trials:.2f};  {ours.decided:.2f}  {rate(np.full(few, ours.wrong))}"
        )
    yield f"Wrong final verdicts / some interval of the report after it wrong; races to at most 60 seeds, {4 * few} each"
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
            numbers = 0.5 * simulate(kind, len(means), 60, 4 * few, np.random.default_rng(1))
            cost = run_race(means, numbers, racing=True)
            row.append(f"{kind} {rate(np.full(4 * few, cost.wrong))}/ {rate(np.full(4 * few, cost.missed))}")
        yield f"{name:>24}: " + "  ".join(row)
