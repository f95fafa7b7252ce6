"""Error levels of the looks at a growing sweep, by a group-sequential rule.

If every look at a sweep used the whole 5 %, extending the sweep until a verdict is reached would cause too many false
claims. At n seeds, all looks together may have spent (Lan and DeMets 1983)

    spent(n) = alpha 0.8 n / N                     up to N, the number of seeds planned before the first look
    spent(n) = alpha (1 - 0.2 (N / n)^3)           beyond N

Looks at one growing sweep share most of their data, so a false claim at the second look was often made at the first one
already. The level of a look is therefore larger than its increase of `spent`: it solves

    P(|Z_k| > z(level_k / 2), no earlier look claims) = spent(n_k) - spent(n_(k-1))

for standard normal Z with correlation sqrt((n_j - 1/2) / (n_k - 1/2)), by the recursion of Armitage, McPherson and Rowe
(1969). The half seed accounts for the uncertain variance of a t test with few seeds. The half seed and the power of 3
were chosen by simulation (benchmarks/verdict_looks.py). If new cells were added before a look, no earlier look has seen
them: the level is then the increase of `spent` (union bound).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np

from tune_dml.stats.distributions import normal_isf, normal_pdf, normal_sf, root
from tune_dml.stats.intervals import Array

_PLANNED_SHARE = 0.8
_POWER = 3
_VARIANCE_SEEDS = 0.5
"""Seeds subtracted from each look in the correlation of two looks, for the estimated variance of a t test."""
_NODES = 400
_MIN_NEW_SHARE = 1e-3  # minimum share of new information at a look; narrower kernels would need more nodes


def level_left(looks: Sequence[float], *, planned: float, alpha: float = 0.05, grown: Collection[int] = ()) -> float:
    """Return the error level of the last look.

    Args:
        looks: mean seeds per cell at each look, in order of time. A look without new seeds has the level of the look
            before it.
        planned: seeds per cell that were planned before the first look.
        alpha: the error that all looks may spend together.
        grown: positions of the looks before which cells were added.

    Raises:
        ValueError: without looks, or if `planned` is below one seed.
    """
    if not looks:
        raise ValueError("`looks` must contain at least the current look")
    if planned < 1:
        raise ValueError(f"`planned >= 1` must hold, but got {planned=}")
    distinct: list[tuple[float, bool]] = []
    for position, seeds in enumerate(looks):
        if seeds > (distinct[-1][0] if distinct else 0.0):
            distinct.append((float(seeds), position in grown))
    return _look(tuple(distinct), float(planned), alpha).level if distinct else 0.0


def race_level(looks: Sequence[float], *, planned: float) -> float:
    """Return the error level of the last look of a race: its increase of the error spent.

    A race gives the share of settled cells to the others, so the levels of a comparison at two looks are not those of
    one group-sequential test. With the larger levels of `level_left`, wrong verdicts rose from 4 to 7 %
    (benchmarks/verdict_races.py).
    """
    return level_left(looks, planned=planned, grown=range(len(looks)))


def error_spent(looks: Sequence[float], *, planned: float, alpha: float = 0.05) -> float:
    """Return the error that all looks have spent together."""
    return _spent(max([0.0, *looks]), planned, alpha)


_gauss_legendre = cache(np.polynomial.legendre.leggauss)


@dataclass(frozen=True, eq=False)
class _Look:
    """A look: its level, and the density of its test statistic given that no look has made a claim."""

    level: float
    limit: float
    before: _Look | None = None
    known: float = 0.0  # share of this look's information that the look before it already had

    @cached_property
    def density(self) -> tuple[Array, Array]:
        """Return nodes on (-limit, limit) and the probability at each."""
        unit, weights = _gauss_legendre(_NODES)
        nodes = self.limit * unit
        if self.before is None:
            return nodes, self.limit * weights * normal_pdf(nodes)
        earlier_nodes, mass = self.before.density
        spread = np.sqrt(1 - self.known)
        kernel = normal_pdf((nodes[:, None] - np.sqrt(self.known) * earlier_nodes) / spread)
        return nodes, self.limit * weights * (kernel @ mass / spread)


@lru_cache(maxsize=512)
def _look(looks: tuple[tuple[float, bool], ...], planned: float, alpha: float) -> _Look:
    """Return the last of `looks`; each is (seeds, whether cells were added before it), in order of time."""
    (seeds, grown), earlier = looks[-1], looks[:-1]
    share = _spent(seeds, planned, alpha) - (_spent(earlier[-1][0], planned, alpha) if earlier else 0.0)
    if not earlier or grown:
        return _Look(share, normal_isf(share / 2))
    before = _look(earlier, planned, alpha)
    known = max(earlier[-1][0] - _VARIANCE_SEEDS, 0.0) / max(seeds - _VARIANCE_SEEDS, 1e-9)
    known = min(known, 1 - _MIN_NEW_SHARE)
    nodes, mass = before.density
    centre, spread = np.sqrt(known) * nodes, np.sqrt(1 - known)

    def excess(limit: float) -> float:
        beyond = normal_sf((limit - centre) / spread) + normal_sf((limit + centre) / spread)
        return float(mass @ beyond) - share

    limit = root(excess, 0.0, 40.0, 1e-9)
    return _Look(float(2 * normal_sf(limit)), limit, before, known)


def _spent(seeds: float, planned: float, alpha: float) -> float:
    if seeds <= planned:
        return alpha * _PLANNED_SHARE * seeds / planned
    return alpha * (1 - (1 - _PLANNED_SHARE) * (planned / seeds) ** _POWER)
