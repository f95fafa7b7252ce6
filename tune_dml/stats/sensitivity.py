"""Does the knob matter? Sensitive, insensitive or undecided, against a stated margin.

All pairwise differences of the knob's values get simultaneous intervals (Tukey's studentized range on the randomised block
design of `blocks`). With probability 95% they all hold at once, so every statement read off them does:

    insensitive   every interval lies inside (-margin, margin)
    sensitive     some interval lies wholly beyond the margin on one side
    undecided     neither; said with whether any effect is established and how many more seeds would about decide it
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.blocks import BlockFit, fit_blocks
from tune_dml.stats.critical import studentized_range
from tune_dml.stats.power import seeds_to_decide
from tune_dml.stats.table import Excluded, SeedTable

LISTED_CELLS = 40
"""Up to this many values every pairwise difference is listed; beyond, only the one that the verdict turns on."""

TUKEY = "Tukey's studentized range on a randomised block design (seeds are blocks)"

Array = NDArray[np.float64]
SensitivityVerdict = Literal["sensitive", "insensitive", "undecided"]


@dataclass(frozen=True)
class Difference:
    """mean(first) - mean(second), with its simultaneous interval."""

    first: str
    second: str
    estimate: float
    low: float
    high: float

    @property
    def at_least(self) -> float:
        """The smallest |difference| inside the interval."""
        return max(self.low, -self.high, 0.0)

    @property
    def at_most(self) -> float:
        """The largest |difference| inside the interval."""
        return max(-self.low, self.high)


@dataclass(frozen=True)
class Sensitivity:
    """The verdict and everything it rests on."""

    verdict: SensitivityVerdict
    reason: str
    """One clause: what decided, or what is lacking."""
    margin: float
    confidence: float
    algorithm: str
    cells: int
    seeds: int
    """Seeds that carry numbers."""
    sd: float
    """Noise of one trial, seed effect removed."""
    df: int
    noise_ratio: float
    """Largest over smallest noise among the values."""
    design: str
    effect: bool
    """Whether a non-zero difference is established, whatever its size."""
    largest: Difference | None
    """The pair the verdict turns on: certain beyond most when sensitive, else the largest difference."""
    differences: tuple[Difference, ...]
    seeds_needed: int | None
    """Seeds in all that would about decide an undecided verdict; None when decided, or when no number of seeds would."""
    half_widths: tuple[tuple[str, float], ...]
    """Per cell, half its comparison bar: values whose bars do not overlap differ."""
    excluded: tuple[Excluded, ...]


def judge_sensitivity(
    table: SeedTable, margin: float, *, confidence: float = 0.95, fit: BlockFit | None = None
) -> Sensitivity:
    """Judge the cells of a table against a margin, in the metric's units. Raises ValueError unless margin > 0."""
    if not margin > 0:
        raise ValueError(f"`margin > 0` must hold, but got {margin=}")
    fit = fit or fit_blocks(table)
    seeds = int(np.isfinite(fit.table.values).any(axis=0).sum())
    undecided = _undecided(fit, margin, confidence, seeds)
    if undecided.reason:
        return undecided
    critical = studentized_range(undecided.cells, fit.df, confidence) / np.sqrt(2)
    half = critical * fit.standard_errors()
    pairs = _pairs(undecided.cells)
    estimates, reach = fit.means[pairs[0]] - fit.means[pairs[1]], half[pairs]
    verdict, reason, turning = _decide(estimates, reach, margin)
    listed = range(len(estimates)) if undecided.cells <= LISTED_CELLS else [turning]

    def difference(pair: int) -> Difference:
        first, second = fit.table.labels[pairs[0][pair]], fit.table.labels[pairs[1][pair]]
        estimate, wide = float(estimates[pair]), float(reach[pair])
        return Difference(first, second, estimate, estimate - wide, estimate + wide)

    return replace(
        undecided,
        verdict=verdict,
        reason=reason,
        effect=bool((np.abs(estimates) > reach).any()),
        largest=difference(turning),
        differences=tuple(difference(pair) for pair in listed),
        seeds_needed=_needed(fit, estimates, undecided) if verdict == "undecided" else None,
        half_widths=tuple(zip(fit.table.labels, (half.max(axis=1) / 2).tolist(), strict=True)),
    )


@cache
def _pairs(cells: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First and second cell of every pair."""
    first, second = np.triu_indices(cells, 1)
    return first, second


def _undecided(fit: BlockFit, margin: float, confidence: float, seeds: int) -> Sensitivity:
    """The verdict before any arithmetic; its reason is empty when arithmetic is possible."""
    cells = len(fit.table.labels)
    return Sensitivity(
        verdict="undecided",
        reason=_lacking(cells, seeds, fit.df),
        margin=margin,
        confidence=confidence,
        algorithm=TUKEY,
        cells=cells,
        seeds=seeds,
        sd=fit.sd,
        df=fit.df,
        noise_ratio=fit.noise_ratio if fit.df > 0 else 1.0,
        design=fit.design,
        effect=False,
        largest=None,
        differences=(),
        seeds_needed=None,
        half_widths=(),
        excluded=fit.table.excluded,
    )


def _lacking(cells: int, seeds: int, df: int) -> str:
    """What is missing for any arithmetic; empty when nothing is."""
    if cells < 2:
        return "fewer than two values have results" if cells else "no value has results"
    if seeds < 2:
        return "one seed gives no noise estimate"
    return "too few shared seeds for a noise estimate" if df < 1 else ""


def _decide(estimates: Array, reach: Array, margin: float) -> tuple[SensitivityVerdict, str, int]:
    """The verdict, its reason and the pair it turns on."""
    size = np.abs(estimates)
    surest, widest = int((size - reach).argmax()), int(size.argmax())
    if size[surest] - reach[surest] > margin:
        return "sensitive", "a difference is certainly larger than the margin", surest
    if (size + reach < margin).all():
        return "insensitive", "every difference is certainly smaller than the margin", widest
    if size[surest] > reach[surest]:
        reason = "an effect is established, but it may be larger or smaller than the margin"
        return "undecided", reason, surest
    return "undecided", "the noise hides differences of the size of the margin", widest


def _needed(fit: BlockFit, estimates: Array, so_far: Sensitivity) -> int | None:
    """Seeds in all at which today's estimates and noise would give a verdict, one way or the other."""
    size = np.abs(estimates)
    pairs = _pairs(so_far.cells)
    noise = fit.standard_errors()[pairs] / np.sqrt(fit.unit_variance[pairs])
    sensitive = bool((size > so_far.margin).any())
    return seeds_to_decide(
        size - so_far.margin if sensitive else so_far.margin - size,
        noise,
        cells=so_far.cells,
        confidence=so_far.confidence,
        every=not sensitive,
        start=so_far.seeds + 1,
    )
