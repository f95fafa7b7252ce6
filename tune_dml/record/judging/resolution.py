"""Resolution of a metric: how far one query moves it.

A retrieval metric is a mean over the trial's queries (`val/queries`), in percent: one query moves R@k by 100 / q, and any
other metric by at most that. For other metrics (NMI, F1, a loss) and results of other programs the number of queries is
unknown; there the values show the step (`stats.intervals.resolution.resolution_shown`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from trainables.metrics.families import describe_key

Metrics = Mapping[str, float]
"""Final figures of a trial."""


def resolution_of(metric: str, measured: Iterable[Metrics]) -> float:
    """Return the resolution in points, for the trial with the fewest queries; 0 if unknown."""
    name = metric.rpartition("/")[2]
    known = describe_key(name)
    if known is None or not known[1]:
        return 0.0
    counted = f"{metric.removesuffix(name)}queries"
    counts = [queries for metrics in measured if (queries := metrics.get(counted, 0.0)) > 0]
    return 100 / min(counts, default=math.inf)


def resolution_in(metric: str, cells: Iterable[Sequence[Metrics]], *, fractions: bool = False) -> float:
    """Return the resolution of a metric, from the number of queries or else from the values of each cell's trials.

    `fractions`: the numbers are another program's and may not be in percent, so the values are used as well.
    """
    by_cell = list(cells)
    known = resolution_of(metric, (metrics for trials in by_cell for metrics in trials))
    if known and not fractions:
        return known
    from tune_dml.stats.intervals.resolution import resolution_shown  # brings numpy along

    shown = resolution_shown([[trial[metric] for trial in trials if metric in trial] for trials in by_cell])
    return min(known or math.inf, shown)
