"""Compute further metrics from the embeddings that trials stored, without training again.

Validation metrics go into the ledger, and from there into tables, reports and MLflow. Test metrics go only into the
sealed file of the trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.metrics.families import FAMILIES, family_of
from trainables.option_names import option_place, option_problem, spell
from tune_dml.record.events import TrialRescored
from tune_dml.record.held_out.sealed import add_sealed_metrics
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.state import SweepState

if TYPE_CHECKING:
    from tune_dml.planning.plan import PlannedTrial

_REFERENCE_METRIC = "map_at_r"  # computed again: its difference to the recorded value is the error of half precision


@dataclass(frozen=True)
class RescoredTrial:
    """A trial with its new metrics."""

    key: str
    label: str
    seed: int
    metrics: dict[str, float]  # validation metrics; test metrics are sealed
    rounding: float  # |MAP@R of the stored embeddings - recorded MAP@R|, in percentage points


@dataclass(frozen=True)
class RescoredSweep:
    """A sweep's trials with their new metrics."""

    trials: tuple[RescoredTrial, ...]
    without_embeddings: int  # number of finished trials without stored embeddings


def _metric_keys(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without `val/`, such as `recall_at_10`. Raise ConfigError for unknown names."""
    keys = tuple(dict.fromkeys(name.removeprefix("val/") for name in names))
    known = [family.key.format(k=10) for family in FAMILIES.values()]
    rule = "only metrics of a ranking can be computed from stored embeddings"
    unknown = [key for key in keys if not family_of(key)]
    problems = [Problem(option_place("metrics"), rule, key, known=known, kind="metric") for key in unknown]
    if not keys:
        problems.append(
            option_problem("metrics", "name at least one metric", None, f"Example: {spell('metrics', [known[0]])}.")
        )
    raise_if_any(problems)
    return keys


def compute_metrics(state: SweepState, names: Sequence[str]) -> RescoredSweep:
    """Compute and record metrics of every finished trial that stored its embeddings.

    Raise ConfigError if a metric is unknown or was measured in training, if no trial has embeddings, or if another
    process runs the sweep.
    """
    keys = _metric_keys(names)
    with Ledger(state.folder) as ledger:
        state.update()
        trials = {**state.trials, **state.confirmation_trials}
        finished = [trial for key, trial in trials.items() if state.trial(key).status == "finished"]
        raise_if_any(_already_measured_problems(state, finished, keys))
        rescored_trials = []
        for trial in finished:
            folder = trial_folder(state.folder, trial.key)
            figures = _figures(folder, "val", keys)
            if figures is None:
                continue
            if test := _figures(folder, "test", keys):
                add_sealed_metrics(state.folder, trial.key, {f"test/{key}": test[key] for key in keys})
            metrics = {f"val/{key}": figures[key] for key in keys}
            ledger.write(TrialRescored(key=trial.key, metrics=metrics))
            recorded_value = state.trial(trial.key).metrics.get(f"val/{_REFERENCE_METRIC}", math.nan)
            rounding = abs(figures[_REFERENCE_METRIC] - recorded_value)
            rescored_trials.append(RescoredTrial(trial.key, trial.cell.label, trial.seed, metrics, rounding))
    if not rescored_trials:
        rule = "metrics are computed from embeddings that trials have stored; no finished trial of this sweep has any"
        remedy = f"Run it under another name with {spell('settings', {'evaluation.keep': 'embeddings'})}."
        raise ConfigError(option_problem("sweep", rule, state.plan.name, remedy))
    state.update()
    return RescoredSweep(tuple(rescored_trials), len(finished) - len(rescored_trials))


def _already_measured_problems(
    state: SweepState, finished: Sequence[PlannedTrial], keys: Sequence[str]
) -> list[Problem]:
    recorded = [end.metrics for trial in finished if (end := state.trial(trial.key).end)]
    rule, remedy = "the trials have measured this, in full precision", "Leave it out: tables and reports have it."
    measured = [key for key in keys if recorded and all(f"val/{key}" in metrics for metrics in recorded)]
    return [option_problem("metrics", rule, key, remedy) for key in measured]


def _figures(folder: Path, half: str, keys: Sequence[str]) -> dict[str, float] | None:
    """Return the metrics of stored embeddings; None if there are none, or if one is not finite."""
    from trainables.evidence.stored import StoredEmbeddings, embeddings_file
    from trainables.metrics.retrieval import retrieval_metrics

    stored = StoredEmbeddings.read(folder / embeddings_file(half))
    if stored is None or not stored.vectors.isfinite().all():
        return None
    families = [family for key in (*keys, _REFERENCE_METRIC) if (family := family_of(key))]
    names, ks = dict.fromkeys(family.name for family, _ in families), dict.fromkeys(k for _, k in families)
    queries, labels, gallery = stored.search
    return retrieval_metrics(queries, labels, tuple(ks), gallery=gallery, metrics=tuple(names))
