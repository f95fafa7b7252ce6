"""Every verdict under noise that is heavy, unequal or skewed; `verdicts.py` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import TAILS, Array, rate, simulate

from tune_dml.stats.intervals.contrasts import estimate_contrasts, main_effect
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most
from tune_dml.stats.intervals.tuned import TunedLevels
from tune_dml.stats.verdicts.best import compare_with_best
from tune_dml.stats.verdicts.equivalence import judge_equivalence
from tune_dml.stats.verdicts.selection import score_of_best

_MARGIN = 3.0
_Wrong = Callable[[Array], NDArray[np.bool_]]
"""Equal cells (sweeps, cells, seeds) -> in which sweeps a verdict is wrong; it may shift cells first."""


def tails(sweeps: int) -> Iterable[str]:
    """Wrong verdicts, each at 5 %."""
    yield "Wrong verdicts under heavy, unequal, skewed noise, trial s.d. 1 (the noisy cell 5); goal 5 % + two errors"
    yield f"{'':>32}  " + "  ".join(f"{kind:>14}" for kind in TAILS)
    for name, wrong in WRONG.items():
        for cells in (2, 6):
            for seeds in (3, 5, 10):
                row = []
                for place, kind in enumerate(TAILS):
                    values = simulate(kind, cells, seeds, sweeps, np.random.default_rng([cells, seeds, place]))
                    row.append(rate(wrong(values)))
                yield f"{name:>18} {cells} cells {seeds:2d}  " + "  ".join(f"{text:>14}" for text in row)


def _shifted(values: Array, gap: float) -> Array:
    """The middle cell, which is the odd one where one is, moved by `gap`."""
    moved = values.copy()
    moved[:, values.shape[1] // 2] += gap
    return moved


def _edge(values: Array) -> NDArray[np.bool_]:
    """The first and the middle cell are the best together, the others far off: neither is alone at the top."""
    moved = values - 30.0
    moved[:, [0, values.shape[1] // 2]] += 30.0
    return np.asarray(compare_with_best(moved).alone.any(1))


def _tuned(values: Array) -> NDArray[np.bool_]:
    """Each cell is a nuisance setting of one of two levels of a knob (of the one cell of each, where there are two)."""
    half = values.shape[1] // 2
    return np.asarray((TunedLevels(values, (0,) * half + (1,) * half).pairs().low > 0).any((1, 2)))


def _outside(low: Array, high: Array, truth: float = 0.0) -> NDArray[np.bool_]:
    return np.asarray((low > truth + 1e-9) | (high < truth - 1e-9))


def _score(values: Array) -> NDArray[np.bool_]:
    found = score_of_best(values)
    return _outside(found.low, found.high)


def _gain(values: Array) -> NDArray[np.bool_]:
    found = score_of_best(values, 0)
    return _outside(found.low, found.high)


def _against(values: Array) -> NDArray[np.bool_]:
    found = against(values, values.shape[1] // 2)
    return _outside(found.low, found.high).any(1)


def _main_effect(values: Array) -> NDArray[np.bool_]:
    """Two levels, the cells of the second half against those of the first."""
    half = values.shape[1] // 2
    found = estimate_contrasts(values, main_effect([0] * half + [1] * half))
    return _outside(found.low, found.high).any(1)


def _paper(gap: float, verdicts: set[str]) -> _Wrong:
    """Printed numbers without noise, `gap` off at the middle cell."""

    def wrong(values: Array) -> NDArray[np.bool_]:
        printed = [0.0] * values.shape[1]
        printed[values.shape[1] // 2] = gap
        few = values[: max(300, len(values) // 5)]
        return np.array([judge_equivalence(table, printed, _MARGIN, run_sd=0.0).verdict in verdicts for table in few])

    return wrong


WRONG: dict[str, _Wrong] = {
    "differ": lambda values: (all_pairs(values).low > 0).any((1, 2)),
    "matters": lambda values: (all_pairs(_shifted(values, _MARGIN)).low > _MARGIN).any((1, 2)),
    "does not matter": lambda values: (at_most(_shifted(values, _MARGIN)) < _MARGIN).all((1, 2)),
    "baseline": _against,
    "best left out": lambda values: ~compare_with_best(values).candidates[:, values.shape[1] // 2],
    "alone the best": _edge,
    "behind by": lambda values: compare_with_best(_shifted(values, -_MARGIN)).behind[:, values.shape[1] // 2] < _MARGIN,
    "main effect": _main_effect,
    "tuned": _tuned,
    "score of best": _score,
    "gain of best": _gain,
    "higher or lower": _paper(0.0, {"higher", "lower", "mixed"}),
    "matches": _paper(_MARGIN, {"matches"}),
    "one pair, paired t": lambda values: (all_pairs(values[:, [0, values.shape[1] // 2]]).low > 0).any((1, 2)),
}
