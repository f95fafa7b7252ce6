"""Compare the order of our values with the published order, and describe the result in sentences."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tune_dml.papers.published import PublishedCurve
from tune_dml.planning.checks.conditions import our_name
from tune_dml.report.analysis import Analysis
from tune_dml.stats.intervals.noise import typical_noise
from tune_dml.stats.intervals.simultaneous import Bounds
from tune_dml.stats.verdicts.equivalence import ASSUMED_SD, OrderAgreement, judge_order


@dataclass(frozen=True)
class PaperDeviation:
    """Assumed run-to-run standard deviation of published numbers."""

    sd: float
    origin: Literal["as given", "assumed", "as ours"]

    def __str__(self) -> str:
        return f"run s.d. {self.sd:.2g}, {self.origin}"


def paper_deviation(analysis: Analysis, published: PublishedCurve) -> PaperDeviation:
    """Return `--paper-sd` if given, else half a point or the sweep's noise on the same data, whichever is larger.

    The sweep's noise excludes the effect of a seed on all cells, because papers test on fixed classes. For a metric
    that is not a percentage, no usual deviation is known, so the sweep's noise is used.
    """
    if analysis.paper_sd is not None:
        return PaperDeviation(analysis.paper_sd, "as given")
    noise = typical_noise(analysis.table.noise) if analysis.table.testable else None
    same_data = our_name(analysis.results.plan.dataset) == our_name(published.published.dataset)
    assumed = ASSUMED_SD if analysis.metric.percent else 0.0
    if noise is not None and (same_data or not assumed) and noise[0] > assumed:
        return PaperDeviation(noise[0], "as ours")
    return PaperDeviation(ASSUMED_SD, "assumed")


def compare_orders(
    bounds: Bounds, printed: Mapping[int, float], published: PublishedCurve, deviation: PaperDeviation, alpha: float
) -> OrderAgreement:
    """Compare the order of rows, by simultaneous intervals at `alpha`, with the order of their printed numbers.

    `printed` maps rows of `bounds` to printed numbers.
    """
    chosen, runs = np.ix_(list(printed), list(printed)), published.published.runs
    ours = (bounds.estimate[chosen], bounds.low[chosen], bounds.high[chosen])
    return judge_order(*ours, list(printed.values()), run_sd=deviation.sd, runs=runs, alpha=alpha)


def order_counts(order: OrderAgreement, deviation: PaperDeviation) -> str:
    """Return the numbers of pairs with a significant order, in one line."""
    text = f"order: {order.paper_certain} of {order.pairs} published differences are significant ({deviation})"
    return f"{text}: {_ours(order)}" if order.paper_certain else text


def order_sentence(order: OrderAgreement, deviation: PaperDeviation, what: str) -> str:
    """Describe the agreement of the order of `what` (values or arms) in two sentences."""
    text = (
        f"The published difference is significant in {order.paper_certain} of {order.pairs} pairs of {what} ({deviation})"
        f"{f': {_ours(order)}' if order.paper_certain else ''}."
    )
    if math.isfinite(order.holds_up_to):
        text += f" They remain significant up to a run s.d. of {order.holds_up_to:.2g}."
    if not math.isfinite(order.tau):
        return text
    bounds = f"with bounds {order.low:.2f} to {order.high:.2f} (1 is the same order, -1 the reverse)"
    return f"{text} Kendall's tau is {order.tau:.2f} for the means, {bounds}."


def order_in_plain_words(order: OrderAgreement) -> str:
    """Return the outcome as a clause without a full stop."""
    if not order.paper_certain:
        return "The paper's order cannot be checked: its own numbers are too close"
    if order.same == order.opposite == 0:
        return "Whether the paper's order holds is undecided"
    certain, pairs, parts = order.paper_certain, order.pairs, []
    these = "these" if certain < pairs else f"{certain} pairs"
    for count, word in ((order.same, "the same"), (order.opposite, "the opposite")):
        if count == certain:
            parts.append(f"{word} in all of {these}")
        elif count:
            parts.append(f"{word} in {count} of {these}" if not parts else f"{word} in {count}")
    lead = f"Published differences are significant in {certain} of {pairs} pairs"
    lead = "All published differences are significant" if certain == pairs else lead
    return f"{lead}; our order is {' and '.join(parts)}"


def _ours(order: OrderAgreement) -> str:
    undecided = order.paper_certain - order.same - order.opposite
    same, opposite = f"significantly the same in {order.same}", f"significantly the opposite in {order.opposite}"
    return f"our order is {same}, {opposite}, undecided in {undecided}"
