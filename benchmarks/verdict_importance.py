"""Measure error rates of shares of importance, which `verdicts.py` prints."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from simulated_sweeps import KINDS, Array, rate, simulate
from verdict_search_effects import search

from tune_dml.stats.verdicts.importance import Importance, importance_of_grid, importance_of_search

FIRST, SECOND = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 4), indexing="ij")
GRIDS: tuple[tuple[str, Array, tuple[float, float] | None], ...] = (
    ("nothing acts", 0 * FIRST, None),
    ("the second acts, 3", 3 * SECOND, (0.0, 1.0)),
    ("the second acts, 1", SECOND, (0.0, 1.0)),
    ("both, 2", 2 * FIRST + 2 * SECOND, None),
    ("together, 2", 2 * FIRST * (1 + SECOND), None),
)
Surface = Callable[[Array], Any]
SEARCHES: tuple[tuple[str, Surface, tuple[float, ...] | None], ...] = (
    ("nothing acts", lambda x: 0 * x[:, 0], None),
    ("one of three", lambda x: -6 * (x[:, 0] - 0.6) ** 2, (1.0, 0.0, 0.0)),
    ("two equal of three", lambda x: -6 * (x[:, :2] - 0.6) ** 2 @ np.ones(2), (0.5, 0.5, 0.0)),
    ("a cliff in one", lambda x: -3.0 * (x[:, 0] > 0.7), (1.0, 0.0, 0.0)),
    ("two together", lambda x: 8 * (x[:, 0] - 0.5) * (x[:, 1] - 0.5), (0.5, 0.5, 0.0)),
)
_LEVELS = [np.linspace(0, 1, 8)[:, None]] * 3


def importance(sweeps: int) -> Iterable[str]:
    """Print how often shares are claimed, an idle knob has a share, and an interval is wrong."""
    draws = max(40, sweeps // 10)
    yield f"Full grids of 5 x 4, {draws} sweeps: shares claimed; an idle knob has a share above 0; an interval is wrong"
    for name, surface, shares in GRIDS:
        truth = _shares_of(surface) if shares is None else np.array(shares)
        for seeds in (3, 5, 10):
            row = []
            for index, kind in enumerate(KINDS):
                noise = simulate(kind, 20, seeds, draws, np.random.default_rng([seeds, index]))
                tables = surface[..., None] + noise.reshape(draws, 5, 4, seeds)
                row.append(f"{kind} {_error_rates([importance_of_grid(table) for table in tables], truth)}")
            yield f"{name:>20} {seeds:3d} seeds:  " + "   ".join(row)
    yield "The same if the worst trials of each seed failed, one / two"
    for name, surface, shares in GRIDS[:4]:
        truth = _shares_of(surface) if shares is None else np.array(shares)
        for seeds in (3, 5, 10):
            row = []
            for index, kind in enumerate(KINDS[:-1]):
                noise = simulate(kind, 20, seeds, draws, np.random.default_rng([seeds, index]))
                tables = surface[..., None] + noise.reshape(draws, 5, 4, seeds)
                rates = (_error_rates([_without_worst(table, lost) for table in tables], truth) for lost in (1, 2))
                row.append(f"{kind} {' / '.join(rates)}")
            yield f"{name:>20} {seeds:3d} seeds:  " + "   ".join(row)
    searches = max(10, draws // 4)
    yield f"Searches of three ranges, 3 seeds, noise 1, {searches} each: the same columns"
    for name, curve, true_shares in SEARCHES:
        truth = np.full(3, math.nan) if true_shares is None else np.array(true_shares)
        for cells in (20, 30):
            found = [_search_at_random(curve, cells, number) for number in range(searches)]
            yield f"{name:>20} {cells:3d} cells:  {_error_rates(found, truth)}"
    yield "The same by adaptive searches, and at random with names for the first and the last knob; 30 cells"
    for name, curve, true_shares in SEARCHES:
        truth = np.full(3, math.nan) if true_shares is None else np.array(true_shares)
        row = []
        for method in ("tpe", "gp"):
            found = [_search_by(method, curve, number) for number in range(searches)]
            row.append(f"{method} {_error_rates(found, truth)}")
        if 0.5 not in truth:  # names make the shares of two knobs unequal
            found = [_search_at_random(curve, 30, number, names=4) for number in range(searches)]
            row.append(f"names {_error_rates(found, truth)}")
        yield f"{name:>20}:  {'   '.join(row)}"


def _search_at_random(curve: Surface, cells: int, number: int, names: int = 0) -> Importance:
    """Estimate importance from a random search of three knobs; the first and the last have so many names, if any."""
    rng = np.random.default_rng([cells, number])
    tried = rng.random((cells, 3))
    positions, levels = [tried[:, [knob]] for knob in range(3)], list(_LEVELS)
    for knob in (0, 2) if names else ():
        chosen = (names * tried[:, knob]).astype(int)
        positions[knob], levels[knob] = np.eye(names)[chosen], np.eye(names)
        tried[:, knob] = (chosen + 0.5) / names
    values = curve(tried)[:, None] + rng.standard_normal(3) + rng.standard_normal((cells, 3))
    return importance_of_search(positions, levels, values)


def _search_by(method: str, curve: Surface, number: int) -> Importance:
    """Estimate importance from 30 cells of an adaptive search of three knobs."""
    rng = np.random.default_rng(number)
    shared = rng.standard_normal(3)
    tried, values = search(method, curve, (30, 3), number, lambda: shared + rng.standard_normal(3))
    return importance_of_search([tried[:, [knob]] for knob in range(3)], _LEVELS, values)


def _without_worst(table: Array, lost: int) -> Importance:
    """Estimate importance if the `lost` worst trials of each seed failed."""
    ranks = table.reshape(-1, table.shape[-1]).argsort(0).argsort(0).reshape(table.shape)
    return importance_of_grid(np.where(ranks < lost, np.nan, table), failed=ranks < lost)


def _shares_of(surface: Array) -> Array:
    """Return the shares of two knobs: each main effect with half of the interaction."""
    rows, columns = surface.mean(1).var(), surface.mean(0).var()
    if surface.var() == 0:
        return np.full(2, math.nan)
    interaction = surface.var() - rows - columns
    return np.asarray(np.array([rows + interaction / 2, columns + interaction / 2]) / surface.var())


def _error_rates(found: list[Importance], truth: Array) -> str:
    claimed = np.array([not result.problem for result in found])
    idle = (truth == 0) | np.isnan(truth)
    false = np.array([not result.problem and bool((result.low[idle] > 0).any()) for result in found])
    missed = np.array([not result.problem and _misses(result, truth) for result in found])
    return f"{claimed.mean():.2f} {rate(false)} {rate(missed)}"


def _misses(result: Importance, truth: Array) -> bool:
    """Return whether an interval of a share misses the true share."""
    return bool(((truth < result.low - 1e-9) | (truth > result.high + 1e-9)).any())
