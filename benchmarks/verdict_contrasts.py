"""Error rates of the candidates for the best and of declared contrasts; `verdicts.py` prints them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.intervals.contrasts import estimate_gains
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.verdicts.best import compare_with_best, judge_best
from tune_dml.stats.verdicts.sensitivity import FullGrid, judge_sensitivity

_KINDS = ("iid", "t3", "one cell 5x", "slope", "15 % holes")
_SEEDS = (3, 5, 10)
_LOSSES = 5
_GAINS = [(4 * loss + method, 4 * loss) for loss in range(_LOSSES - 1) for method in (1, 2, 3)] + [(17, 16)]
"""As sec_losses has them: four losses with three methods each, and one with one: 18 arms."""


def candidates(sweeps: int) -> Iterable[str]:
    """Values of one knob: the true best left out, a place claimed wrongly, with all statements of a knob together."""
    yield "The best left out of the candidates / 'interior' of equal cells / an edge claimed of two equal ends 6 s.d. above the"
    yield "others; all pairs and Hsu's comparisons together, at 5 %"
    for cells in (2, 3, 6, 10):
        for seeds in _SEEDS:
            row = []
            for place, kind in enumerate(_KINDS):
                values = simulate(kind, cells, seeds, sweeps, np.random.default_rng([cells, seeds, place]))
                found = compare_with_best(values)
                ends = found.candidates[:, 0] | found.candidates[:, -1]
                left_out = [~found.candidates[:, best] for best in (0, cells // 2)]
                edges = rate(_edges(values)) if cells > 2 else "-"
                row.append(f"{kind} {' '.join(map(rate, left_out))} / {rate(~ends)} / {edges}")
            yield f"{cells:3d} cells {seeds:3d} seeds:  " + "   ".join(row)
    few = max(60, sweeps // 5)
    yield f"3 x 3 grid, a knob's values averaged over the other's ({few} sweeps): the best left out / a candidate certainly worse"
    for seeds in _SEEDS:
        row = []
        for place, kind in enumerate(_KINDS):
            rng = np.random.default_rng([9, seeds, place])
            lost, torn = zip(*(_grid(simulate(kind, 9, seeds, 1, rng)[0], rng) for _ in range(few)), strict=True)
            row.append(f"{kind} {rate(np.array(lost))} / {rate(np.array(torn), 0.0005)}")
        yield f"{seeds:3d} seeds:  " + "   ".join(row)


def _edges(values: Array) -> NDArray[np.bool_]:
    """Whether one of two equal ends is said to be better than every other value."""
    raised = values.copy()
    raised[:, [0, -1]] += 6
    found = compare_with_best(raised).candidates
    only = found.sum(-1) == 1
    return np.asarray(only & (found[:, 0] | found[:, -1]))


def _grid(noise: Array, rng: np.random.Generator) -> tuple[bool, bool]:
    """Of a grid whose first knob has one value 4 below two equal ones: one of those left out, a candidate certainly worse."""
    levels = tuple(np.repeat(np.arange(3), 3).tolist())
    truth = rng.permutation([0.0, 0.0, -4.0])
    values = noise + truth[list(levels), None]
    table = SeedTable(("a", "b", "c"), tuple(range(values.shape[1])), values.reshape(3, 3, -1).mean(1))
    crossed = FullGrid(values, levels)
    verdict = judge_sensitivity(table, 1.0, crossed=crossed)
    if verdict.bounds is None or verdict.verdict != "sensitive":
        return False, False
    found = judge_best(table.values, [0, 1, 2], 1.0, pairs=verdict.bounds, crossed=crossed).candidates
    worse = (verdict.bounds.low > 0).any(0)
    best = int(np.flatnonzero(truth == 0)[0])
    return best not in found, bool(worse[list(found)].any())


def contrasts(sweeps: int) -> Iterable[str]:
    """Thirteen gains of 18 arms and differences of them: false claims, and what is found beside the intervals of all pairs."""
    yield "18 equal arms, 13 gains (and with 2 differences of gains): false claims of any; then found of 13 true gains of"
    yield "1, 2, 3 s.d.: declared / all pairs"
    for seeds in _SEEDS:
        for place, kind in enumerate(_KINDS):
            rng = np.random.default_rng([18, seeds, place])
            values = simulate(kind, 18, seeds, sweeps, rng)
            false = [_claims(values, differences).any(1) for differences in ([], [(0, 3), (3, 6)])]
            found = []
            for size in (1.0, 2.0, 3.0):
                raised = values.copy()
                raised[:, [arm for arm, _ in _GAINS]] += size
                pairs = all_pairs(raised).low[:, [arm for arm, _ in _GAINS], [other for _, other in _GAINS]]
                found.append(f"{np.mean(_claims(raised, [])):.2f} / {np.mean(pairs > 0):.2f}")
            yield f"{seeds:3d} seeds {kind:>12}:  {' '.join(map(rate, false))}   " + "   ".join(found)
    yield "4 arms, two gains and their difference: false claims of any of the three / found: gains of 0 and 3 s.d. differ"
    for seeds in _SEEDS:
        row = []
        for place, kind in enumerate(_KINDS):
            values = simulate(kind, 4, seeds, sweeps, np.random.default_rng([4, seeds, place]))
            values[:, 2:] += 5 * math.sqrt(0.5)  # the baselines themselves differ
            raised = values.copy()
            raised[:, 3] += 3
            false, found = (_claims(each, [(1, 0)], [(1, 0), (3, 2)]) for each in (values, raised))
            row.append(f"{kind} {rate(false.any(1))} / {np.mean(found[:, 2]):.2f}")
        yield f"{seeds:3d} seeds:  " + "   ".join(row)


def _claims(
    values: Array, differences: list[tuple[int, int]], gains: list[tuple[int, int]] | None = None
) -> NDArray[np.bool_]:
    """Whether each contrast is certainly above or below 0."""
    found = estimate_gains(values, gains or _GAINS, differences)
    return np.asarray((found.low > 0) | (found.high < 0))
