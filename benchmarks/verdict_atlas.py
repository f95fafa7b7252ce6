"""Measure false pages of an atlas whose values are unequally noisy, which `verdicts.py` prints."""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.atlas import Estimate, effects_of_values

_KINDS = ("iid", "t3", "one cell 5x", "noisy default", "slope", "one collapses")
_VALUES = 15  # of each loss, with its default
_GAIN = 4.0


def atlas(sweeps: int) -> Iterable[str]:
    """Print how often any interval of an atlas of flat knobs excludes 0, and how often a gain of 4 s.d. is found."""
    pages = max(60, sweeps // 10)
    yield f"Atlases of flat knobs, {_VALUES} values a loss, {pages} pages: any interval excludes 0 / one gain of 4 found"
    for losses, seeds in ((1, 5), (10, 3), (10, 5), (10, 10), (30, 5)):
        row = []
        for index, kind in enumerate(_KINDS):
            rng = np.random.default_rng([losses, seeds, index])
            false, found = [], []
            for _ in range(pages):
                tables = _draw(kind, losses, seeds, rng)
                false.append(any(map(_excludes_zero, chain(*_judge(tables)))))
                tables[0, 1] += _GAIN
                found.append(_judge(tables)[0][1].low > 0)
            row.append(f"{kind} {rate(np.array(false))} / {np.mean(found):.2f}")
        yield f"{losses:3d} losses {seeds:2d} seeds:  " + "   ".join(row)


def _draw(kind: str, losses: int, seeds: int, rng: np.random.Generator) -> Array:
    tables = simulate(kind, _VALUES, seeds, losses, rng)
    if kind == "noisy default":
        tables[:, 0] += np.sqrt(24) * rng.standard_normal((losses, seeds))
    return tables


def _judge(tables: Array) -> list[list[Estimate]]:
    return effects_of_values(list(tables), len(tables) * (_VALUES - 1))


def _excludes_zero(effect: Estimate) -> bool:
    return effect.low > 0 or effect.high < 0
