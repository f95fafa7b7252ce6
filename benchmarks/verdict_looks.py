"""Count false claims under repeated looks at sweeps, confirmations and comparisons, which `verdicts.py` prints."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from simulated_sweeps import Array, excludes_zero, rate, simulate

from tune_dml.stats.intervals.contrasts import estimate_gains
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import all_pairs, half_widths
from tune_dml.stats.sequential.looks import level_left
from tune_dml.stats.verdicts.selection import score_of_best

_KINDS = ("iid", "t3", "one cell 5x", "slope", "measured-like")
_STEPS = 2.5
"""Step h of R@1 with 40 queries, for the kind "discrete R@1" (noise of 2 points)."""


def _simulate(kind: str, cells: int, seeds: int, sweeps: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Return sweeps of equal cells, and the step of their values."""
    if kind != "discrete R@1":
        return simulate(kind, cells, seeds, sweeps, rng), 0.0
    return _STEPS * np.round(2 * simulate("iid", cells, seeds, sweeps, rng) / _STEPS), _STEPS


def looks(sweeps: int) -> Iterable[str]:
    """Print levels, false claims and power of sweeps that are extended until a difference is claimed."""
    yield "Levels of the first three looks [%]"
    for at in ([2, 3, 4], [3, 4, 5], [3, 5, 8], [5, 6, 8], [5, 8, 12], [10, 12, 15]):
        levels = (100 * level_left(at[: number + 1], planned=at[0]) for number in range(3))
        yield f"{at!s:>14}:  " + " ".join(f"{level:.2f}" for level in levels)
    yield "Equal cells, seeds added until a difference is claimed: false claims"
    for at in ([2, 3, 4, 6], [3, 4, 5, 6, 8, 10, 12], [3, 5, 8, 12], [5, 8, 12]):
        for cells in (2, 3, 6, 10):
            row = []
            for kind in (*_KINDS, "discrete R@1"):
                values, step = _simulate(kind, cells, max(at), sweeps, np.random.default_rng([cells, *at]))
                row.append(f"{kind} {rate(np.isfinite(_first_claims(values, at, step)))}")
            yield f"{at!s:>26} {cells:3d} cells:  " + "  ".join(row)
    yield "One of 6 cells is better: share found by the last look, mean seeds until then"
    for at in ([2, 3, 4, 6], [3, 5, 8, 12], [5, 8, 12]):
        for shift in (1.5, 2.0, 3.0):
            values = simulate("iid", 6, max(at), sweeps, np.random.default_rng(at))
            values[:, 0] += shift
            first = _first_claims(values, at)
            found, seeds = np.isfinite(first).mean(), np.minimum(first, max(at)).mean()
            yield f"{at!s:>14} shift {shift:.1f}:  {found:.2f}, {seeds:.1f}"
    yield from _coverage_at_stop(sweeps)


