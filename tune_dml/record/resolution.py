"""What one query moves a metric by, as far as it is known.

A retrieval metric is a mean over the queries that its trial reports (`val/queries`), in percent: one query moves R@k by
100 / q, and any other by at most that. Of other metrics (NMI, a loss) nothing is known, and hardly two seeds give the same
number. Results of other programs seldom say how many queries there were: there the values themselves show it, which are
multiples of 100 / q, or of the last decimal that was kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from trainables.metrics.families import described

_SAME = 1e-6
"""Points: values that differ by less are equal."""


def resolution_of(metric: str, measured: Iterable[Mapping[str, float]]) -> float:
    """In points, from the metrics of trials: of those with the fewest queries; 0 where no trial tells."""
    name = metric.rpartition("/")[2]
    known = described(name)
    if known is None or not known[1]:
        return 0.0
    counted = f"{metric.removesuffix(name)}queries"
    counts = [queries for metrics in measured if (queries := metrics.get(counted, 0.0)) > 0]
    return 100 / min(counts, default=math.inf)


def resolution_seen(values: Iterable[float]) -> float:
    """The largest step of which all differences are multiples (Euclid's algorithm); 0 where all are equal."""
    finite = sorted(value for value in values if math.isfinite(value))
    step = 0.0
    for value in finite:
        other = value - finite[0]
        while other > _SAME:
            step, other = other, math.fmod(step, other)
    return step
