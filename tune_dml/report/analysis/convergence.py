"""Convergence of training: which values still gained at its end, and is that more than chance?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.traces import Change, Histories
from tune_dml.stats import SeedTable
from tune_dml.stats.verdicts.late_gains import judge_late_gains


@dataclass(frozen=True)
class Convergence:
    """Changes of each value at the end of training; those that gained more than the margin, by certainty."""

    changes: Sequence[Change]
    gaining: Mapping[str, Change]  # the gain is significant
    open: Mapping[str, Change]  # the gain tells nothing, for the reason `why_open`
    is_small: bool  # whether the gain of every value is significantly below the margin
    is_judged: bool  # whether any value has the two seeds that a verdict needs

    @property
    def why_open(self) -> str:
        """Why the largest gain does not show that training had not converged."""
        if not all(change.is_late for change in self.open.values()):
            return "but the last quarter of training has no evaluation before its end"
        return "which may be chance" if self.is_judged else "under one seed"


def judge_convergence(analysis: Analysis, histories: Histories, comparisons: int) -> Convergence:
    """Judge the changes of the sweep's metric at the end of training, over the seeds.

    A gain since an evaluation before the last quarter is no evidence: the learning rate was still high then, and half
    of the steps with their own schedule might have reached the same result. If there is no gain even over such a long
    period, training had converged all the more.

    `comparisons` is the number of values that share the error. Gains of cells that were chosen by their results are
    too large, so these share it with the cells that were not chosen.
    """
    changes = histories.changes(analysis.metric.key)
    if not changes:
        return Convergence((), {}, {}, False, False)
    seeds = {trial.key: trial.seed for trial in analysis.results.trials}
    by_label = {change.label: _by_seed(change, seeds) for change in changes}
    table = SeedTable.of(by_label, analysis.seeds).times(analysis.sign)
    judged = judge_late_gains(
        table.values, analysis.margin, analysis.looks.level, comparisons=comparisons, resolution=analysis.resolution
    )
    gaining, open_changes = dict[str, Change](), dict[str, Change]()
    for change, rises in zip(changes, judged.rises, strict=True):
        if analysis.sign * change.size > analysis.margin:
            (gaining if rises and change.is_late else open_changes)[change.label] = change
    return Convergence(changes, gaining, open_changes, bool(judged.small.all()), bool(judged.known.any()))


def _by_seed(change: Change, seeds: Mapping[str, int]) -> dict[int, float]:
    """Return the mean change of the trials of each seed; `seeds` maps the key of a trial to its seed."""
    sizes: dict[int, list[float]] = {}
    for trial, size in change.by_trial.items():
        if np.isfinite(size):
            sizes.setdefault(seeds[trial], []).append(size)
    return {seed: float(np.mean(numbers)) for seed, numbers in sizes.items()}
