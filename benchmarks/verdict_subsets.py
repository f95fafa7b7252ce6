"""Error rates of a knob's table beside other cells, and if trials fail because of their results."""

import math
from collections.abc import Iterable

import numpy as np
from simulated_sweeps import rate, simulate

from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import half_widths


def own_noise(sweeps: int) -> Iterable[str]:
    """Print false claims and power of a knob's table with the noise of its values, and with that of all cells."""
    yield "Values of a knob beside four other cells of 0.2, 1, 5 s.d.: false, found (one 6/sqrt(n) s.d. off)"
    for cells in (2, 3, 5):
        for seeds in (3, 5, 10):
            for kind in ("iid", "t3", "one cell 5x", "slope"):
                rng = np.random.default_rng([cells, seeds])
                knob = simulate(kind, cells, seeds, sweeps, rng, seed_sd=0)
                row = [_false_and_found(knob, knob)]
                for size in (0.2, 1, 5):
                    others = size * rng.standard_normal((sweeps, 4, seeds))
                    row.append(_false_and_found(np.concatenate([knob, others], 1), knob))
                yield f"{cells:3d} {seeds:3d} {kind:>12}:  own {row[0]}   all {'   '.join(row[1:])}"


def _false_and_found(fitted: np.ndarray, knob: np.ndarray) -> str:
    """Return how often a knob's table claims a difference with the noise of the `fitted` cells."""
    cells, seeds = knob.shape[-2:]
    reach = half_widths(fit_pairs(fitted), 0.05, cells * (cells - 1) // 2)[..., :cells, :cells]
    means = knob.mean(-1)
    moved = means + 6 / math.sqrt(seeds) * (np.arange(cells) == 0)
    false, found = (
        (np.abs(mean[..., None] - mean[..., None, :]) - reach > 1e-9).any((-2, -1)) for mean in (means, moved)
    )
    return f"{rate(false)} {np.mean(found):.2f}"
