"""What races cost beside uniform allocation, and how often their final verdicts are wrong; `verdicts.py` prints it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from simulated_sweeps import KINDS, Array, rate, simulate

from tune_dml.stats.looks import level_left
from tune_dml.stats.racing import Race, next_look, standing

DEMO = (56.4, 56.0, 65.9, 75.5, 76.8, 76.1)


@dataclass(frozen=True)
class Cost:
    """What a race (or uniform allocation) costs."""

    trials: float
    decided: float
    wrong: float


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
    wrong, decided = np.zeros(sweeps, dtype=bool), np.zeros(sweeps, dtype=bool)
    going, state, seeds, at = np.arange(sweeps), None, 0, []
    while len(going) and seeds < most:
        ahead = min(most, next_look(seeds))
        seen[going, :, seeds:ahead] = np.where(runs[going][..., None], numbers[going, :, seeds:ahead], np.nan)
        used[going] += runs[going].sum(1) * (ahead - seeds)
        seeds = ahead
        at.append(seeds)
        state = standing(seen[going][..., :seeds], margin, level_left(at, planned=most), state)
        if pairs:
            state = _by_all_pairs(state, margin)
        gap = means[state.leader][:, None] - means
        false = (state.worse & (means == means.max())) | (state.tied & (np.abs(gap) > margin))
        done = state.decided
        flat = done & ~state.matters
        wrong[going] |= false.any(1) | (state.matters & (np.ptp(means) <= margin)) | (flat & (np.ptp(means) > margin))
        decided[going[done]] = True
        runs[going] = state.runs if racing else True
        names = ("low", "high", "ahead", "leader", "worse", "tied", "matters")
        state = Race(*(getattr(state, name)[~done] for name in names))
        going = going[~done]
    return Cost(float(used.mean()), float(decided.mean()), float(wrong.mean()))


def _by_all_pairs(state: Race, margin: float) -> Race:
    """The same, "tied" by the simultaneous intervals too."""
    at = state.leader[:, None, None]
    behind = np.take_along_axis(state.high, at, 1)[:, 0]
    ahead = -np.take_along_axis(state.low, at, 1)[:, 0]
    return replace(state, tied=~state.worse & (behind < margin) & (ahead < margin))


def race(sweeps: int) -> Iterable[str]:
    """Trials until every cell is settled, racing against uniform allocation; false final verdicts."""
    few = max(60, sweeps // 10)
    x = np.linspace(-1, 1, 18)
    yield f"Trials until settled (at most 200 seeds, margin 1, {few} sweeps): race; uniform allocation judged by all pairs, ratio"
    yield "(goal), and judged by the race's rule, ratio; decided; wrong final verdicts of the race"
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
    yield f"Wrong final verdicts of races to at most 60 seeds, margin 1, noise 0.5, {4 * few} races each"
    for name, means in (
        ("17 equal, one 3 below", np.array([0.0] * 17 + [-3])),
        ("one at the margin", np.array([0.0] * 5 + [1.0])),
        ("six over 1.02", np.linspace(0, 1.02, 6)),
        ("six over 1.1", np.linspace(0, 1.1, 6)),
        ("flat", np.zeros(6)),
    ):
        row = []
        for kind in KINDS:
            numbers = 0.5 * simulate(kind, len(means), 60, 4 * few, np.random.default_rng(1))
            row.append(f"{kind} {rate(np.full(4 * few, run_race(means, numbers, racing=True).wrong))}")
        yield f"{name:>24}: " + "  ".join(row)
