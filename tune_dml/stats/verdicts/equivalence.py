"""Agreement of results with a published curve within a margin, and the best value of a published curve.

A gap is our mean over n seeds minus the mean of the paper's runs, at one value. Its standard error is, with our own
run-to-run standard deviation s at that value, seed effect included:

    se^2 = s^2 / n + sd^2 / runs        sd: the paper's run-to-run standard deviation; ours if it is not given

    matches      every gap is significantly inside (-margin, margin): two one-sided tests at alpha each (Schuirmann 1987);
                 all must succeed, so nothing is corrected
    higher       some gap is significantly above 0, none below (Bonferroni over the values); lower, mixed likewise
    compatible   neither: no gap is significant, and none of the size of the margin is ruled out

`holds_up_to` is the paper's standard deviation up to which the verdict holds; a single printed run does not show it.

Orders are compared pair by pair (`judge_order`). Printed numbers vary from run to run as ours do, so a pair counts as ordered
as published, or the other way, only if both orders are significant.

`judge_published` locates the best value of a published curve of single runs. It assumes normal noise with a given run-to-run
standard deviation, or half a point. Each verdict states the largest standard deviation for which it holds:

    edge       gap to the second / (z(1 - alpha) sqrt(2 / runs))                    (intersection-union test)
    interior   the smaller edge's gap to the best / (z(1 - alpha / (m - 1)) sqrt(2 / runs))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.distributions import normal_isf, student_isf
from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.resolution import least_variance

Verdict = Literal["matches", "higher", "lower", "mixed", "compatible", "undecided"]

TOST = "two one-sided t tests against the margin; differences by t intervals, Bonferroni over the shared values"


@dataclass(frozen=True)
class Equivalence:
    """Verdict on the agreement with a published curve, and the gap at each value."""

    verdict: Verdict
    margin: float
    gaps: tuple[float, ...]
    low: tuple[float, ...]
    """Simultaneous lower bounds of the gaps; NaN without a noise estimate."""
    high: tuple[float, ...]
    assumed_sd: float | None
    """Given run-to-run standard deviation of the paper; None means equal to ours."""
    holds_up_to: float
    """Largest standard deviation of the paper for which the verdict holds; NaN if there is none."""


def judge_equivalence(
    values: Array,
    published: Sequence[float],
    margin: float,
    *,
    run_sd: float | None = None,
    runs: int = 1,
    alpha: float = 0.05,
    resolution: float = 0.0,
) -> Equivalence:
    """Compare cells x seeds with the published number of each cell.

    `resolution` is the step of our values. Raises ValueError unless margin > 0 and run_sd >= 0.
    """
    if not margin > 0:
        raise ValueError(f"`margin > 0` must hold, but got {margin=}")
    if run_sd is not None and run_sd < 0:
        raise ValueError(f"`run_sd >= 0` must hold, but got {run_sd=}")
    printed = np.asarray(published, dtype=float)
    counts = np.isfinite(values).sum(1)
    if len(printed) == 0 or (counts < 2).any():
        unknown = (math.nan,) * len(printed)
        rows = zip(values, printed, counts, strict=True)
        gaps = tuple(float(np.nanmean(row) - y) if count else math.nan for row, y, count in rows)
        return Equivalence("undecided", margin, gaps, unknown, unknown, run_sd, math.nan)
    means = np.nanmean(values, axis=1)
    sds = np.sqrt(np.maximum(np.nanvar(values, axis=1, ddof=1), least_variance(resolution)))
    gaps_ = means - printed

    def judge(sd: float | None) -> tuple[Verdict, Array]:
        theirs = sds**2 / runs if sd is None else np.full(len(sds), sd**2 / runs)
        error = np.sqrt(sds**2 / counts + theirs)
        df = _satterthwaite(sds**2 / counts, theirs, counts - 1, known=sd is not None)
        reach = student_isf(alpha / (2 * len(printed)), df) * error
        inside = np.abs(gaps_) + student_isf(alpha, df) * error < margin
        return _word(gaps_, reach, bool(inside.all())), reach

    verdict, reach = judge(run_sd)
    start = next((sd for sd in (run_sd, 0.0) if sd is not None and judge(sd)[0] == verdict), float(sds.max()))
    limit = _largest_sd(lambda sd: judge(sd)[0] == verdict, start, float(np.abs(gaps_).max() + margin))
    return Equivalence(
        verdict,
        margin,
        tuple(gaps_.tolist()),
        tuple((gaps_ - reach).tolist()),
        tuple((gaps_ + reach).tolist()),
        run_sd,
        limit if verdict != "compatible" else math.nan,
    )


def _satterthwaite(ours: Array, theirs: Array, nu: NDArray[np.int64], *, known: bool) -> Array:
    """Return the degrees of freedom of the gap's variance; a given standard deviation counts as exact."""
    if not known:
        return nu.astype(float)
    return np.asarray(np.divide((ours + theirs) ** 2 * nu, ours**2, out=np.full(len(ours), 1e6), where=ours > 0))


