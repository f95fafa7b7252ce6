"""Count false claims of two looks at a sweep, before and after failed trials ran again, which `verdicts.py` prints."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from simulated_sweeps import KINDS, Array, rate, simulate

from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.looks import level_left

_FAILED = 0.3
"""Share of trials that failed at the first look."""


def retries(sweeps: int) -> Iterable[str]:
    """Print how often either look at equal cells claims a difference."""
    yield "Equal cells, 30 % of the trials failed at the first look, none at the second: any claim at either look,"
    yield "if trials fail by chance / if the worst trials of each seed fail"
    for cells in (3, 6, 18):
        for seeds in (3, 5, 10):
            row = []
            for index, kind in enumerate(KINDS):
                rng = np.random.default_rng([cells, seeds, index])
                whole = simulate(kind, cells, seeds, sweeps, rng)
                ranks = (rng.random(whole.shape), whole)
                row.append(f"{kind} {' / '.join(rate(_claims(whole, rank)) for rank in ranks)}")
            yield f"{cells:3d} cells {seeds:3d} seeds:  " + "   ".join(row)


def _claims(whole: Array, rank: Array) -> Any:
    """Return which sweeps claim a difference if the trials with the lowest ranks of each seed fail at first."""
    seeds = whole.shape[-1]
    partial = np.where(np.argsort(np.argsort(rank, 1), 1) < round(_FAILED * whole.shape[1]), np.nan, whole)
    first = seeds * float(np.isfinite(partial).mean())
    levels = [level_left(looks, planned=seeds) for looks in ([first], [first, seeds])]
    looks = zip((partial, whole), levels, strict=True)
    return np.asarray([(all_pairs(values, level).low > 0).any((1, 2)) for values, level in looks]).any(0)
