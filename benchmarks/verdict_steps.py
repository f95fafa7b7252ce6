"""Measure error rates with few queries, where R@1 moves in steps and seeds tie, which `verdicts.py` prints."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
from simulated_sweeps import Array, rate

from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import all_pairs, at_most

_MARGIN = 1.0


def steps(sweeps: int) -> Iterable[str]:
    """Print claims about equal cells, cells one margin apart and cells far apart."""
    yield "R@1 of q queries, margin 1 point, h = 100 / q. Smallest variance 0 / h^2/12 (rounding) / h^2/4 (ours): a"
    yield "difference claimed of equal cells; 'does not matter' claimed of a cell one margin off; a cell 6/sqrt(n) s.d."
    yield "off found. 5 % and 30 % flip: this share of queries is right half of the time, the others never change."
    yield "Rounded: continuous R@1 of s.d. 0.5 points within seeds, rounded to a step; gaps are those before rounding"
    for cells, queries in product((2, 5), (8, 20, 50, 358, 5924)):
        for kind, seeds in product(("5 % flip", "30 % flip", "rounded"), (2, 3, 4, 5, 8)):
            rates = _rates(QuerySweeps(kind, cells, queries, seeds), sweeps)
            yield f"{cells} cells {queries:5d} queries {kind:>9} {seeds} seeds:  {rates}"
    yield from _worst_margin(sweeps)


def _worst_margin(sweeps: int) -> Iterable[str]:
    """Print the largest rate of false 'does not matter' over margins, for a difference of exactly the margin."""
    yield "False 'does not matter', the worst of margins of 0.1 to 3 steps; the true difference is the margin. One"
    yield "neighbour: one cell has two adjacent numbers; two: both cells; failures: Poisson counts in one cell, else 0"
    rng = np.random.default_rng(0)
    for kind, largest in (("one neighbour", 1.0), ("two neighbours", 2.0), ("failures", math.inf)):
        for seeds in (3, 4, 5, 6, 8, 10, 12):
            wrong = np.zeros(3)
            for margin in np.concatenate([np.arange(1, 10), np.arange(10, 32, 4)]) / 10:
                if margin >= largest:
                    break
                shape = (sweeps, 2, seeds)
                chances = {"one neighbour": np.array([[0], [margin]]), "two neighbours": np.full((2, 1), margin / 2)}
                values = rng.binomial(1, chances[kind], shape) if kind in chances else rng.poisson(margin, shape)
                values = values * (np.array([[-1], [1]]) if kind == "two neighbours" else np.array([[0], [1]]))
                claims = [at_most(values, 0.05, fit_pairs(values, h)) < margin for h in (0.0, 1 / math.sqrt(3), 1.0)]
                wrong = np.maximum(wrong, [claim.all((1, 2)).mean() for claim in claims])
            yield f"{kind:>14} {seeds:2d} seeds:  " + " / ".join(f"{share:.3f}" for share in wrong)


def near_limits(sweeps: int) -> Iterable[str]:
    """Print claims near 0 and 100 %: a seed moves the log odds of a hit, for all cells (s.d. 0.5) and each (0.3)."""
    yield "R@1 near a limit: a difference claimed of equal cells / 'does not matter' although one cell has 2.2 times as"
    yield "many errors, which is exactly what matters; alike for hits near 0 %. 70 % of the queries are alike for all cells"
    for cells, queries, share in product((2, 5), (50, 358), (0.98, 0.995)):
        row = []
        for seeds in (3, 5, 10):
            rng = np.random.default_rng([cells, queries, seeds])
            chances = np.full(cells, 1 - share)
            equal = _near_limit(chances, queries, seeds, sweeps, rng)
            chances[0] *= 2.2
            gap = float(np.diff(_near_limit(chances[[1, 0]], 1000, 1, 20_000, rng).mean((0, 2)))[0])
            values = _near_limit(chances, queries, seeds, sweeps, rng)
            claimed = (all_pairs(equal, 0.05, fit_pairs(equal, 100 / queries)).low > 0).any((1, 2))
            flat = (at_most(values, 0.05, fit_pairs(values, 100 / queries)) < gap).all((1, 2))
            row.append(f"{seeds} seeds {rate(claimed)} / {rate(flat)}")
        yield f"{cells} cells {queries:4d} queries {100 * share:5.1f} %:  " + "   ".join(row)


def _near_limit(chances: Array, queries: int, seeds: int, sweeps: int, rng: np.random.Generator) -> Array:
    """Return the percentages of rare outcomes, (sweeps, cells, seeds)."""
    shape = (sweeps, len(chances), seeds)
    odds = np.log(chances / (1 - chances))[:, None] + 0.3 * rng.standard_normal(shape)
    rates = 1 / (1 + np.exp(-(odds + 0.5 * rng.standard_normal((sweeps, 1, seeds)))))
    alike = round(0.7 * queries)
    common = rng.binomial(alike, rates.min(1, keepdims=True))  # queries that fail in all cells
    excess = (rates - rates.min(1, keepdims=True)) / (1 - rates.min(1, keepdims=True))
    alone = rng.binomial(alike - common, excess) + rng.binomial(queries - alike, rates)
    return np.asarray(100 * (common + alone) / queries)


@dataclass(frozen=True)
class QuerySweeps:
    """Simulated sweeps of a number of queries."""

    kind: str
    cells: int
    queries: int
    seeds: int

    @property
    def step(self) -> float:
        """Change of R@1 by one query."""
        return 100 / self.queries

    @property
    def flipping(self) -> int:
        """Number of queries that are right half of the time."""
        return max(1, round({"5 % flip": 0.05, "30 % flip": 0.3, "rounded": 0.0}[self.kind] * self.queries))

    @property
    def spread(self) -> float:
        """Standard deviation of a trial within seeds."""
        return 0.5 if self.kind == "rounded" else self.step * math.sqrt(self.flipping) / 2

    def values(self, count: int, gap: float) -> Array:
        """Return (count, cells, seeds) with the last cell `gap` points better, or as near as possible."""
        rng, shape = np.random.default_rng([self.cells, self.queries, self.seeds]), (count, self.cells, self.seeds)
        if self.kind == "rounded":
            level = rng.uniform(40, 80, (count, 1, 1)) + rng.standard_normal((count, 1, self.seeds))
            values = level + self.spread * rng.standard_normal(shape)
            values[:, -1] += gap
            return np.asarray(self.step * np.round(values / self.step))
        chance = np.full((self.cells, 1), 0.5)
        chance[-1] = min(1.0, 0.5 + gap / (self.step * self.flipping))
        return self.step * rng.binomial(self.flipping, chance, shape).astype(np.float64)


def _rates(drawn: QuerySweeps, sweeps: int) -> str:
    columns: list[list[str]] = [[], [], []]
    for column, gap in zip(columns, (0.0, _MARGIN, 6 / math.sqrt(drawn.seeds) * drawn.spread), strict=True):
        values = drawn.values(sweeps, gap)
        for resolution in (0.0, drawn.step / math.sqrt(3), drawn.step):
            noise = fit_pairs(values, resolution)
            significant = all_pairs(values, 0.05, noise).low > 0
            if gap == 0:
                column.append(rate(significant.any((1, 2))))
            elif gap == _MARGIN:
                column.append(rate((at_most(values, 0.05, noise) < _MARGIN).all((1, 2))))
            else:
                column.append(f"{significant[:, -1].any(1).mean():.2f}")
    return "   ".join(" / ".join(column) for column in columns)
