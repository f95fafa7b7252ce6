"""Measure error rates for metrics of unknown step (F1, NMI, a user's accuracy), which `verdicts.py` prints."""

from collections.abc import Iterable
from itertools import product

import numpy as np
from simulated_sweeps import Array, rate

from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.resolution import resolution_shown
from tune_dml.stats.intervals.simultaneous import all_pairs, at_most

_MARGIN = 1.0
_PICTURES, _CLASSES = 12, 3
_SLIPS = np.array([0.2, 0.5, 0.8])
"""Mean numbers of pictures in a wrong cluster; each costs about 17 points of F1."""


def estimated_step(sweeps: int) -> Iterable[str]:
    """Print error rates and power without a step, and with the step estimated from the numbers."""
    draws = max(100, sweeps // 4)
    yield "A difference claimed of equal cells; 'does not matter' claimed of a cell one margin off; a cell 6/sqrt(n)"
    yield "s.d. off found. No step / the step estimated from the numbers"
    for kind, cells, seeds in product(
        ("continuous", "rare ties", "1 of 10", "3 of 50", "seldom", "F1"), (2, 5), (2, 3, 5)
    ):
        columns = []
        for gap in (0.0, _MARGIN, "far"):
            tables = _simulate(kind, cells, seeds, draws, gap)
            hits = np.array(
                [[_claims(table, step, gap) for step in (0.0, resolution_shown(table.tolist()))] for table in tables]
            )
            columns.append(
                " / ".join(rate(hits[:, rule]) if gap != "far" else f"{hits[:, rule].mean():.2f}" for rule in (0, 1))
            )
        yield f"{kind:>10} {cells} cells {seeds} seeds:  " + "   ".join(columns)


def _claims(table: Array, step: float, gap: float | str) -> bool:
    noise = fit_pairs(table, step)
    if gap == _MARGIN:
        return bool((at_most(table, 0.05, noise) < _MARGIN).all())
    return bool((all_pairs(table, 0.05, noise).low > 0).any())


def _simulate(kind: str, cells: int, seeds: int, sweeps: int, gap: float | str) -> Array:
    """Return (sweeps, cells, seeds) with the last cell `gap` points off; "far" is 6 / sqrt(seeds) s.d."""
    rng, shape = np.random.default_rng([cells, seeds, len(kind)]), (sweeps, cells, seeds)
    if kind == "F1":
        return _f1(rng, shape, gap)
    if kind in {"continuous", "rare ties"}:
        values = 60 + rng.standard_normal(shape) + rng.standard_normal((sweeps, 1, seeds))
        values[:, -1] += 6 / seeds**0.5 if isinstance(gap, str) else gap
        tied = rng.random(shape) < 0.03 * (kind == "rare ties")
        tied[..., 0] = False
        return np.asarray(np.where(tied, values[..., :1], values))
    step, flipping, chance = {"1 of 10": (10, 1, 0.5), "3 of 50": (2, 3, 0.5), "seldom": (10, 1, 0.0)}[kind]
    off = 6 / seeds**0.5 * step * (flipping * 0.25) ** 0.5 if isinstance(gap, str) else gap
    chances = np.full((cells, 1), chance)
    chances[-1] = min(1.0, chance + off / (step * flipping))
    return np.asarray(60 + step * rng.binomial(flipping, chances, shape), dtype=np.float64)


def _f1(rng: np.random.Generator, shape: tuple[int, int, int], gap: float | str) -> Array:
    """Return pairwise F1 [%] of clusterings with a Poisson number of pictures in a wrong cluster."""
    truth = np.arange(_CLASSES).repeat(_PICTURES // _CLASSES)
    upper = np.triu_indices(_PICTURES, 1)
    same = (truth[:, None] == truth)[upper]
    slips = np.full(shape, _SLIPS[0])
    slips[:, -1] = _SLIPS[0] if gap == 0 else _SLIPS[2] if isinstance(gap, str) else _SLIPS[0] + gap / 17
    wrong = np.minimum(rng.poisson(slips), _PICTURES)
    scores = np.empty(shape)
    for at, count in np.ndenumerate(wrong):
        found = truth.copy()
        moved = rng.choice(_PICTURES, count, replace=False)
        found[moved] = (found[moved] + rng.integers(1, _CLASSES, count)) % _CLASSES
        together = (found[:, None] == found)[upper]
        scores[at] = 200 * (together & same).sum() / (together.sum() + same.sum())
    return scores
