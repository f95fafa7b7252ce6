"""False claims of sweeps, confirmations and comparisons that grow until something is claimed; `verdicts.py` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.intervals.contrasts import estimate_contrasts
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import all_pairs, half_widths
from tune_dml.stats.sequential.looks import level_left
from tune_dml.stats.verdicts.selection import score_of_best

Rule = Callable[[Sequence[float]], float]
_KINDS = ("iid", "t3", "one cell 5x", "slope", "measured-like")
_STEPS = 2.5
"""Percentage points that one of 40 queries moves R@1 by, in the rows of discrete R@1 (noise of 2 points)."""


def _simulate(kind: str, cells: int, seeds: int, sweeps: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Return equal cells and what their values move in steps of."""
    if kind != "discrete R@1":
        return simulate(kind, cells, seeds, sweeps, rng), 0.0
    return _STEPS * np.round(2 * simulate("iid", cells, seeds, sweeps, rng) / _STEPS), _STEPS


def _shares_before(planned: float) -> Rule:
    """The levels before: each look had what it added to the error spent, as if looks were independent."""

    def spent(seeds: float) -> float:
        return 0.05 * (0.8 * seeds / planned if seeds <= planned else 1 - 0.2 * planned / seeds)

    return lambda seen: spent(seen[-1]) - (spent(seen[-2]) if len(seen) > 1 else 0.0)


def looks(sweeps: int) -> Iterable[str]:
    """Seeds added by hand until a difference is claimed."""
    yield "Levels of the first three looks [%], before / now"
    for at in ([2, 3, 4], [3, 4, 5], [3, 5, 8], [5, 6, 8], [5, 8, 12], [10, 12, 15]):
        before, now = _shares_before(at[0]), lambda seen, planned=at[0]: level_left(seen, planned=planned)
        shown = (" ".join(f"{100 * rule(at[: k + 1]):.2f}" for k in range(3)) for rule in (before, now))
        yield f"{at!s:>14}:  " + "  /  ".join(shown)
    yield "Seeds added until a difference of equal cells is claimed: false claims, before / now"
    for at in ([2, 3, 4, 6], [3, 4, 5, 6, 8, 10, 12], [3, 5, 8, 12], [5, 8, 12]):
        for cells in (2, 3, 6, 10):
            row = []
            for kind in (*_KINDS, "discrete R@1"):
                values, step = _simulate(kind, cells, max(at), sweeps, np.random.default_rng([cells, *at]))
                shares = [_claims(values, at, rule, step) for rule in (_shares_before(at[0]), _now(at[0]))]
                row.append(f"{kind} {rate(np.isfinite(shares[0]))}/ {rate(np.isfinite(shares[1]))}")
            yield f"{at!s:>26} {cells:3d} cells:  " + "  ".join(row)
    yield "One of 6 cells is better: share found by the last look, mean seeds until then, before / now"
    for at in ([2, 3, 4, 6], [3, 5, 8, 12], [5, 8, 12]):
        for shift in (1.5, 2.0, 3.0):
            values = simulate("iid", 6, max(at), sweeps, np.random.default_rng(at))
            values[:, 0] += shift
            parts = []
            for rule in (_shares_before(at[0]), _now(at[0])):
                first = _claims(values, at, rule)
                parts.append(f"{np.isfinite(first).mean():.2f}, {np.minimum(first, max(at)).mean():.1f}")
            yield f"{at!s:>14} shift {shift:.1f}:  " + "  /  ".join(parts)
    yield from _covered_when_stopped(sweeps)


def _now(planned: float) -> Rule:
    return lambda seen: level_left(seen, planned=planned)


