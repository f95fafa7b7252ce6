"""Convergence of training: which values still gained at its end, and is that more than chance?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.traces import Change
from tune_dml.stats import SeedTable
from tune_dml.stats.verdicts.late_gains import judge_late_gains


@dataclass(frozen=True)
class Convergence:
    """Values that gained more than the margin at the end of training, with their gains, by certainty."""

    gaining: Mapping[str, Change]  # the gain is significant
    open: Mapping[str, Change]  # the gain may be chance
    is_small: bool  # whether the gain of every value is significantly below the margin
    is_judged: bool  # whether any value has the two seeds that a verdict needs


def judge_convergence(
    analysis: Analysis, changes: Sequence[Change], trials: Mapping[str, Sequence[str]], comparisons: int
) -> Convergence:
    """Judge the changes of the sweep's metric over the seeds; `trials` maps each label to the keys of its trials.

    `comparisons` is the number of values that share the error. Gains of cells that were chosen by their results are
    too large, so these share it with the cells that were not chosen.
    """
    if not changes:
        return Convergence({}, {}, is_small=False, is_judged=False)
    seeds = {trial.key: trial.seed for trial in analysis.results.trials}
    by_label = {change.label: _by_seed(change, [seeds[key] for key in trials[change.label]]) for change in changes}
    table = SeedTable.of(by_label, analysis.seeds).times(analysis.sign)
    judged = judge_late_gains(
        table.values, analysis.margin, analysis.looks.level, comparisons=comparisons, resolution=analysis.resolution
    )
    large = [analysis.sign * change.size > analysis.margin for change in changes]
    return Convergence(
        {c.label: c for c, is_large, rises in zip(changes, large, judged.rises, strict=True) if is_large and rises},
        {c.label: c for c, is_large, rises in zip(changes, large, judged.rises, strict=True) if is_large and not rises},
        is_small=bool(judged.small.all()),
        is_judged=bool(judged.known.any()),
    )


def _by_seed(change: Change, seeds: Sequence[int]) -> dict[int, float]:
    """Return the mean change of the trials of each seed."""
    sizes: dict[int, list[float]] = {}
    for seed, size in zip(seeds, change.by_trial, strict=True):
        if np.isfinite(size):
            sizes.setdefault(seed, []).append(size)
    return {seed: float(np.mean(numbers)) for seed, numbers in sizes.items()}
