"""Error rates of verdicts on log grids, names, searches of one knob, unequal seeds, which `verdicts.py` prints."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import Array, excludes_zero, rate, simulate
from verdict_search_effects import search

from tune_dml.stats.intervals.contrasts import estimate_gains
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most
from tune_dml.stats.verdicts.best import compare_with_best, judge_best
from tune_dml.stats.verdicts.curve import fit_parabola

KINDS = (
    "edge 10x",
    "edge 10x, t3",
    "slope of the value",
    "slope of the log",
    "two groups",
    "own reaction",
    "edge collapses",
)
"""Noise that grows to 10 s.d. at the last value; seeds that react to the value of a log grid, which moves its last value
alone, or to its logarithm; that move every second name, or each name in its own way; the last value loses 8 s.d. in 20 %
of seeds."""


def _simulate(kind: str, cells: int, seeds: int, sweeps: int, rng: np.random.Generator) -> Array:
    noise, reaction = rng.standard_normal((sweeps, cells, seeds)), rng.standard_normal((sweeps, 1, seeds))
    if kind.endswith("t3"):
        noise = rng.standard_t(3, noise.shape) / np.sqrt(3)
    if kind.startswith("edge 10x"):
        noise *= np.geomspace(1, 10, cells)[:, None]
    elif kind == "slope of the value":
        noise += 10 * np.geomspace(0.001, 1, cells)[:, None] * reaction
    elif kind == "slope of the log":
        noise += 10 * np.linspace(-0.5, 0.5, cells)[:, None] * reaction
    elif kind == "two groups":
        noise += 5 * (np.arange(cells) % 2)[:, None] * reaction
    elif kind == "own reaction":
        noise += 5 * rng.standard_normal((sweeps, cells, 1)) * reaction
    elif kind == "edge collapses":
        noise[:, -1] -= 8 * ((rng.random((sweeps, seeds)) < 0.2) - 0.2)
    return noise


def _lifted(values: Array, rows: list[int]) -> Array:
    """Return values with rows 60 s.d. above the others."""
    moved = values - 60.0
    moved[:, rows] += 60.0
    return moved


def _is_one_of_two(values: Array, rows: list[int]) -> NDArray[np.bool_]:
    """Return whether one of two values, equal and far above the others, is called the only best."""
    return np.asarray(compare_with_best(_lifted(values, rows)).candidates.sum(1) == 1)


def _misses_margin(values: Array) -> NDArray[np.bool_]:
    """Return whether a knob is said not to matter although its last value is 3 s.d. better: exactly what matters."""
    better = values.copy()
    better[:, -1] += 3
    return np.asarray((at_most(better) < 3).all((1, 2)))


CLAIMS: dict[str, Callable[[Array], NDArray[np.bool_]]] = {
    "differ": lambda values: (all_pairs(values).low > 0).any((1, 2)),
    "does not matter": _misses_margin,
    "first, last left out": lambda values: ~compare_with_best(values).candidates[:, [0, -1]].T,
    "interior": lambda values: ~compare_with_best(values).candidates[:, [0, -1]].any(1),
    "alone: one of both ends": lambda values: _is_one_of_two(values, [0, -1]),
    "one of the last two": lambda values: _is_one_of_two(values, [-2, -1]),
    "interior, a middle and the last are best": lambda values: (
        ~compare_with_best(_lifted(values, [values.shape[1] // 2, -1])).candidates[:, [0, -1]].any(1)
    ),
}


def knob_kinds(sweeps: int) -> Iterable[str]:
    """Print wrong statements about values of a log grid and about names."""
    yield f"Equal values unless stated, wrong: {'; '.join(CLAIMS)}"
    for cells in (3, 5, 8):
        for seeds in (3, 5, 10):
            for index, kind in enumerate(KINDS):
                values = _simulate(kind, cells, seeds, sweeps, np.random.default_rng([cells, seeds, index]))
                rates = [" ".join(map(rate, np.atleast_2d(wrong(values)))) for wrong in CLAIMS.values()]
                yield f"{cells:3d} values {seeds:3d} seeds {kind:>18}:  " + "  ".join(rates)


CURVES: dict[str, Callable[[Array], Array]] = {
    "flat": lambda x: 0 * x,
    "a peak": lambda x: -32 * (x - 0.6) ** 2,
    "a slope": lambda x: 8 * x,
    "saturating": lambda x: 8 * (1 - np.exp(-5 * x)),
}
WRONG = ("differ", "does not matter", "best left out", "edge", "interior", "parabola: interior")


def searched_knob(sweeps: int) -> Iterable[str]:
    """Print wrong statements about the values that a search of one knob tried."""
    yield f"One knob searched, 16 values x 3 seeds, wrong: {'; '.join(WRONG)}; an optimum is located"
    for method in ("random", "tpe", "gp"):
        searches = max(10, sweeps // (20 if method == "gp" else 8))
        for name, curve in CURVES.items():
            for reaction in (0.0, 2.0):
                found = np.array([_judge_search(method, curve, reaction, number) for number in range(searches)])
                size = f"{method:>7} {searches} searches, {name}, seeds' slopes {reaction:g} s.d."
                yield f"{size:>50}:  " + " ".join(map(rate, found.T[:-1])) + f"  {found[:, -1].mean():.2f}"


def _judge_search(method: str, curve: Callable[[Array], Array], reaction: float, number: int) -> list[bool]:
    """Return which statements about a search's values are wrong, and whether its optimum is located."""
    rng = np.random.default_rng(number)
    shared, slopes = 2 * rng.standard_normal(3), reaction * rng.standard_normal(3)

    def surface(x: Array) -> Array:
        return np.asarray(curve(x[:, 0]) + slopes * x[:, 0])

    points, values = search(method, surface, (16, 1), number, lambda: shared + rng.standard_normal(3))
    order = points[:, 0].argsort()
    knob, values = points[order, 0], values[order]
    truth = curve(knob)
    best = int(truth.argmax())
    candidates = compare_with_best(values).candidates
    place = judge_best(values, knob.tolist(), 1.0).place
    at = {0: "low edge", len(knob) - 1: "high edge"}.get(best, "interior")
    is_flat = not np.ptp(truth)
    low = all_pairs(values).low
    return [
        bool((low > np.maximum(truth[:, None] - truth, 0) + 1e-9).any()),
        not is_flat and bool((at_most(values) < np.ptp(truth)).all()),
        not candidates[best] and not is_flat,
        place.endswith("edge") and place != at,
        place == "interior" != at,
        fit_parabola(values, knob).verdict == "interior" != at,
        place == at,
    ]


