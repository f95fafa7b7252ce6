"""What one query moves a metric by, as far as it is known, else what its numbers show.

A retrieval metric is a mean over the queries that its trial reports (`val/queries`), in percent: one query moves R@k by
100 / q, and any other by at most that. Of other metrics (NMI, F1, a loss, a user's own) and of results of other programs
nobody says how many queries there were: there the values themselves show it (`stats.intervals.resolution.resolution_shown`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from trainables.metrics.families import described

Metrics = Mapping[str, float]
"""What a trial logged last."""


def resolution_of(metric: str, measured: Iterable[Metrics]) -> float:
    """In points, from the metrics of trials: of those with the fewest queries; 0 where no trial tells."""
    name = metric.rpartition("/")[2]
    known = described(name)
    if known is None or not known[1]:
        return 0.0
    counted = f"{metric.removesuffix(name)}queries"
    counts = [queries for metrics in measured if (queries := metrics.get(counted, 0.0)) > 0]
    return 100 / min(counts, default=math.inf)


def resolution_in(metric: str, cells: Iterable[Sequence[Metrics]], *, fractions: bool = False) -> float:
    """Return what one query moves a metric by; where no trial tells, what the numbers of each cell's trials show.

    `fractions`: numbers of other programs, which need not be in percent, show it even where trials tell.
    """
    by_cell = list(cells)
    known = resolution_of(metric, (metrics for trials in by_cell for metrics in trials))
    if known and not fractions:
        return known
    from tune_dml.stats.intervals.resolution import resolution_shown  # brings numpy along

    shown = resolution_shown([[trial[metric] for trial in trials if metric in trial] for trials in by_cell])
    return min(known or math.inf, shown)
