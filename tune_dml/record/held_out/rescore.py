"""Compute further metrics from the embeddings that trials kept, without training again.

Validation metrics go into the ledger, and from there into tables, reports and MLflow. Test metrics go into the trial's sealed
file only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from trainables.metrics.families import FAMILIES, family_of
from trainables.option_names import option_problem, spell
from tune_dml.record.events import TrialRescored
from tune_dml.record.held_out.sealed import seal_more
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.state import SweepState

if TYPE_CHECKING:
    from trainables.evidence.stored import StoredEmbeddings
    from tune_dml.planning.plan import PlannedTrial

_KNOWN = "map_at_r"
"""Computed again to measure the error of half precision: its distance to the recorded value."""


@dataclass(frozen=True)
class RescoredTrial:
    """A trial with its new metrics."""

    key: str
    label: str
    seed: int
    metrics: dict[str, float]
    """Validation metrics; test metrics are sealed."""
    rounding: float
    """|MAP@R of the stored embeddings - recorded MAP@R|, in percentage points."""


@dataclass(frozen=True)
class RescoredSweep:
    """A sweep's trials with their new metrics."""

    trials: tuple[RescoredTrial, ...]
    without: int
    """Number of finished trials without stored embeddings."""


def _metric_keys(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without their half, such as `recall_at_10`. Raise ConfigError for unknown ones."""
    keys = tuple(dict.fromkeys(name.removeprefix("val/") for name in names))
    known = [family.key.format(k=10) for family in FAMILIES.values()]
    rule = "only metrics of a ranking can be computed from kept embeddings"
    problems = [
        option_problem("metrics", rule, key, nearest(key, known, what="metric")) for key in keys if not family_of(key)
    ]
    if not keys:
        problems.append(
            option_problem("metrics", "name at least one metric", None, f"Example: {spell('metrics', [known[0]])}.")
        )
    raise_if_any(problems)
    return keys


def compute_metrics(state: SweepState, names: Sequence[str]) -> RescoredSweep:
    """Compute and record metrics of every finished trial that kept its embeddings.

    Raises:
        ConfigError: if a metric is unknown or already measured, if no trial has embeddings, or if another process runs the
            sweep.
    """
    keys = _metric_keys(names)
    with Ledger(state.folder) as ledger:
        state.update()
        trials = {**state.trials, **state.confirming}
        finished = [trial for key, trial in trials.items() if state.trial(key).status == "finished"]
        raise_if_any(_measured(state, finished, keys))
        done = []
        for trial in finished:
            folder = trial_folder(state.folder, trial.key)
            figures = _figures(folder, "val", keys)
            if figures is None:
                continue
            if test := _figures(folder, "test", keys):
                seal_more(state.folder, trial.key, {f"test/{key}": test[key] for key in keys})
            metrics = {f"val/{key}": figures[key] for key in keys}
            ledger.write(TrialRescored(key=trial.key, metrics=metrics))
            before = state.trial(trial.key).metrics.get(f"val/{_KNOWN}", math.nan)
            rounding = abs(figures[_KNOWN] - before)
            done.append(RescoredTrial(trial.key, trial.cell.label, trial.seed, metrics, rounding))
    if not done:
        rule = "metrics are computed from embeddings that trials have kept; no finished trial of this sweep has any"
        remedy = f"Run it under another name with {spell('settings', {'evaluation.keep': 'embeddings'})}."
        raise ConfigError(option_problem("sweep", rule, state.plan.name, remedy))
    state.update()
    return RescoredSweep(tuple(done), len(finished) - len(done))


def _measured(state: SweepState, finished: Sequence[PlannedTrial], keys: Sequence[str]) -> list[Problem]:
    """Refuse metrics that every trial measured itself, in full precision."""
    own = [end.metrics for trial in finished if (end := state.trial(trial.key).end)]
    rule, remedy = "the trials have measured this, in full precision", "Leave it out: tables and reports have it."
    there = [key for key in keys if own and all(f"val/{key}" in metrics for metrics in own)]
    return [option_problem("metrics", rule, key, remedy) for key in there]


def _figures(folder: Path, part: str, keys: Sequence[str]) -> dict[str, float] | None:
    """Return metrics of a half's embeddings; None if there are none, or one is not finite."""
    from trainables.evidence.stored import StoredEmbeddings, embeddings_file

    kept = StoredEmbeddings.read(folder / embeddings_file(part))
    return None if kept is None or not bool(kept.vectors.isfinite().all()) else _metrics(kept, (*keys, _KNOWN))


def _metrics(kept: StoredEmbeddings, keys: Sequence[str]) -> dict[str, float]:
    from trainables.metrics.retrieval import retrieval_metrics

    wanted = [found for key in keys if (found := family_of(key))]
    names, ks = dict.fromkeys(family.name for family, _ in wanted), dict.fromkeys(k for _, k in wanted)
    queries, labels, gallery = kept.search
    return retrieval_metrics(queries, labels, tuple(ks), gallery=gallery, metrics=tuple(names))
