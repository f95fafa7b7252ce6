"""The error that looks at a growing sweep may spend.

A sweep that is extended until something is decided would claim too much if every look used the whole 5 %. The error spent
by the time n seeds are seen is a fixed function of n alone, and a look gets what has been added since the look before:

    no plan          alpha (1 - 1 / n)
    N seeds planned  alpha (0.8 n / N)  up to N,  alpha (1 - 0.2 N / n)  beyond

By the union bound all looks together stay below alpha, for any number of looks and any rule for stopping. Looking again at
the same seeds costs nothing. Linear spending towards a planned end decides soonest of the rules that were simulated
(benchmarks/verdicts.py); a fifth is kept for those who extend after all.

While trials have failed, which people try again, a look counts half of what is new to it: else the look after them, at hardly
more seeds, would have next to nothing left, and could not say any more what was said before it.
"""

from __future__ import annotations

from collections.abc import Sequence

_PLANNED_SHARE = 0.8
_COUNTED_WITH_FAILED = 0.5


def seeds_counted(seeds: float, before: float, *, failed: bool) -> float:
    """The seeds that a look spends for, where the one before it has spent for `before`: with failed trials, half of the rest."""
    return before + _COUNTED_WITH_FAILED * (seeds - before) if failed and seeds > before else seeds


def level_left(looks: Sequence[float], *, planned: float | None = None, alpha: float = 0.05) -> float:
    """The error level of the last of `looks`: the seeds a cell had on average at each look, in order of time.

    A look at no more seeds than an earlier one repeats it, at its level. `planned`: the seeds up to which the sweep was
    planned before its first look. Raises ValueError without looks, or for a plan below one seed.
    """
    if not looks:
        raise ValueError("`looks` must name at least the present one")
    if planned is not None and planned < 1:
        raise ValueError(f"`planned >= 1` must hold, but got {planned=}")
    before, level = 0.0, 0.0
    for seeds in looks:
        if seeds > before:
            level = _spent(seeds, planned, alpha) - _spent(before, planned, alpha)
            before = seeds
    return level


def error_spent(looks: Sequence[float], *, planned: float | None = None, alpha: float = 0.05) -> float:
    """What all the looks have spent together."""
    return _spent(max([0.0, *looks]), planned, alpha)


def _spent(seeds: float, planned: float | None, alpha: float) -> float:
    if planned is None:
        return alpha * (1 - 1 / max(seeds, 1.0))
    if seeds <= planned:
        return alpha * _PLANNED_SHARE * seeds / planned
    return alpha * (1 - (1 - _PLANNED_SHARE) * planned / seeds)
