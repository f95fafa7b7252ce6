"""Error rates of a knob's table beside other cells, and if trials fail because of their results."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import Array, excludes_zero, rate, simulate

from tune_dml.stats.intervals.contrasts import can_bias_means, fill_with_highest, fill_with_lowest
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most, half_widths


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


def _false_and_found(fitted: Array, knob: Array) -> str:
    """Return how often a knob's table claims a difference with the noise of the `fitted` cells."""
    cells, seeds = knob.shape[-2:]
    reach = half_widths(fit_pairs(fitted), 0.05, cells * (cells - 1) // 2)[..., :cells, :cells]
    means = knob.mean(-1)
    moved = means + 6 / math.sqrt(seeds) * (np.arange(cells) == 0)
    false, found = (
        (np.abs(mean[..., None] - mean[..., None, :]) - reach > 1e-9).any((-2, -1)) for mean in (means, moved)
    )
    return f"{rate(false)} {np.mean(found):.2f}"


def failed_worst(sweeps: int) -> Iterable[str]:
    """Print claims if trials of each seed failed, and those that hold if they were the worst or best of their seeds."""
    yield "One, two, three trials of each seed fail. The worst: false claims, those that hold if they were the worst or the"
    yield "best, and found (one 6/sqrt(n) s.d. off). Any: found. 'Does not matter', margin 3: false (one is 3 off), that hold"
    for cells, lost in ((2, 1), (3, 1), (5, 1), (5, 2), (10, 1), (10, 3)):
        for seeds in (3, 5, 10, 20):
            row = []
            for kind in ("iid", "t3", "one cell 5x", "slope", "measured-like", "ramp"):
                rng = np.random.default_rng([cells, seeds])
                values = simulate(kind, cells, seeds, sweeps, rng)
                better = (np.arange(cells) == 0)[:, None]
                moved, worse = values + 6 / math.sqrt(seeds) * better, values - 3 * better
                false = _claims(values, values.argsort(1).argsort(1) < lost)
                found = _claims(moved, moved.argsort(1).argsort(1) < lost)
                by_chance = _claims(moved, rng.random(values.shape).argsort(1).argsort(1) < lost)
                flat = _flat(worse, worse.argsort(1).argsort(1) < lost)
                shares = [" ".join(f"{hits.mean():.2f}" for hits in pair) for pair in (found, by_chance)]
                row.append(
                    f"{kind} {rate(false[0])}{rate(false[1])}{', '.join(shares)}, {rate(flat[0])}{rate(flat[1])}"
                )
            yield f"{cells:3d} {lost} lost {seeds:3d}  " + "  ".join(row)


def failed_of_one(sweeps: int) -> Iterable[str]:
    """Print false comparisons of equal cells with a baseline if the worst or the best trials of one cell fail."""
    yield "6 cells; the worst, the best trials of the baseline, then of another cell fail; false comparisons at 4 %"
    for seeds, counts in ((3, (1,)), (5, (1, 2)), (10, (1, 2, 3, 5)), (20, (2, 3, 4, 7))):
        for lost in counts:
            row = []
            for kind in ("iid", "slope", "one cell 5x", "t3", "the cell 4x"):
                for cell, sign in ((0, 1), (0, -1), (5, 1), (5, -1)):
                    rng = np.random.default_rng([seeds, lost, cell])
                    values = simulate(kind, 6, seeds, sweeps, rng)
                    values[:, cell] += (3.9 if kind == "the cell 4x" else 0.0) * rng.standard_normal((sweeps, seeds))
                    order = (sign * (values[:, cell] - values.mean(1))).argsort(1).argsort(1)
                    values[:, cell] = np.where(order < lost, np.nan, values[:, cell])
                    row.append(excludes_zero(against(values, 0, 0.04)).any(1).mean())
            yield f"{lost} of {seeds:2d}: {' '.join(f'{share:.3f}' for share in row)}  at most {max(row):.3f}"


def _claims(values: Array, failed: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether a sweep whose trials failed has a claim, and one that holds if they were the worst or the best."""
    lost = np.where(failed, np.nan, values)
    claims = held = all_pairs(lost).low > 0
    for fill in (fill_with_lowest, fill_with_highest):
        held = held & (all_pairs(fill(lost, failed)).low > 0)
    return claims.any((-2, -1)), held.any((-2, -1)) & ~can_bias_means(failed)


def _flat(values: Array, failed: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the same for the claim that no two values differ by 3; a value without any seed is not judged."""
    lost = np.where(failed, np.nan, values)
    tables = (lost, fill_with_lowest(lost, failed), fill_with_highest(lost, failed))
    claims, *held = ((at_most(table) < 3).all((-2, -1)) for table in tables)
    return claims, claims & held[0] & held[1] & ~can_bias_means(failed)
