"""Measure error rates of every verdict under heavy, unequal or skewed noise, which `verdicts.py` prints."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import TAILS, Array, rate, simulate

from tune_dml.stats import SeedTable
from tune_dml.stats.intervals.contrasts import estimate_contrasts, main_effect
from tune_dml.stats.intervals.paired import interval_of_first, mean_interval
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most
from tune_dml.stats.intervals.tuned import TunedLevels
from tune_dml.stats.verdicts.best import compare_with_best
from tune_dml.stats.verdicts.equivalence import judge_equivalence
from tune_dml.stats.verdicts.selection import lead_of_best, score_of_best

_MARGIN = 3.0
_WrongRule = Callable[[Array], Any]
"""Function of sweeps of equal cells (sweeps, cells, seeds): it may shift cells, and returns the wrong verdicts."""


def tails(sweeps: int) -> Iterable[str]:
    """Print rates of wrong verdicts, each at 5 %."""
    yield "Wrong verdicts under heavy, unequal, skewed noise, s.d. 1 (noisy cell 5); goal 5 % + two standard errors"
    yield f"{'':>32}  " + "  ".join(f"{kind:>14}" for kind in TAILS)
    for name, wrong in WRONG.items():
        for cells in (2, 6):
            for seeds in (3, 5, 10):
                row = []
                for index, kind in enumerate(TAILS):
                    values = simulate(kind, cells, seeds, sweeps, np.random.default_rng([cells, seeds, index]))
                    row.append(rate(wrong(values)))
                yield f"{name:>18} {cells} cells {seeds:2d}  " + "  ".join(f"{text:>14}" for text in row)


def floors(sweeps: int) -> Iterable[str]:
    """Print how often a cell whose true mean is a floor's is called below the floor of the first three seeds' classes.

    Classes move cell and floor by 3 s.d.
    """
    yield "A cell as good as a floor is called below it, whose score is the mean of the first three seeds' classes: by the"
    yield "mean of all seeds / of these three (used). The effects of classes on cell and floor correlate by 0.3 or 0.8"
    for correlation in (0.3, 0.8):
        for seeds in (3, 5, 10, 20):
            row = []
            for index, kind in enumerate(TAILS):
                rng = np.random.default_rng([seeds, index])
                noise = -simulate(kind, 1, seeds, sweeps, rng, seed_sd=0.0)[:, 0]  # skewed as near 0 %
                classes, own = 3 * rng.standard_normal((2, sweeps, seeds))
                floor = correlation * classes + np.sqrt(1 - correlation**2) * own
                values = noise + classes - floor[:, :3].mean(axis=1, keepdims=True)
                table = SeedTable(tuple(map(str, range(sweeps))), tuple(range(seeds)), values)
                limits = [
                    (mean_interval(numbers).high, interval_of_first(table, i, 3).high)
                    for i, numbers in enumerate(values)
                ]
                row.append(" / ".join(rate(wrong, 0.025) for wrong in (np.array(limits) < 0).T))
            yield f"{correlation:.1f} {seeds:2d} seeds  " + "  ".join(f"{text:>15}" for text in row)


def _shift_middle(values: Array, gap: float) -> Array:
    """Return values with the middle cell, which has unusual noise, shifted by `gap`."""
    moved = values.copy()
    moved[:, values.shape[1] // 2] += gap
    return moved


def _edge(values: Array) -> NDArray[np.bool_]:
    """Return whether one of two equally good cells, far above the others, is called the only best."""
    moved = values - 30.0
    moved[:, [0, values.shape[1] // 2]] += 30.0
    return np.asarray(compare_with_best(moved).alone.any(1))


def _tuned(values: Array) -> NDArray[np.bool_]:
    """Return false claims of tuned levels: half of the cells are nuisance settings of each of two levels."""
    half = values.shape[1] // 2
    return np.asarray((TunedLevels(values, (0,) * half + (1,) * half).pairs().low > 0).any((1, 2)))


def _misses_zero(bounds: Any) -> NDArray[np.bool_]:
    return np.asarray((bounds.low > 1e-9) | (bounds.high < -1e-9))


def _main_effect(values: Array) -> NDArray[np.bool_]:
    """Return false claims of a main effect: the second half of the cells against the first."""
    half = values.shape[1] // 2
    return np.asarray(_misses_zero(estimate_contrasts(values, main_effect([0] * half + [1] * half))).any(1))


def _below_floor(values: Array) -> NDArray[np.bool_]:
    """Return whether the middle cell, whose mean is a floor's score, is called below it; skewed as near 0 %."""
    middle = -values[:, values.shape[1] // 2]
    return np.array([mean_interval(numbers).high < 0 for numbers in middle])


def _paper(gap: float, verdicts: set[str]) -> _WrongRule:
    """Return a test against exact printed numbers that are `gap` off at the middle cell."""

    def wrong(values: Array) -> NDArray[np.bool_]:
        printed = [0.0] * values.shape[1]
        printed[values.shape[1] // 2] = gap
        judged = (
            judge_equivalence(table, printed, _MARGIN, run_sd=0.0) for table in values[: max(300, len(values) // 5)]
        )
        return np.array([equivalence.verdict in verdicts for equivalence in judged])

    return wrong


WRONG: dict[str, _WrongRule] = {
    "differ": lambda values: (all_pairs(values).low > 0).any((1, 2)),
    "matters": lambda values: (all_pairs(_shift_middle(values, _MARGIN)).low > _MARGIN).any((1, 2)),
    "does not matter": lambda values: (at_most(_shift_middle(values, _MARGIN)) < _MARGIN).all((1, 2)),
    "baseline": lambda values: _misses_zero(against(values, values.shape[1] // 2)).any(1),
    "best left out": lambda values: ~compare_with_best(values).candidates[:, values.shape[1] // 2],
    "alone the best": _edge,
    "behind by": lambda values: (
        compare_with_best(_shift_middle(values, -_MARGIN)).behind[:, values.shape[1] // 2] < _MARGIN
    ),
    "main effect": _main_effect,
    "tuned": _tuned,
    "score of best": lambda values: _misses_zero(score_of_best(values)),
    "gain of best": lambda values: _misses_zero(score_of_best(values, 0)),
    "random value loses": lambda values: lead_of_best(values)[0] > 1e-9,
    "below a floor": _below_floor,
    "higher or lower": _paper(0.0, {"higher", "lower", "mixed"}),
    "matches": _paper(_MARGIN, {"matches"}),
    "one pair, paired t": lambda values: (all_pairs(values[:, [0, values.shape[1] // 2]]).low > 0).any((1, 2)),
}
