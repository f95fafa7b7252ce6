"""Agreement of results with a published curve within a margin, and the best value of a published curve.

A gap is our mean over n seeds minus the mean of the paper's runs, at one value. Let s be our run-to-run standard
deviation at that value, seed effect included, and sd that of the paper (equal to ours if it is not given). The standard
error is

    se^2 = s^2 / n + sd^2 / runs

    matches      every gap is significantly inside (-margin, margin): two one-sided tests at alpha each, not corrected,
                 because all of them must succeed (Schuirmann 1987)
    higher       some gap is significantly above 0 and none below (Bonferroni over the values); lower, mixed likewise
    compatible   no gap is significant, and gaps of the size of the margin are not ruled out

`holds_up_to` is the paper's standard deviation up to which the verdict holds; a single printed run does not show it.

Orders are compared pair by pair (`judge_order`). Printed numbers vary from run to run as ours do. So a pair agrees with
the published order, or contradicts it, only if both orders are significant.

`judge_published` locates the best value of a published curve of single runs. It assumes normal noise with a given
run-to-run standard deviation, or half a point. Each verdict states the largest standard deviation for which it holds:

    edge       gap of the best to the second best / (z(1 - alpha) sqrt(2 / runs)), and to the other edge with alpha / 2,
               because both edges may be equal and best   (intersection-union test)
    interior   gap of the best to the better edge / (z(1 - alpha / (m - 1)) sqrt(2 / runs))
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.distributions import normal_isf, student_isf
from tune_dml.stats.intervals import ROUNDING, Array
from tune_dml.stats.intervals.resolution import variance_floor

Verdict = Literal["matches", "higher", "lower", "mixed", "compatible", "undecided"]

TOST = "two one-sided t tests against the margin; differences by t intervals, Bonferroni over the shared values"


@dataclass(frozen=True)
class Equivalence:
    """Verdict on the agreement with a published curve, and the bounds of the gap at each value."""

    verdict: Verdict
    low: tuple[float, ...]  # simultaneous lower bounds of the gaps; NaN without a noise estimate
    high: tuple[float, ...]
    assumed_sd: float | None
    """Given run-to-run standard deviation of the paper; None if it is taken as equal to ours."""
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
        return Equivalence("undecided", unknown, unknown, run_sd, math.nan)
    gaps = np.nanmean(values, axis=1) - printed
    sds = np.sqrt(np.maximum(np.nanvar(values, axis=1, ddof=1), variance_floor(resolution)))

    def judge(sd: float | None) -> tuple[Verdict, Array]:
        theirs = sds**2 / runs if sd is None else np.full(len(sds), sd**2 / runs)
        error = np.sqrt(sds**2 / counts + theirs)
        df = _satterthwaite(sds**2 / counts, theirs, counts - 1, is_given=sd is not None)
        reach = student_isf(alpha / (2 * len(printed)), df) * error
        inside = np.abs(gaps) + student_isf(alpha, df) * error < margin
        return _verdict(gaps, reach, bool(inside.all())), reach

    verdict, reach = judge(run_sd)
    start = next((sd for sd in (run_sd, 0.0) if sd is not None and judge(sd)[0] == verdict), float(sds.max()))
    limit = _largest_sd(lambda sd: judge(sd)[0] == verdict, start, float(np.abs(gaps).max() + margin))
    holds_up_to = limit if verdict != "compatible" else math.nan
    return Equivalence(verdict, tuple((gaps - reach).tolist()), tuple((gaps + reach).tolist()), run_sd, holds_up_to)


def _satterthwaite(ours: Array, theirs: Array, nu: NDArray[np.int64], *, is_given: bool) -> Array:
    """Return the degrees of freedom of the gap's variance; a given standard deviation of the paper counts as exact."""
    if not is_given:
        return nu.astype(float)
    return np.asarray(np.divide((ours + theirs) ** 2 * nu, ours**2, out=np.full(len(ours), 1e6), where=ours > 0))


def _verdict(gaps: Array, reach: Array, inside: bool) -> Verdict:
    if inside:
        return "matches"
    above, below = bool((gaps > reach).any()), bool((gaps < -reach).any())
    if above and below:
        return "mixed"
    return "higher" if above else "lower" if below else "compatible"


def _largest_sd(holds: Callable[[float], bool], start: float, top: float) -> float:
    """Return the largest standard deviation at which the verdict holds, by bisection from `start`."""
    if not holds(start):
        return math.nan
    low, high = start, max(top, 2 * start)
    while holds(high) and high < 1e6 * max(top, 1e-9):
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class OrderAgreement:
    """Counts of pairs of values by agreement with the published order."""

    tau: float  # Kendall's tau of the means: (same - opposite) / pairs that the paper orders
    same: int  # pairs whose two orders are significant and equal
    opposite: int  # pairs whose two orders are significant and opposite
    open: int  # all other pairs
    paper_certain: int  # pairs whose published order is significant
    paper_sd: float  # assumed run-to-run standard deviation of published numbers
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

    The significance of our orders comes from simultaneous intervals of all differences (m, m), from
    `simultaneous.all_pairs` at `alpha`. A published order is significant if two printed numbers differ by more than z(1
    - alpha / (2 pairs)) run_sd sqrt(2 / runs). A claim about a pair needs both (intersection-union test), so both use
    the whole `alpha`: the chance of any false claim is at most `alpha`.

    The bounds of tau hold with the same confidence. No interval of exactly 95 % exists, because tau takes few values
    and noise pulls its draws towards 0. Raises ValueError unless run_sd > 0.
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
    total, same, opposite = (int(mask.sum()) for mask in (ordered, product > 0, product < 0))
    differences = estimate[first, second]
    differs = np.abs(differences) > ROUNDING * np.abs(printed).max(initial=0.0)
    net = (np.sign(differences) * differs * np.sign(gaps))[ordered]
    return OrderAgreement(
        float(net.sum() / total) if total else math.nan,
        same,
        opposite,
        total - same - opposite,
        int((theirs != 0).sum()),
        run_sd,
        float(claimed.min() / unit) if claimed.size else math.nan,
    )


ASSUMED_SD = 0.5  # run-to-run standard deviation in points, if none is given


@dataclass(frozen=True)
class PublishedOptimum:
    """Verdict on the best value of a published curve."""

    verdict: Literal["low edge", "high edge", "interior", "undecided"]
    best: float  # value of the knob with the best published number
    assumed_sd: float
    holds_up_to: float  # largest run-to-run standard deviation for which the position of the best value holds

    @property
    def sentence(self) -> str:
        """The verdict in words, with the run-to-run standard deviation for which it holds."""
        limit = f"{self.holds_up_to:.2g}"
        if self.verdict == "undecided":
            return f"undecided (it would take a run s.d. of at most {limit}; assumed {self.assumed_sd:.2g})"
        place = {"low edge": "at the lowest tested", "high edge": "at the highest tested"}.get(self.verdict, "inside")
        return f"best {place}, if the run s.d. is at most {limit}"


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
    position: Literal["low edge", "high edge", "interior"] = "interior"
    limit = (y[best] - max(y[0], y[-1])) / (normal_isf(alpha / (len(y) - 1)) * unit)
    if best in (0, len(y) - 1):
        position = "high edge" if best else "low edge"
        others, other_edge = np.delete(y, best).max(), y[0 if best else -1]
        limit = min((y[best] - others) / normal_isf(alpha), (y[best] - other_edge) / normal_isf(alpha / 2)) / unit
    verdict = position if run_sd < limit else "undecided"
    return PublishedOptimum(verdict, float(np.asarray(knob)[order[best]]), run_sd, float(limit))
