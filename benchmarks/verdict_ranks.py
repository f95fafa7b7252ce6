"""Measure the coverage of the bounds of Kendall's tau between two sweeps' orders, which `verdicts.py` prints."""

from collections.abc import Iterable

import numpy as np
from simulated_sweeps import KINDS, simulate

from tune_dml.stats.verdicts.ranks import RankAgreement, agree_in_rank

CASES = {"same order": (1.0, 1.0), "opposite": (1.0, -1.0), "one is flat": (1.0, 0.0), "both flat": (0.0, 0.0)}
"""Name -> slope of the values' true means in each sweep."""


def ranks(sweeps: int) -> Iterable[str]:
    """Print how often the bounds miss the true tau (0 if a sweep is flat), and how often they exclude 0."""
    number = max(40, sweeps // 20)
    yield f"Kendall's tau of two sweeps, 6 values, {number} pairs: the bounds miss the true tau / exclude 0, by noise"
    for seeds in (3, 5, 10):
        for step in (0.5, 2.0):
            for case, (first, second) in CASES.items():
                row = []
                for index, kind in enumerate(KINDS[:-1]):  # values with a lost trial are left out
                    rng = np.random.default_rng([seeds, index])
                    first_noise, second_noise = (simulate(kind, 6, seeds, number, rng) for _ in range(2))
                    truth = step * np.arange(6)[:, None]
                    tables = zip(first_noise + first * truth, second_noise + second * truth, strict=True)
                    row.append(f"{kind} {_rates([agree_in_rank(*pair) for pair in tables], first * second)}")
                yield f"{seeds:3d} seeds, {step:g} s.d. a step, {case:>12}:  " + "   ".join(row)


def _rates(found: list[RankAgreement], truth: float) -> str:
    missed = np.mean([not bounds.low <= truth <= bounds.high for bounds in found])
    return f"{missed:.3f}/{np.mean([bounds.low > 0 or bounds.high < 0 for bounds in found]):.2f}"
