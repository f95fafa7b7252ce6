"""Optuna samplers that depend only on the results in the study and on the number of the proposal.

No sampler may keep a state. TPE has none. NSGA-II stores generations in its trials, which are assigned again for cells
of earlier sessions. Optuna's CMA-ES keeps an optimizer, so ours rebuilds it from the results.
"""

import math
from typing import Any

import numpy as np
import optuna
from numpy.random import SeedSequence
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from tune_dml.planning.study import Search

_POPULATION = 12
"""Population of NSGA-II. With Optuna's 50, most cells of a usual search would be drawn at random."""
STEP = 0.25  # initial standard deviation of CMA-ES, as a fraction of each range


def seed_of(search: Search, number: int, attempt: int = 0) -> int:
    """Return a proposal's seed, which depends only on its number."""
    return int(SeedSequence([search.seed, number, attempt]).generate_state(1)[0])


def sampler_for(search: Search, number: int, attempt: int, *, is_conditional: bool) -> BaseSampler:
    """Return a new sampler. If `attempt` is above 0, after a repeated proposal, it draws at random."""
    seed = seed_of(search, number, attempt)
    if search.method in {"random", "qmc", "gp"} or attempt > 0:
        return RandomSampler(seed=seed)
    if search.method == "nsga2":
        return NSGAIISampler(seed=seed, population_size=_POPULATION)
    if search.method == "cmaes":
        return _CmaEs(seed)
    return TPESampler(seed=seed, multivariate=True, group=is_conditional, constant_liar=True, gamma=_good_cells)


def _good_cells(trials: int) -> int:
    """Return the number of cells that TPE counts as good: a quarter, at most 25.

    Optuna's default is a tenth, one or two cells in a small search. The density of two cells reaches into regions that
    diverge.
    """
    return min(math.ceil(trials / 4), 25)


def assign_generation(sampler: BaseSampler, study: optuna.Study, number: int) -> None:
    """Assign a generation and parents to a cell, if the sampler has generations. They depend on the present results."""
    if isinstance(sampler, NSGAIISampler):
        trial = study.get_trials(deepcopy=False)[number]
        sampler.get_parent_population(study, sampler.get_trial_generation(study, trial))


class _CmaEs(BaseSampler):  # type: ignore[misc]
    """CMA-ES over the ranges that all cells share; other knobs are drawn at random.

    The cells with results are its generations, in order, even if another method proposed them.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.random_sampler = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        shared = optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))
        return {
            name: item
            for name, item in shared.items()
            if isinstance(item, (FloatDistribution, IntDistribution)) and not item.single()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """Draw from the current generation; return nothing if no knob has a range."""
        from cmaes import CMA  # type: ignore[import-untyped] # loads scipy, which no other sampler needs

        if not search_space:
            return {}
        sign = 1.0 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1.0
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        box = _SearchSpaceTransform(search_space, transform_0_1=True)
        optimizer = CMA(np.full(len(search_space), 0.5), STEP, box.bounds, seed=self.seed)
        for start in range(0, len(trials) - optimizer.population_size + 1, optimizer.population_size):
            generation = trials[start : start + optimizer.population_size]
            optimizer.tell([(box.transform(item.params), sign * float(item.value or 0.0)) for item in generation])
        values: dict[str, object] = box.untransform(optimizer.ask())
        return values

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.random_sampler.sample_independent(study, trial, param_name, param_distribution)
