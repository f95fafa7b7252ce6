"""Measure error rate and power of effects claimed for knobs of a search, which `verdicts.py` prints."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from scipy.stats.qmc import Sobol
from simulated_sweeps import Array, rate

from tune_dml.planning.study import Search
from tune_dml.running.search.gaussian import MIN_CELLS, GaussianSearch
from tune_dml.running.search.samplers import sampler_for
from tune_dml.stats.verdicts.search_effect import judge_search_effect

Surface = Callable[[Array], Any]
SIZE = 8.0
"""Size of every effect, in standard deviations of a trial."""
IDLE: dict[str, Surface] = {
    "nothing acts": lambda x: 0 * x[:, 0],
    "a peak of the second": lambda x: -4 * SIZE * (x[:, 1] - 0.6) ** 2,
    "a narrow peak of the second": lambda x: SIZE * np.exp(-(((x[:, 1] - 0.4) / 0.1) ** 2)),
    "a cliff of the second": lambda x: -SIZE * (x[:, 1] > 0.7),
    "second and third together": lambda x: 4 * SIZE * (x[:, 1] - 0.5) * (x[:, -1] - 0.5),
}
ACTS: dict[str, Surface] = {
    "a peak": lambda x: -4 * SIZE * (x[:, 0] - 0.6) ** 2,
    "a cliff": lambda x: -SIZE * (x[:, 0] > 0.7),
    "a slope": lambda x: SIZE * x[:, 0],
    "a slope, and a cliff of the second": lambda x: SIZE * (x[:, 0] - (x[:, 1] > 0.7)),
}


def search_effects(sweeps: int) -> Iterable[str]:
    """Print false and true claims about one knob, by search method."""
    searches = max(20, sweeps // 5)
    yield f"Searches, 3 seeds, {searches} each: an effect of the first knob is claimed, in percent (nominal 5)"
    for method in ("random", "qmc", "tpe", "gp"):
        for knobs, cells in ((2, 12), (2, 30), (3, 16), (3, 40)):
            for title, surfaces in (("idle", IDLE), ("acts", ACTS)):
                row = []
                for name, surface in surfaces.items():
                    found = np.array([is_claimed(method, surface, knobs, cells, number) for number in range(searches)])
                    row.append(f"{name} {rate(found) if surfaces is IDLE else f'{100 * found.mean():.0f}'}")
                yield f"{method:>7} {knobs} knobs {cells:3d} cells, {title}:  " + "   ".join(row)


def is_claimed(method: str, surface: Surface, knobs: int, cells: int, number: int) -> bool:
    """Return whether one simulated search claims an effect of the first knob."""
    rng = np.random.default_rng([knobs, cells, number])
    shared = 2 * rng.standard_normal(3)
    points, numbers = search(method, surface, (cells, knobs), number, lambda: shared + rng.standard_normal(3))
    effect = judge_search_effect(points[:, :1], points[:, 1:], numbers.mean(1), number)
    return effect is not None and effect.p_value <= 0.05


def search(
    method: str, surface: Surface, shape: tuple[int, int], number: int, noise: Callable[[], Array]
) -> tuple[Array, Array]:
    """Return points (cells, knobs) and numbers (cells, seeds) of a search by the platform's own sampler."""
    cells, knobs = shape
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    even = (Sobol(knobs, scramble=False).random(64) + np.random.default_rng(number).random(knobs)) % 1
    process = GaussianSearch(SimpleNamespace(dimensions=knobs, columns=lambda points: points))  # type: ignore[arg-type]
    study = optuna.create_study(direction="maximize")
    plan = Search(method=method, seed=number)  # type: ignore[arg-type]
    boxes = {f"x{knob}": optuna.distributions.FloatDistribution(0, 1) for knob in range(knobs)}
    points, numbers = np.zeros((0, knobs)), np.zeros((0, 3))
    for cell in range(cells):
        if method == "qmc" or (method == "gp" and cell < MIN_CELLS):
            point = even[cell]
        elif method == "gp":
            point = np.array(process.propose(points, numbers, np.zeros((0, knobs)), 1000 * number + cell))
        else:
            study.sampler = sampler_for(plan, cell, 0, is_conditional=False)
            ticket = study.ask(boxes)
            point = np.array([ticket.params[name] for name in boxes])
        score = surface(point[None]) + noise()
        points, numbers = np.vstack([points, point]), np.vstack([numbers, score])
        if method in {"random", "tpe"}:
            study.tell(ticket, float(score.mean()))
    return points, numbers
