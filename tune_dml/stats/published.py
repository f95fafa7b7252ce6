"""Where is the best value of a printed curve, single runs without any spread?

The verdicts of `best`, with a normal distribution and a run-to-run standard deviation that is assumed: the user's, or else
half a point. Each says up to which standard deviation it would hold:

    edge       gap to the second / (z(1 - alpha) sqrt(2 / runs))                    (intersection-union test)
    interior   the smaller edge's gap to the best / (z(1 - alpha / (m - 1)) sqrt(2 / runs))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import norm

ASSUMED_SD = 0.5
"""Run-to-run standard deviation in points, when none is given."""


@dataclass(frozen=True)
class PublishedOptimum:
    """The verdict on one printed curve."""

    verdict: Literal["low edge", "high edge", "interior", "undecided"]
    best: float
    """The knob's value with the best printed number."""
    assumed_sd: float
    holds_up_to: float
    """The run-to-run standard deviation up to which the best value would be where it is printed: at its edge, or inside."""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        where = {
            "low edge": "best at the lowest tested",
            "high edge": "best at the highest tested",
            "interior": "best inside",
        }
        if self.verdict == "undecided":
            return (
                f"undecided (it would take a run s.d. of at most {self.holds_up_to:.2g}; assumed {self.assumed_sd:.2g})"
            )
        return f"{where[self.verdict]}, if the run s.d. is at most {self.holds_up_to:.2g}"


def judge_published(
    knob: Sequence[float],
    scores: Sequence[float],
    *,
    run_sd: float = ASSUMED_SD,
    runs: int = 1,
    goal: Literal["maximize", "minimize"] = "maximize",
    alpha: float = 0.05,
) -> PublishedOptimum:
    """Judge at least three printed numbers along a knob. Raises ValueError for fewer, or unless run_sd > 0."""
    if len(scores) < 3:
        raise ValueError(f"at least three printed values are needed, but got {len(scores)}")
    if not run_sd > 0:
        raise ValueError(f"`run_sd > 0` must hold, but got {run_sd=}")
    order = np.argsort(np.asarray(knob, dtype=float))
    y = np.asarray(scores, dtype=float)[order] * (1 if goal == "maximize" else -1)
    best = int(y.argmax())
    unit = np.sqrt(2 / runs)
    at_edge = best in (0, len(y) - 1)
    if at_edge:
        limit = (y[best] - np.delete(y, best).max()) / (norm.isf(alpha) * unit)
    else:
        limit = (y[best] - max(y[0], y[-1])) / (norm.isf(alpha / (len(y) - 1)) * unit)
    place: Literal["low edge", "high edge", "interior"] = (
        "interior" if not at_edge else "low edge" if best == 0 else "high edge"
    )
    return PublishedOptimum(
        place if run_sd < limit else "undecided", float(np.asarray(knob)[order[best]]), run_sd, float(limit)
    )
