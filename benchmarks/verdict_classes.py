"""Count false claims that a difference generalizes to other classes, which `verdicts.py` prints."""

from collections.abc import Iterable

import numpy as np
from simulated_sweeps import Array, rate

from tune_dml.stats.verdicts.classes import judge_generalization

EFFECTS: dict[str, tuple[float, float, float]] = {
    "none": (0.0, 0.0, 0.0),
    "classes": (0.5, 0.0, 0.0),
    "classes, strong": (1.0, 0.0, 0.0),
    "seeds": (0.0, 0.3, 0.0),
    "pairs of both": (0.0, 0.0, 0.3),
    "classes and seeds": (0.5, 0.3, 0.0),
    "all three": (0.5, 0.3, 0.3),
}
"""Name -> s.d. of a cell's effects of classes, of seeds, and of both together, on the logit of a hit."""


def classes(sweeps: int) -> Iterable[str]:
    """Print how often equally good cells are said to differ, by each of the three p-values."""
    number = max(50, sweeps // 4)
    yield f"Equally good cells, {number} sweeps a row, what their difference depends on: claims at 5 % per query, over classes,"
    yield "over classes and seeds"
    for count in (10, 20, 70):
        for seeds in (2, 3, 5, 10):
            row = []
            for index, (name, sizes) in enumerate(EFFECTS.items()):
                found = [
                    _claims(np.random.default_rng([count, seeds, index, i]), count, seeds, sizes) for i in range(number)
                ]
                row.append(f"{name} {' '.join(map(rate, zip(*found, strict=True)))}")
            yield f"{count:3d} classes {seeds:3d} seeds:  " + "   ".join(row)


def _claims(rng: np.random.Generator, count: int, seeds: int, sizes: tuple[float, float, float]) -> tuple[bool, ...]:
    """Return whether each p-value claims a difference of two cells whose expected R@1 is equal over classes and seeds."""
    shapes = ((count, 1), (1, seeds), (count, seeds))
    effect = sum(size * rng.standard_normal(shape) for size, shape in zip(sizes, shapes, strict=True)) / 2
    level = rng.normal(0.5, 1.0, (count, 1))
    first, second = (1 / (1 + np.exp(-(level + sign * effect + np.zeros((count, seeds))))) for sign in (1, -1))
    queries = np.broadcast_to(rng.integers(10, 40, (count, 1)), (count, seeds))
    only = np.stack([first * (1 - second), second * (1 - first)], -1)
    drawn: Array = rng.multinomial(queries, np.concatenate([only, 1 - only.sum(-1, keepdims=True)], -1)).astype(float)
    mine, theirs = drawn[..., 0], drawn[..., 1]
    judged = judge_generalization(mine - theirs, queries, (int(mine.sum()), int(theirs.sum())), alpha=0.05)
    return judged.per_query <= 0.05, judged.these_networks <= 0.05, judged.low > 0 or judged.high < 0
