"""Compute the resolution of a metric: its change when one query changes.

A retrieval metric is a mean over the trial's queries (`val/queries`), in percent. One of q queries changes R@k by 100 /
q, and other retrieval metrics by at most as much. For NMI, F1, a loss and results of other programs the number of
queries is unknown; the resolution is then estimated from the values (`stats.intervals.resolution.resolution_shown`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from trainables.metrics.families import describe_key

Metrics = Mapping[str, float]  # final figures of a trial


def resolution_of(metric: str, measured: Iterable[Metrics]) -> float:
    """Return the resolution in points, for the trial with the fewest queries; 0 if unknown."""
    name = metric.rpartition("/")[2]
    family = describe_key(name)
    if family is None or not family[1]:
        return 0.0
    count_key = f"{metric.removesuffix(name)}queries"
    counts = [queries for metrics in measured if (queries := metrics.get(count_key, 0.0)) > 0]
    return 100 / min(counts, default=math.inf)


def resolution_in(metric: str, cells: Iterable[Sequence[Metrics]], *, fractions: bool = False) -> float:
    """Return the resolution of a metric, from the number of queries or, without it, from the values of the trials.

    With `fractions`, the values may not be in percent, as those of other programs, so they are used as well.
    """
    metrics_by_cell = list(cells)
    step = resolution_of(metric, (metrics for trials in metrics_by_cell for metrics in trials))
    if step and not fractions:
        return step
    from tune_dml.stats.intervals.resolution import resolution_shown  # imports numpy

    shown_step = resolution_shown(
        [[trial[metric] for trial in trials if metric in trial] for trials in metrics_by_cell]
    )
    return min(step or math.inf, shown_step)
