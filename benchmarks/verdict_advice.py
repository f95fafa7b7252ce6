"""Compare forecast chances with outcomes, for sweeps that follow the advised seeds. `verdicts.py` prints the table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from unittest.mock import patch

import numpy as np
from simulated_sweeps import Array, simulate

from tune_dml.stats import forecast
from tune_dml.stats.forecast import Verdict, best_is_known, forecast_seeds, sensitivity_is_decided
from tune_dml.stats.sequential.looks import level_left

NOISE = ("iid", "one cell 5x", "t3", "slope", "measured-like", "discrete")
BINS = ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.01))
_LOWEST = 0.2
"""Smallest forecast chance that a sweep follows here. The platform's limit is higher; this checks small chances too."""
_MAX_SEEDS = 60
"""Largest number of seeds."""


@dataclass(frozen=True)
class Truth:
    """True means of a sweep, and its question."""

    name: str
    means: Array
    first: int = 3
    """Number of planned seeds."""
    margin: float = 1.0
    rows: tuple[int, ...] = ()
    """Level of each cell if the sweep is a full grid."""
    best: bool = False
    """Whether the question is which cell is the best, instead of whether the knob matters."""

    def question(self, resolution: float) -> Verdict:
        """Return the rule that tells whether a sweep is decided."""
        if self.best:
            return best_is_known(resolution)
        return sensitivity_is_decided(self.margin, rows=self.rows, resolution=resolution)


_GRID = np.add.outer([0.0, 2.0, 4.0], [0.0, 1.0, 1.5]).ravel()
_ROWS = (0, 0, 0, 1, 1, 1, 2, 2, 2)
TRUTHS = (
    Truth("demo", np.array([57.0, 57, 66, 75, 76, 76]) / 2, margin=0.5),
    Truth("flat", np.zeros(6)),
    Truth("flat, wide margin", np.zeros(6), margin=2.0),
    Truth("slope", np.linspace(0, 4, 6)),
    Truth("one better", np.array([0.0, 0, 0, 3, 0, 0])),
    Truth("3 x 3, 2 seeds", _GRID, first=2, rows=_ROWS),
    Truth("3 x 3, 3 seeds", _GRID, rows=_ROWS),
    Truth("3 x 3 flat", 0 * _GRID, margin=2.0, rows=_ROWS),
    Truth("best of 6, one better", np.array([0.0, 0, 0, 3, 0, 0]), best=True),
    Truth("best of 6, slope", np.linspace(0, 5, 6), best=True),
    Truth("best of 6, flat", np.zeros(6), best=True),
)
"""Noise has unit standard deviation. The demo's is 2, so its means and margin are halved."""


def advice(sweeps: int) -> Iterable[str]:
    """Compare forecasts with outcomes by noise, question and size of the forecast."""
    draws = max(20, sweeps // 20)
    yield f"Mean forecast chance / share of steps that decided (steps), {draws} sweeps of each of {len(TRUTHS)} cases"
    columns = "".join(f"{100 * low:.0f} to {min(100, 100 * high):.0f} %".rjust(20) for low, high in BINS)
    yield f"{'':>27}{'all':>20}{columns}"
    by_question: dict[str, list[tuple[float, bool]]] = {truth.name: [] for truth in TRUTHS}
    for kind in NOISE:
        found = {truth.name: list(follow(truth, kind, draws)) for truth in TRUTHS}
        yield f"{kind:>27}{_row_text([*chain(*found.values())])}"
        for question, steps in found.items():
            by_question[question] += steps
    yield f"{'all noise':>27}{_row_text([*chain(*by_question.values())])}"
    for question, steps in by_question.items():
        yield f"{question:>27}{_row_text(steps)}"


def follow(truth: Truth, kind: str, sweeps: int) -> Iterator[tuple[float, bool]]:
    """Yield each step's forecast chance and whether it decided. A sweep ends when it is decided or has no advice."""
    rng, resolution = np.random.default_rng(1), 1.0 if kind == "discrete" else 0.0
    with patch.object(forecast, "EVEN", _LOWEST):
        for _ in range(sweeps):
            drawn = simulate(kind, len(truth.means), _MAX_SEEDS, 1, rng)[0]
            values = drawn + truth.means[:, None]
            values = np.round(values) if resolution else values
            yield from _follow_sweep(values, truth, resolution)


def _follow_sweep(values: Array, truth: Truth, resolution: float) -> Iterator[tuple[float, bool]]:
    looks, chance, is_decided = [truth.first], None, truth.question(resolution)
    while True:
        observed = values[:, : looks[-1]]
        decided = bool(is_decided(observed[None], level_left(looks, planned=truth.first))[0])
        if chance is not None:
            yield chance, decided
        if decided:
            return
        past = tuple(looks)

        def level(seeds: int, past: Sequence[int] = past) -> float:
            return level_left([*past, seeds], planned=truth.first)

        ahead = forecast_seeds(observed, looks[-1], level, is_decided, scale=truth.margin, resolution=resolution)
        if ahead is None or ahead.chance < _LOWEST or ahead.seeds > _MAX_SEEDS:
            return
        chance = ahead.chance
        looks.append(ahead.seeds)


def _row_text(steps: Sequence[tuple[float, bool]]) -> str:
    numbers = np.array(steps, dtype=float).reshape(-1, 2)
    parts = [numbers] + [numbers[(numbers[:, 0] >= low) & (numbers[:, 0] < high)] for low, high in BINS]
    return "".join(
        (f"{100 * part[:, 0].mean():.0f} / {100 * part[:, 1].mean():.0f} ({len(part)})" if len(part) else "-").rjust(20)
        for part in parts
    )
