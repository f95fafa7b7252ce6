"""False claims of a sweep that is looked at while trials have failed, and once more with them; `verdicts.py` prints it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import KINDS, Array, rate, simulate

from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.looks import level_left

_FAILED = 0.3
"""Share of the trials."""


def retries(sweeps: int) -> Iterable[str]:
    """Nothing differs: a claim at either look."""
    yield "Equal cells, 30 % of the trials failed at the first look, none at the second: claims of any difference at either,"
    yield "where trials fail by chance / where each seed's worst ones do"
    for cells in (3, 6, 18):
        for seeds in (3, 5, 10):
            row = []
            for place, kind in enumerate(KINDS):
                rng = np.random.default_rng([cells, seeds, place])
                whole = simulate(kind, cells, seeds, sweeps, rng)
                by = (rng.random(whole.shape), whole)
                row.append(f"{kind} {' / '.join(rate(_claims(whole, ranked)) for ranked in by)}")
            yield f"{cells:3d} cells {seeds:3d} seeds:  " + "   ".join(row)


def _claims(whole: Array, ranked: Array) -> NDArray[np.bool_]:
    """Of tables (sweeps, cells, seeds), of which those trials fail first that are ranked lowest under their seed."""
    seeds = whole.shape[-1]
    begun = np.where(np.argsort(np.argsort(ranked, 1), 1) < round(_FAILED * whole.shape[1]), np.nan, whole)
    first = seeds * float(np.isfinite(begun).mean())
    levels = [level_left(looks, planned=seeds) for looks in ([first], [first, seeds])]
    looked = zip((begun, whole), levels, strict=True)
    return np.any([(all_pairs(values, level).low > 0).any((1, 2)) for values, level in looked], 0)
