"""Optuna samplers that depend only on the told trials of the study and the proposal's number.

None may keep a state. TPE and the Gaussian process have none. NSGA-II stores generations in its trials; they are assigned
again for cells of earlier sessions. CMA-ES keeps an optimizer, so ours rebuilds it from the told cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from numpy.random import SeedSequence
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from tune_dml.planning.study import Search

_Box = dict[str, FloatDistribution | IntDistribution]

_POPULATION = 12
"""Population of NSGA-II: a search has tens of cells, most of which Optuna's 50 would draw at random."""
STEP = 0.25
"""First standard deviation of CMA-ES, as a share of each range."""


def seed_of(search: Search, number: int, attempt: int = 0) -> int:
    """Return a proposal's seed, which depends only on its number."""
    return int(SeedSequence([search.seed, number, attempt]).generate_state(1)[0])


def sampler_for(search: Search, number: int, attempt: int, *, conditional: bool) -> BaseSampler:
    """Return a new sampler; after a repeated proposal it draws at random."""
    seed = seed_of(search, number, attempt)
    if search.method in {"random", "qmc", "gp"} or attempt > 0:
        return RandomSampler(seed=seed)
    if search.method == "nsga2":
        return NSGAIISampler(seed=seed, population_size=_POPULATION)
    if search.method == "cmaes":
        return _Evolution(seed)
    return TPESampler(seed=seed, multivariate=True, group=conditional, constant_liar=True, gamma=_good_cells)


def _good_cells(told: int) -> int:
    """Return how many cells TPE counts as good: a quarter, at most 25.

    Optuna's tenth leaves one or two in a small search; a density of two reaches far into the region that diverges.
    """
    return min(math.ceil(told / 4), 25)


def place_in_generation(sampler: BaseSampler, study: optuna.Study, number: int) -> None:
    """Assign a cell's generation and parents, if the sampler has generations.

    Both depend on the cells that the study had been told by then.
    """
    if isinstance(sampler, NSGAIISampler):
        trial = study.get_trials(deepcopy=False)[number]
        sampler.get_parent_population(study, sampler.get_trial_generation(study, trial))


class _Evolution(BaseSampler):  # type: ignore[misc]
    """CMA-ES over the ranges that every cell has; other knobs are drawn at random.

    The told cells are its generations, in order, even if another method proposed them.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.others = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the knobs with ranges that every told cell has."""
        common = optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))
        return {
            name: one
            for name, one in common.items()
            if isinstance(one, (FloatDistribution, IntDistribution)) and not one.single()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """Draw from the present generation; empty if no knob has a range."""
        from cmaes import CMA  # type: ignore[import-untyped] # loads scipy, which no other sampler needs

        box = {name: one for name, one in search_space.items() if isinstance(one, (FloatDistribution, IntDistribution))}
        if not box:
            return {}
        sign = 1.0 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1.0
        told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        size = len(box)
        optimizer = CMA(np.full(size, 0.5), STEP, np.tile([0.0, 1.0], (size, 1)), seed=self.seed)
        for start in range(0, len(told) - optimizer.population_size + 1, optimizer.population_size):
            generation = told[start : start + optimizer.population_size]
            optimizer.tell([(_shares(one, box), sign * float(one.value or 0.0)) for one in generation])
        return dict(zip(box, map(_value, box.values(), optimizer.ask().tolist()), strict=True))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw at random."""
        return self.others.sample_independent(study, trial, param_name, param_distribution)


def _shares(trial: FrozenTrial, box: _Box) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a cell's coordinates, from 0 to 1."""
    return np.array([_share(one, float(trial.params[name])) for name, one in box.items()])


def _ends(one: FloatDistribution | IntDistribution) -> Sequence[float]:
    """Return a range's ends on its scale; an integer stands for all numbers that round to it."""
    half = 0.5 if isinstance(one, IntDistribution) else 0.0
    low, high = one.low - half, one.high + half
    return (math.log(low), math.log(high)) if one.log else (low, high)


def _share(one: FloatDistribution | IntDistribution, value: float) -> float:
    low, high = _ends(one)
    return ((math.log(value) if one.log else value) - low) / (high - low)


def _value(one: FloatDistribution | IntDistribution, share: float) -> float | int:
    low, high = _ends(one)
    number = low + share * (high - low)
    number = min(max(math.exp(number) if one.log else number, one.low), one.high)
    return round(number) if isinstance(one, IntDistribution) else float(number)