def _word(gaps: Array, reach: Array, inside: bool) -> Verdict:
    if inside:
        return "matches"
    above, below = bool((gaps > reach).any()), bool((gaps < -reach).any())
    if above and below:
        return "mixed"
    return "higher" if above else "lower" if below else "compatible"


def _largest_sd(stays: Callable[[float], bool], start: float, top: float) -> float:
    """Return the largest standard deviation at which the verdict holds, by bisection from `start`."""
    if not stays(start):
        return math.nan
    low, high = start, max(top, 2 * start)
    while stays(high) and high < 1e6 * max(top, 1e-9):
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if stays(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class OrderAgreement:
    """Counts of pairs of values by agreement with the published order."""

    tau: float
    """Kendall's tau of the means: (same - opposite) / pairs that the paper orders."""
    same: int
    """Pairs of which both orders are significant and equal."""
    opposite: int
    """Pairs of which both orders are significant and opposite."""
    open: int
    """All other pairs."""
    paper_certain: int
    """Pairs of which the published order is significant."""
    paper_sd: float
    """Assumed run-to-run standard deviation of published numbers."""
    holds_up_to: float
    """Largest published standard deviation that leaves `same` and `opposite` unchanged; NaN if both are 0."""

    @property
    def pairs(self) -> int:
        """Number of pairs that the paper orders."""
        return self.same + self.opposite + self.open

    @property
    def low(self) -> float:
        """Lower bound of tau."""
        return self._tau(self.same - self.opposite - self.open)

    @property
    def high(self) -> float:
        """Upper bound of tau."""
        return self._tau(self.same - self.opposite + self.open)

    def _tau(self, net: int) -> float:
        return net / self.pairs if self.pairs else math.nan


def judge_order(
    estimate: Array,
    low: Array,
    high: Array,
    published: Sequence[float],
    *,
    run_sd: float,
    runs: int = 1,
    alpha: float = 0.05,
) -> OrderAgreement:
    """Count the pairs whose order is significant in both studies, by whether the two orders agree.

    Our order is significant by simultaneous intervals of all differences (m, m), from `simultaneous.all_pairs` at `alpha`.
    The paper's is if two printed numbers differ by more than z(1 - alpha / (2 pairs)) run_sd sqrt(2 / runs). A claim about a
    pair needs both (intersection-union test), so neither level is split: whatever the truth, the chance of any false claim
    is at most `alpha`. The bounds of tau hold with the same confidence. No interval of exactly 95 % exists, because tau
    takes few values and noise pulls its draws towards 0. Raises ValueError unless run_sd > 0.
    """
    if not run_sd > 0:
        raise ValueError(f"`run_sd > 0` must hold, but got {run_sd=}")
    printed = np.asarray(published, dtype=float)
    first, second = np.triu_indices(len(printed), 1)
    gaps = printed[first] - printed[second]
    unit = normal_isf(alpha / (2 * max(1, len(gaps)))) * math.sqrt(2 / runs)
    theirs = np.sign(gaps) * (np.abs(gaps) > unit * run_sd)
    ours = np.where(low[first, second] > 0, 1, np.where(high[first, second] < 0, -1, 0))
    product, ordered = ours * theirs, gaps != 0
    claimed = np.abs(gaps[product != 0])
    total, same, opposite = (int(each.sum()) for each in (ordered, product > 0, product < 0))
    net = (np.sign(estimate[first, second]) * np.sign(gaps))[ordered]
    return OrderAgreement(
        float(net.sum() / total) if total else math.nan,
        same,
        opposite,
        total - same - opposite,
        int((theirs != 0).sum()),
        run_sd,
        float(claimed.min() / unit) if claimed.size else math.nan,
    )


ASSUMED_SD = 0.5
"""Run-to-run standard deviation in points, when none is given."""


@dataclass(frozen=True)
class PublishedOptimum:
    """Verdict on the best value of a published curve."""

    verdict: Literal["low edge", "high edge", "interior", "undecided"]
    best: float
    """Value of the knob with the best published number."""
    assumed_sd: float
    holds_up_to: float
    """Largest run-to-run standard deviation for which the position of the best value holds."""

    @property
    def sentence(self) -> str:
        """Verdict as a sentence."""
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
    """Locate the best of at least three published numbers. Raises ValueError for fewer, or unless run_sd > 0."""
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
        limit = (y[best] - np.delete(y, best).max()) / (normal_isf(alpha) * unit)
    else:
        limit = (y[best] - max(y[0], y[-1])) / (normal_isf(alpha / (len(y) - 1)) * unit)
    place: Literal["low edge", "high edge", "interior"] = (
        "interior" if not at_edge else "low edge" if best == 0 else "high edge"
    )
    return PublishedOptimum(
        place if run_sd < limit else "undecided", float(np.asarray(knob)[order[best]]), run_sd, float(limit)
    )
