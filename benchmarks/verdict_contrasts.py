"""Measure error rates of the candidates for the best value and of declared contrasts, which `verdicts.py` prints."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import Array, excludes_zero, rate, simulate

from tune_dml.stats.intervals.contrasts import FullGrid, estimate_contrasts, estimate_gains, main_effect
from tune_dml.stats.intervals.simultaneous import all_pairs, at_most
from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.verdicts.best import compare_with_best, judge_best
from tune_dml.stats.verdicts.sensitivity import judge_sensitivity

_KINDS = ("iid", "t3", "one cell 5x", "slope", "15 % holes")
_SEEDS = (3, 5, 10)
_LOSSES = 5
_GAINS = [(4 * loss + method, 4 * loss) for loss in range(_LOSSES - 1) for method in (1, 2, 3)] + [(17, 16)]
"""Gains of the space sec_losses: four losses with three methods each, and one with one method; 18 arms."""


def candidates(sweeps: int) -> Iterable[str]:
    """Print error rates for the values of one knob: the best value is left out, or a wrong position is claimed."""
    yield "The best left out of the candidates / 'interior' claimed of equal cells / an edge claimed with both ends"
    yield "6 s.d. above the others / an end 6/sqrt(n) s.d. above the others found; all pairs and Hsu's together, at 5 %"
    for cells in (2, 3, 6, 10):
        for seeds in _SEEDS:
            row = []
            for index, kind in enumerate(_KINDS):
                values = simulate(kind, cells, seeds, sweeps, np.random.default_rng([cells, seeds, index]))
                found = compare_with_best(values)
                ends = found.candidates[:, 0] | found.candidates[:, -1]
                left_out = [~found.candidates[:, best] for best in (0, cells // 2)]
                edges = rate(_claims_edge(values, [0, -1], 6)) if cells > 2 else "-"
                edges += f" / {_claims_edge(values, [-1], 6 / math.sqrt(seeds)).mean():.2f}"
                row.append(f"{kind} {' '.join(map(rate, left_out))} / {rate(~ends)} / {edges}")
            yield f"{cells:3d} cells {seeds:3d} seeds:  " + "   ".join(row)
    draws = max(60, sweeps // 5)
    yield f"3 x 3 grid, averaged over one knob ({draws} sweeps): best left out / a candidate significantly worse"
    for seeds in _SEEDS:
        row = []
        for index, kind in enumerate(_KINDS):
            rng = np.random.default_rng([9, seeds, index])
            errors = [_judge_grid(simulate(kind, 9, seeds, 1, rng)[0], rng) for _ in range(draws)]
            lost, worse = zip(*errors, strict=True)
            row.append(f"{kind} {rate(np.array(lost))} / {rate(np.array(worse), 0.0005)}")
        yield f"{seeds:3d} seeds:  " + "   ".join(row)


def _claims_edge(values: Array, ends: list[int], gap: float) -> NDArray[np.bool_]:
    """Return whether one end is claimed to be better than every other value, if these ends are."""
    raised = values.copy()
    raised[:, ends] += gap
    found = compare_with_best(raised).candidates
    only = found.sum(-1) == 1
    return np.asarray(only & (found[:, 0] | found[:, -1]))


def _judge_grid(noise: Array, rng: np.random.Generator) -> tuple[bool, bool]:
    """Return whether a best value is left out, and whether a candidate is significantly worse.

    The first knob of the grid has two equal values and one that is 4 worse.
    """
    levels = tuple(np.repeat(np.arange(3), 3).tolist())
    truth = rng.permutation([0.0, 0.0, -4.0])
    values = noise + truth[list(levels), None]
    table = SeedTable(("a", "b", "c"), tuple(range(values.shape[1])), values.reshape(3, 3, -1).mean(1))
    crossed = FullGrid(values, levels)
    verdict = judge_sensitivity(table, 1.0, crossed=crossed)
    if verdict.bounds is None or verdict.verdict != "sensitive":
        return False, False
    found = judge_best(table.values, [0, 1, 2], 1.0, pairs=verdict.bounds, crossed=crossed).candidates
    worse = np.asarray((verdict.bounds.low > 0).any(0))
    best = int(np.flatnonzero(truth == 0)[0])
    return best not in found, bool(worse[list(found)].any())


def contrasts(sweeps: int) -> Iterable[str]:
    """Print false claims and power of 13 gains among 18 arms of their differences, and of all pairs."""
    yield "18 equal arms, 13 gains (then with 2 differences of gains): any false claim; then the share found of 13"
    yield "gains of 1, 2, 3 s.d.: declared / all pairs"
    for seeds in _SEEDS:
        for index, kind in enumerate(_KINDS):
            rng = np.random.default_rng([18, seeds, index])
            values = simulate(kind, 18, seeds, sweeps, rng)
            false = [_claims(values, differences).any(1) for differences in ([], [(0, 3), (3, 6)])]
            found = []
            for size in (1.0, 2.0, 3.0):
                raised = values.copy()
                raised[:, [arm for arm, _ in _GAINS]] += size
                pairs = all_pairs(raised).low[:, [arm for arm, _ in _GAINS], [rival for _, rival in _GAINS]]
                found.append(f"{np.mean(_claims(raised, [])):.2f} / {np.mean(pairs > 0):.2f}")
            yield f"{seeds:3d} seeds {kind:>12}:  {' '.join(map(rate, false))}   " + "   ".join(found)
    yield "4 arms, two gains and their difference: any false claim / share that finds gains of 0 and 3 s.d. to differ"
    for seeds in _SEEDS:
        row = []
        for index, kind in enumerate(_KINDS):
            values = simulate(kind, 4, seeds, sweeps, np.random.default_rng([4, seeds, index]))
            values[:, 2:] += 5 * math.sqrt(0.5)  # the two baselines differ
            raised = values.copy()
            raised[:, 3] += 3
            equal, unequal = (_claims(table, [(1, 0)], [(1, 0), (3, 2)]) for table in (values, raised))
            row.append(f"{kind} {rate(equal.any(1))} / {np.mean(unequal[:, 2]):.2f}")
        yield f"{seeds:3d} seeds:  " + "   ".join(row)


def quiet_baselines(sweeps: int) -> Iterable[str]:
    """Print false claims of gains over baselines that are quieter than the methods."""
    yield "Equal gains, each over its own baseline of 0 / 0.2 / 1 s.d.; 3, 5, 10 seeds: any false claim"
    for count in (2, 4, 6):
        gains = [(2 * gain, 2 * gain + 1) for gain in range(count)]
        for size in (0.0, 0.2, 1.0):
            row = []
            for seeds in _SEEDS:
                values = simulate("iid", 2 * count, seeds, sweeps, np.random.default_rng([count, seeds]), seed_sd=0)
                values[:, 1::2] *= size
                row.append(rate(_claims(values, [], gains).any(1)))
            yield f"{count} gains, baselines of {size:.1f} s.d.:  {'  '.join(row)}"


def thin_cells(sweeps: int) -> Iterable[str]:
    """Print false claims and power of a main effect if one cell of a grid has few of the seeds."""
    yield "One cell has 2, 3, 5 of the seeds. It is 5 times as noisy: false claims of a main effect; as noisy as the"
    yield "others: false claims, share that finds a level 3 s.d. off, and the same share if no seed is lost"
    for rows, columns in ((2, 2), (2, 3), (3, 3)):
        levels, thin = np.repeat(range(rows), columns), rows * columns // 2
        weights = main_effect(levels.tolist())
        for few, seeds in ((2, 5), (3, 5), (2, 10), (3, 10), (5, 10), (5, 15)):
            row = []
            for kind in ("one cell 5x", "iid"):
                whole = simulate(
                    kind, rows * columns, seeds, sweeps, np.random.default_rng([rows, columns, few, seeds])
                )
                lost = whole.copy()
                lost[:, thin, few:] = np.nan
                tables = (lost, *(table + 3.0 * (levels == 0)[:, None] for table in (lost, whole)))
                row.append([excludes_zero(estimate_contrasts(table, weights)).any(1) for table in tables])
            (noisy, *_), (equal, found, before) = row
            text = f"{rate(noisy)}   {rate(equal)} {found.mean():.2f}, {before.mean():.2f}"
            yield f"{rows} x {columns}, {few} of {seeds:2d} seeds:  {text}"
    yield "3 x 3, cells that have fewer seeds than the others, under two kinds of noise that cells share: false claims"
    levels = np.repeat(range(3), 3)
    for few, seeds in ((3, 10), (5, 20), (6, 60)):
        row = []
        for fewer in ([6, 7, 8], [3, 4, 5, 6, 7, 8], [1, 2, 3, 5, 6, 7], [7, 8], [1, 3, 5, 7]):
            for kind in ("slope", "measured-like"):
                values = simulate(kind, 9, seeds, sweeps, np.random.default_rng([few, seeds, len(fewer)]))
                values[:, fewer, few:] = np.nan
                row.append(rate(excludes_zero(estimate_contrasts(values, main_effect(levels.tolist()))).any(1)))
        yield f"{few} of {seeds} seeds:  {' '.join(row)}"


def close_methods(sweeps: int) -> Iterable[str]:
    """Print claims that no two methods differ by what matters, although two of them differ by exactly that."""
    yield "A quiet method 0.9 above another one, and a noisy method 1.0 above it, which is what matters; all alike:"
    yield "'no two methods differ': every interval with the best mean is within the margin / and every pair is (used)"
    for seeds in _SEEDS:
        row = []
        for spreads, truth in (
            ((0.02, 0.2, 0.02), (0.9, 1, 0)),
            ((0.02, 0.1, 0.02), (0.9, 1, 0)),
            ((0.2, 0.2, 0.2), (0, 0, 0)),
        ):
            noise = simulate("iid", 3, seeds, sweeps, np.random.default_rng(seeds)) * math.sqrt(seeds)
            values = noise * np.array(spreads)[:, None] + np.array(truth)[:, None]
            bounds, best = all_pairs(values, 0.05), values.mean(-1).argmax(-1)
            reach = np.maximum(bounds.high, -bounds.low)[np.arange(sweeps), best]
            close = (np.where(np.arange(3) == best[:, None], 0.0, reach) < 1).all(-1)
            row.append(f"{rate(close)} / {rate(close & (at_most(values, 0.05) < 1).all((1, 2)))}")
        yield f"{seeds:2d} seeds:  {'   '.join(row)}"


def _claims(
    values: Array, differences: list[tuple[int, int]], gains: list[tuple[int, int]] | None = None
) -> NDArray[np.bool_]:
    """Return which contrasts are significant."""
    return excludes_zero(estimate_gains(values, gains or _GAINS, differences))