def _claims(values: Array, at: Sequence[int], rule: Rule, step: float = 0.0) -> Array:
    """Return the look at which each sweep first claims a difference; infinite where none does."""
    cells, first = values.shape[1], np.full(len(values), np.inf)
    for number, seeds in enumerate(at):
        pairs = fit_pairs(values[..., :seeds], step)
        reach = half_widths(pairs, rule(at[: number + 1]), cells * (cells - 1) // 2)
        first = np.where((pairs.estimate > reach).any((1, 2)), np.minimum(first, seeds), first)
    return first


def confirmations(sweeps: int) -> Iterable[str]:
    """`confirm` extended by fresh seeds until the winner is said to beat, or to lose to, an equal baseline."""
    yield "Confirmation of an equal cell, extended seed by seed until it is decided: false claims, every look at 5 % / now"
    for first, last in ((2, 12), (3, 12), (5, 12), (5, 20)):
        row = []
        at = list(range(first, last + 1))
        for kind in (*_KINDS, "discrete R@1"):
            values, step = _simulate(kind, 2, last, sweeps, np.random.default_rng([first, last]))
            gaps = values[:, 1] - values[:, 0]
            found = [_paired_claims(gaps, at, rule, step) for rule in (lambda seen: 0.05, _now(first))]
            row.append(f"{kind} {rate(found[0])}/ {rate(found[1])}")
        yield f"{first} to {last} fresh seeds:  " + "  ".join(row)


def _paired_claims(gaps: Array, at: Sequence[int], rule: Rule, step: float) -> NDArray[np.bool_]:
    claimed = np.zeros(len(gaps), dtype=bool)
    for number, seeds in enumerate(at):
        seen = gaps[:, :seeds]
        error = np.sqrt(np.maximum(seen.var(-1, ddof=1), step**2 / 2) / seeds)
        claimed |= np.abs(seen.mean(-1)) > student.isf(rule(at[: number + 1]) / 2, seeds - 1) * error
    return claimed


def comparisons(sweeps: int) -> Iterable[str]:
    """`compare` of two equal sweeps of 5 cells that both grow, called at every number of seeds."""
    yield "Two equal sweeps of 5 cells compared at every number of seeds: false claims, every call at 5 % / now"
    weights = np.hstack([-np.eye(5), np.eye(5)])
    for first, last in ((3, 12), (5, 12)):
        row = []
        at = list(range(first, last + 1))
        for kind in (*_KINDS, "discrete R@1"):
            values, step = _simulate(kind, 10, last, sweeps, np.random.default_rng([first, last]))
            claimed = np.zeros((2, sweeps), dtype=bool)
            for number, seeds in enumerate(at):
                for row_of, rule in enumerate((lambda seen: 0.05, _now(first))):
                    found = estimate_contrasts(values[..., :seeds], weights, rule(at[: number + 1]), resolution=step)
                    claimed[row_of] |= ((found.low > 0) | (found.high < 0)).any(-1)
            row.append(f"{kind} {rate(claimed[0])}/ {rate(claimed[1])}")
        yield f"{first} to {last} seeds:  " + "  ".join(row)


def _covered_when_stopped(sweeps: int) -> Iterable[str]:
    """Intervals of the best and of its gain, read when it is first said to beat the default, at 12 seeds at the latest."""
    yield "Read at the first look (3 to 12 seeds) that says the best beats the default: coverage of score, gain, all pairs"
    for cells in (5, 20):
        for spread in (0.0, 1.0):
            rng = np.random.default_rng([cells, int(spread)])
            truth = spread * rng.standard_normal((sweeps, cells))
            values = truth[..., None] + simulate("measured-like", cells, 12, sweeps, rng)
            hits, going = np.zeros((3, sweeps), dtype=bool), np.arange(sweeps)
            for seeds in range(3, 13):
                seen, level = values[going, :, :seeds], level_left(list(range(3, seeds + 1)), planned=12)
                found, gain, pairs = (
                    score_of_best(seen, alpha=level),
                    score_of_best(seen, 0, level),
                    all_pairs(seen, level),
                )
                best = np.take_along_axis(truth[going], found.best[:, None], 1)[:, 0]
                gaps = truth[going][:, :, None] - truth[going][:, None]
                inside = (
                    (found.low <= best) & (best <= found.high),
                    (gain.low <= best - truth[going, 0]) & (best - truth[going, 0] <= gain.high),
                    ((pairs.low <= gaps + 1e-9) & (gaps <= pairs.high + 1e-9)).all((1, 2)),
                )
                stops = (gain.low > 0) | (seeds == 12)
                hits[:, going[stops]] = np.array(inside)[:, stops]
                going = going[~stops]
            yield f"{cells:6d} cells, spread {spread:.0f}: " + "  ".join(f"{hit.mean():.3f}" for hit in hits)
