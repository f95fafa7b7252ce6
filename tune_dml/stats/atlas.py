"""Verdicts on many knobs at once: the gain of tuning, the cost of a wrong value, and the range of tolerated values.

Every statement compares a value with the default of the same loss on the same data set, by paired seeds. The intervals
of an atlas are simultaneous.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.stats.intervals import Array, run_around
from tune_dml.stats.intervals.compound import compound_half_widths
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.resolution import resolution_shown
from tune_dml.stats.intervals.simultaneous import half_widths

ALPHA = 0.05


@dataclass(frozen=True)
class Estimate:
    """An estimate with its simultaneous interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class KnobVerdict:
    """The effect of one knob on one data set, in units of the metric."""

    values: tuple[float, ...]  # in ascending order
    default: float
    effects: tuple[Estimate, ...]  # result at each value minus that at the default; 0 for the default itself
    tunability: Estimate  # gain of the best value over the default; at least 0
    mistunability: Estimate  # loss of the worst value against the default; at least 0
    tolerated: tuple[float, float]
    """Ends of the widest range around the default in which every value loses significantly less than the margin."""
    perhaps_tolerated: tuple[float, float]
    """Ends of the widest range around the default in which no value loses significantly more than the margin."""
    margin: float

    @property
    def word(self) -> str:
        """The verdict in words, such as `tunable, sensitive`."""
        words = []
        if self.tunability.low > 0:
            words.append("tunable")
        if self.mistunability.low > self.margin:
            words.append("sensitive")
        if max(self.tunability.high, self.mistunability.high) < self.margin:
            words.append("insensitive")
        return ", ".join(words) or "undecided"

    @property
    def best(self) -> int:
        """Index of the best value among those with a result."""
        return int(np.nanargmax([effect.value for effect in self.effects]))


def effects_of_values(tables: Sequence[Array], comparisons: int) -> list[list[Estimate]]:
    """Compare the cells of each loss with its default, the first row of the loss's table.

    The values of a loss may be unequally noisy, and each loss adds a chance that a noisy one is not recognised. So no
    interval is narrower than the distribution of the noise over all losses allows (`compound`).

    Args:
        tables: (cells, seeds) of each loss; nan where a trial has no value, -inf where it diverged.
        comparisons: Number of comparisons that share `ALPHA`: all of the atlas.

    Returns:
        An estimate for each cell; -inf, with both limits, for a cell with a diverged trial.
    """
    effects = [_unknown_effects(table) for table in tables]
    found = [item for row, table in enumerate(tables) for item in _compare_with_default(row, table, comparisons)]
    own, shared = (np.array([getattr(item, name) for item in found]) for name in ("own", "shared"))
    reaches, testable = np.full(len(found), np.inf), shared > 1
    reaches[testable] = compound_half_widths(
        own[testable], shared[testable] - 1, shared[testable], ALPHA / max(comparisons, 1)
    )
    for item, least in zip(found, reaches.tolist(), strict=True):
        reach = max(item.reach, least)
        effects[item.table][item.cell] = Estimate(item.middle, item.middle - reach, item.middle + reach)
    return effects


@dataclass(frozen=True)
class _Comparison:
    """A cell minus the default of its loss, with the half-width that its loss alone gives."""

    table: int
    cell: int
    middle: float
    reach: float
    own: float  # the variance of the difference over the shared seeds; NaN below two
    shared: float  # the number of shared seeds


def _unknown_effects(table: Array) -> list[Estimate]:
    """Return the effects of a loss before any comparison: 0 for the default, and -inf for diverged cells."""
    diverged = np.asarray(np.isneginf(table).any(axis=1))
    effects = [Estimate(-np.inf, -np.inf, -np.inf) if lost else Estimate(np.nan, -np.inf, np.inf) for lost in diverged]
    effects[0] = Estimate(0.0, 0.0, 0.0)
    return effects


def _compare_with_default(number: int, table: Array, comparisons: int) -> list[_Comparison]:
    """Compare the cells of one loss that share two seeds with its default."""
    finite = np.where(np.isfinite(table), table, np.nan)
    finite[np.isneginf(table).any(axis=1)] = np.nan
    kept = np.flatnonzero(np.isfinite(finite).sum(axis=1) > 1)
    if len(kept) < 2 or kept[0] != 0:
        return []
    noise = fit_pairs(finite[kept], resolution_shown(finite[kept].tolist()))
    reach = half_widths(noise, ALPHA, comparisons, beside=True, of=np.s_[..., :, [0]])[..., 0]
    columns = (array[:, 0].tolist() for array in (noise.estimate, noise.own, noise.shared))
    rows = zip(kept.tolist(), reach.tolist(), *columns, strict=True)
    return [_Comparison(number, cell, middle, width, own, shared) for cell, width, middle, own, shared in rows][1:]


def judge_knob(values: Sequence[float], default: float, effects: Sequence[Estimate], margin: float) -> KnobVerdict:
    """Judge a knob from the effects of its values; the effect of the default is 0."""
    order = np.argsort(values)
    ascending, gains = [values[index] for index in order], [effects[index] for index in order]
    losses = [Estimate(-gain.value, -gain.high, -gain.low) for gain in gains]
    position = ascending.index(default)
    tolerated = run_around(position, [gain.low > -margin for gain in gains])
    perhaps = run_around(position, [not gain.high < -margin for gain in gains])
    return KnobVerdict(
        tuple(ascending), default, tuple(gains), _largest(gains), _largest(losses),
        (ascending[tolerated[0]], ascending[tolerated[1]]), (ascending[perhaps[0]], ascending[perhaps[1]]), margin,
    )  # fmt: skip


def _largest(effects: Sequence[Estimate]) -> Estimate:
    """Return the largest effect, with the largest of all lower and of all upper bounds."""
    value = max(effect.value for effect in effects if not np.isnan(effect.value))
    return Estimate(value, max(effect.low for effect in effects), max(effect.high for effect in effects))