def unequal_seeds(sweeps: int) -> Iterable[str]:
    """Print wrong statements about equal cells, as methods, some of which have fewer seeds than others."""
    yield "Two cells with 3 seeds; every second one with 3; the middle one with every second seed; 2 up to all; the middle one"
    yield "with 2. Wrong, by noise (seeds' effects 5 s.d.): differ, against the middle one, gains, left out: middle, first"
    for cells in (4, 8, 16):
        for seeds in (5, 10):
            for pattern, present in _seeds_present(cells, seeds).items():
                row = []
                for kind in ("iid", "t3", "one cell 5x", "ramp", "slope"):
                    rng = np.random.default_rng([cells, seeds])
                    values = np.where(present, simulate(kind, cells, seeds, sweeps, rng, seed_sd=5), np.nan)
                    gains = estimate_gains(values, [(cell, cell - 1) for cell in range(1, cells, 2)])
                    left_out = ~compare_with_best(values).candidates[:, [cells // 2, 0]].T
                    claims = [(all_pairs(values).low > 0).any((1, 2))]
                    claims += [excludes_zero(bounds).any(1) for bounds in (against(values, cells // 2), gains)]
                    row.append(f"{kind} {' '.join(map(rate, (*claims, *left_out)))}")
                yield f"{cells:3d} cells {seeds:3d} seeds, {pattern:>18}:  " + "   ".join(row)


def _seeds_present(cells: int, seeds: int) -> dict[str, NDArray[np.bool_]]:
    """Return which cells have which seeds, by pattern."""
    cell, seed = np.arange(cells)[:, None], np.arange(seeds)
    middle = cell == cells // 2
    return {
        "two with 3": (seed < 3) | ~(middle | (cell == 0)),
        "every second with 3": (seed < 3) | (cell % 2 == 0),
        "one with half": (seed % 2 == 1) | ~middle,
        "2 up to all": seed < 2 + (seeds - 2) * cell // (cells - 1),
        "one with 2": (seed < 2) | ~middle,
    }