def _first_claims(values: Array, at: Sequence[int], step: float = 0.0) -> Array:
    """Return the seeds at which each sweep first claims a difference; infinite without a claim."""
    cells, first = values.shape[1], np.full(len(values), np.inf)
    for number, seeds in enumerate(at):
        pairs = fit_pairs(values[..., :seeds], step)
        reach = half_widths(pairs, level_left(at[: number + 1], planned=at[0]), cells * (cells - 1) // 2)
        first = np.where((pairs.estimate > reach).any((1, 2)), np.minimum(first, seeds), first)
    return first


def confirmations(sweeps: int) -> Iterable[str]:
    """Print false claims of `confirm`, extended by fresh seeds until it claims a difference."""
    yield "Confirmation of an equal cell, extended by single seeds: false claims"
    for first, last in ((2, 12), (3, 12), (5, 12), (5, 20)):
        row = []
        for kind in (*_KINDS, "discrete R@1"):
            values, step = _simulate(kind, 2, last, sweeps, np.random.default_rng([first, last]))
            row.append(f"{kind} {rate(_paired_claims(values[:, 1] - values[:, 0], range(first, last + 1), step))}")
        yield f"{first} to {last} fresh seeds:  " + "  ".join(row)


def _paired_claims(gaps: Array, at: Sequence[int], step: float) -> NDArray[np.bool_]:
    claimed = np.zeros(len(gaps), dtype=bool)
    for number, seeds in enumerate(at):
        observed = gaps[:, :seeds]
        error = np.sqrt(np.maximum(observed.var(-1, ddof=1), step**2 / 2) / seeds)
        level = level_left(at[: number + 1], planned=at[0])
        claimed |= np.abs(observed.mean(-1)) > student.isf(level / 2, seeds - 1) * error
    return claimed


def comparisons(sweeps: int) -> Iterable[str]:
    """Print false claims of `compare` for two equal sweeps, called at every number of seeds."""
    yield "Two equal sweeps of 5 cells compared at every number of seeds: false claims"
    gains = [(5 + cell, cell) for cell in range(5)]
    for at in (range(3, 13), range(5, 13)):
        row = []
        for kind in (*_KINDS, "discrete R@1"):
            values, step = _simulate(kind, 10, at[-1], sweeps, np.random.default_rng([at[0], at[-1]]))
            claimed = np.zeros(sweeps, dtype=bool)
            for number, seeds in enumerate(at):
                level = level_left(at[: number + 1], planned=at[0])
                found = estimate_gains(values[..., :seeds], gains, alpha=level, resolution=step)
                claimed |= excludes_zero(found).any(-1)
            row.append(f"{kind} {rate(claimed)}")
        yield f"{at[0]} to {at[-1]} seeds:  " + "  ".join(row)
    yield "Two equal sweeps of 5 cells, each pair of cells shares only some of 10 seeds: false claims / 3 s.d. found"
    for share in (0.3, 0.5, 0.7):
        row = []
        for kind in (*_KINDS, "discrete R@1"):
            rng = np.random.default_rng(int(10 * share))
            values, step = _simulate(kind, 10, 10, sweeps, rng)
            values[~_half_connected(share, sweeps, rng)] = np.nan
            moved = values + 3.0 * (np.arange(10) >= 5)[:, None]
            false, true = (excludes_zero(estimate_gains(table, gains, resolution=step)) for table in (values, moved))
            row.append(f"{kind} {rate(false.any(-1))} / {true.mean():.2f}")
        yield f"{share:.0%} of the trials:  " + "  ".join(row)


def _half_connected(share: float, sweeps: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which trials of 2 x 5 cells and 10 seeds exist: a share of them, and two seeds of each pair of cells."""
    exists = rng.random((sweeps, 2, 5, 10)) < share
    order = rng.random((sweeps, 1, 5, 10)).argsort(-1)
    return np.asarray((exists | (order < 2)).reshape(sweeps, 10, 10))


def _coverage_at_stop(sweeps: int) -> Iterable[str]:
    """Print the coverage of intervals at the first look that claims a gain, at most 12 seeds."""
    yield "At the first look (3 to 12 seeds) that claims a gain over the default: coverage of score, gain, all pairs"
    for cells in (5, 20):
        for spread in (0.0, 1.0):
            rng = np.random.default_rng([cells, int(spread)])
            truth = spread * rng.standard_normal((sweeps, cells))
            values = truth[..., None] + simulate("measured-like", cells, 12, sweeps, rng)
            hits, open_sweeps = np.zeros((3, sweeps), dtype=bool), np.arange(sweeps)
            for seeds in range(3, 13):
                observed, level = values[open_sweeps, :, :seeds], level_left(list(range(3, seeds + 1)), planned=12)
                found, gain = score_of_best(observed, alpha=level), score_of_best(observed, 0, level)
                pairs, true = all_pairs(observed, level), truth[open_sweeps]
                best = np.take_along_axis(true, found.best[:, None], 1)[:, 0]
                gaps = true[:, :, None] - true[:, None]
                inside = (
                    (found.low <= best) & (best <= found.high),
                    (gain.low <= best - true[:, 0]) & (best - true[:, 0] <= gain.high),
                    ((pairs.low <= gaps + 1e-9) & (gaps <= pairs.high + 1e-9)).all((1, 2)),
                )
                stops = (gain.low > 0) | (seeds == 12)
                hits[:, open_sweeps[stops]] = np.array(inside)[:, stops]
                open_sweeps = open_sweeps[~stops]
            yield f"{cells:6d} cells, spread {spread:.0f}: " + "  ".join(f"{hit.mean():.3f}" for hit in hits)
