"""Export a sweep as an Optuna study, with a trial for each cell and seed."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem
from tune_dml.record.origin.provenance import mask
from tune_dml.record.results import Results, TrialResult
from tune_dml.record.state import TrialStatus
from tune_dml.space import Grid, Knob, Value
from tune_dml.text import is_number

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

_ARM = "arm"
_STATES: Mapping[TrialStatus, str] = {
    "finished": "COMPLETE",
    "failed": "FAIL",
    "diverged": "FAIL",
    "stopped": "PRUNED",
    "running": "RUNNING",
}


def study_of(results: Results, storage: str | None = None) -> Study:
    """Create a study with every trial that has started, in memory or in an Optuna storage, and return it.

    Knobs become parameters; a grid of numbers becomes a range. The user attributes of a trial are seed, cell, status,
    reason, trial, and every metric. Raise ConfigError if the storage cannot be written, or has a study of this name.
    """
    import optuna

    knobs = _distributions(results)
    trials = [_trial(results, trial, knobs) for trial in results.trials if trial.status in _STATES]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    study = None
    try:
        goal = results.plan.space.goal
        study = optuna.create_study(storage=storage, study_name=results.name, direction=goal)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns that it is experimental
            study.set_metric_names([results.plan.metric])
        study.add_trials(trials)
    except optuna.exceptions.DuplicatedStudyError:
        rule = f"the storage has a study {results.name} already"
        raise ConfigError(Problem("TO", rule, mask(str(storage)), "Name another file.")) from None
    except Exception as error:  # database drivers raise errors of many classes
        reason = str(error.__cause__ or error).partition("\n")[0]
        rule, remedy = f"must be a storage of Optuna ({reason})", "Example: sqlite:///study.db."
        if study is not None:  # such as on a full disk
            rule = f"the study could not be written completely ({reason})"
            remedy = "Delete it there, or name another file."
        raise ConfigError(Problem("TO", rule, mask(str(storage)), remedy)) from None
    finally:
        optuna.logging.set_verbosity(verbosity)
    return study


def _trial(results: Results, trial: TrialResult, knobs: Mapping[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    metric = results.plan.metric
    state, value = TrialState[_STATES[trial.status]], trial.metrics.get(metric)
    if state == TrialState.COMPLETE and (value is None or math.isnan(value)):  # Optuna refuses NaN
        state = TrialState.FAIL
    arm = {_ARM: trial.cell.arm} if _ARM in knobs else {}
    params = {**{path: v for path, v in trial.cell.knobs.items() if path in knobs}, **arm}
    rows = {int(row["step"]): float(row[metric]) for row in results.history(trial.key) if metric in row}
    attributes = {"seed": trial.seed, "cell": trial.cell.label, "status": trial.status, "trial": trial.key}
    attributes |= {"reason": trial.reason} if trial.reason else {}
    ended = datetime.fromtimestamp(trial.ended) if trial.ended else None
    return FrozenTrial(
        number=0,  # the study assigns the number
        trial_id=0,
        state=state,
        value=value if state == TrialState.COMPLETE else None,
        datetime_start=datetime.fromtimestamp(max((trial.ended or time.time()) - trial.seconds, 0.0)),
        datetime_complete=ended if state.is_finished() else None,
        params=params,
        distributions={name: knobs[name] for name in params},
        user_attrs={**attributes, **trial.metrics},
        system_attrs={},
        intermediate_values=rows,
    )


def _distributions(results: Results) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution

    arms = list(dict.fromkeys(cell.arm for cell in results.cells))
    distributions: dict[str, BaseDistribution] = {_ARM: CategoricalDistribution(arms)} if len(arms) > 1 else {}
    for knob in results.plan.knobs:
        values = [cell.knobs[knob.path] for cell in results.cells if knob.path in cell.knobs]
        if values:
            distributions[knob.path] = _distribution(knob, values)
    return distributions


def _distribution(knob: Knob, values: Sequence[Value]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    domain = knob.domain
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return CategoricalDistribution(list(dict.fromkeys(values)))
    ends = numbers if isinstance(domain, Grid) else [*numbers, domain.low, domain.high]
    low, high = min(ends), max(ends)
    log = domain.scale == "log" and low > 0
    if all(isinstance(number, int) for number in numbers) and (isinstance(domain, Grid) or domain.integer):
        return IntDistribution(int(low), int(high), log=log and low >= 1)
    return FloatDistribution(float(low), float(high), log=log)
