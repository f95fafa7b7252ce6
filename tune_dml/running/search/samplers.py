"""The samplers of a search: each a function of what its study has been told, and of the proposal's number.

So none may keep a state of its own. TPE and the Gaussian process have none. NSGA-II counts generations in its trials, and they
are counted again for cells that earlier sessions proposed. CMA-ES keeps an optimizer, so ours builds it from the told cells.
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
"""Of NSGA-II: a search has tens of cells, and at Optuna's 50 most would be random."""
STEP = 0.25
"""Of CMA-ES: its first standard deviation, as a share of each range."""


def seed_of(search: Search, number: int, attempt: int = 0) -> int:
    """Of a proposal: it depends on the proposal's number alone."""
    return int(SeedSequence([search.seed, number, attempt]).generate_state(1)[0])


def sampler_for(search: Search, number: int, attempt: int, *, conditional: bool) -> BaseSampler:
    """A fresh sampler whose seed depends on the proposal's number alone; after repeats it turns to random draws."""
    seed = seed_of(search, number, attempt)
    if search.method in {"random", "qmc", "gp"} or attempt > 0:
        return RandomSampler(seed=seed)
    if search.method == "nsga2":
        return NSGAIISampler(seed=seed, population_size=_POPULATION)
    if search.method == "cmaes":
        return _Evolution(seed)
    return TPESampler(seed=seed, multivariate=True, group=conditional, constant_liar=True, gamma=_good_cells)


def _good_cells(told: int) -> int:
    """How many cells TPE takes for the good ones: a quarter, at most 25.

    Of Optuna's tenth one or two are left in a small search, and a density of two reaches far beyond where training breaks
    down (docs/log.md).
    """
    return min(math.ceil(told / 4), 25)


def place_in_generation(sampler: BaseSampler, study: optuna.Study, number: int) -> None:
    """Say which generation a cell belongs to, where the sampler has generations, and choose its parents.

    Both depend on what the study has been told when the cell is asked for, so they are settled then.
    """
    if isinstance(sampler, NSGAIISampler):
        trial = study.get_trials(deepcopy=False)[number]
        sampler.get_parent_population(study, sampler.get_trial_generation(study, trial))


class _Evolution(BaseSampler):  # type: ignore[misc]
    """CMA-ES over the knobs with ranges that every cell has; other knobs are drawn at random.

    Told cells are its generations, in the order in which they were told, whoever proposed them; a point is drawn from the
    distribution that they lead to.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.others = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The knobs with ranges that every told cell has."""
        common = optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))
        return {
            name: one
            for name, one in common.items()
            if isinstance(one, (FloatDistribution, IntDistribution)) and not one.single()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A draw of the present generation; nothing where no knob has a range."""
        from cmaes import CMA  # type: ignore[import-untyped] # with scipy, which no other sampler needs

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
        """At random."""
        return self.others.sample_independent(study, trial, param_name, param_distribution)


def _shares(trial: FrozenTrial, box: _Box) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Where a cell lies in the ranges, from 0 to 1."""
    return np.array([_share(one, float(trial.params[name])) for name, one in box.items()])


def _ends(one: FloatDistribution | IntDistribution) -> Sequence[float]:
    """A range's ends, by what its samples are equally likely in; a whole number stands for all that rounds to it."""
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
