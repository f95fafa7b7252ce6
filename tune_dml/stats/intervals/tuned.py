"""Comparison of tuned levels: a level is as good as its best setting, and all seeds judge all settings.

A level is a value of a knob with the settings of a nuisance knob, an arm with its configurations, or a tuned baseline.
Its quality is that of its best setting, M_a = max_s mu_as. The lower bound of M_a - M_b is

    L_ab = min_t max_s low(as - bt)        low at alpha / (comparisons x K_a), K_a settings of a that may be its best

`high` of a - b is -L_ba. For the setting t* that is truly the best of b, L_ab <= max_s low(as - bt*). Each of these K_a
bounds lies below mu_as - M_b <= M_a - M_b unless it is wrong. The claim must hold against every t, so alpha is not
divided by the number of b's settings (intersection-union test). It is divided by K_a (Bonferroni).

"No two levels differ by the margin" needs L_ab > -margin for every ordered pair. It is wrong only if some M_a - M_b is
at or below -margin, and then L_ab > -margin is wrong for that pair. So each L_ab has the whole alpha, divided by K_a
only.

A setting that another setting of its level significantly beats, at alpha for all of them, does not count in K_a. This
selects on the same numbers, but simulation shows no added error: a setting that is dropped by mistake was better than
the remaining ones. The noise of a pair is that of its noisier cell's typical pair, because few of a noisy cell's many
pairs are compared. Both rules were chosen by simulation (docs/verdicts.md). With one setting per level, the
bounds are those of `simultaneous`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.noise import PairNoise, fit_pairs
from tune_dml.stats.intervals.simultaneous import Bounds, against, all_pairs, at_most, complete_bounds, half_widths

ALGORITHM = (
    "moderated paired t bounds of the best settings on all seeds; a level is better when against every setting of the other "
    "one some setting of it is; Bonferroni over the settings that may be its best and over the comparisons"
)


@dataclass(frozen=True, eq=False)
class TunedLevels:
    """Levels with their settings, in one or many tables."""

    values: Array  # shape (..., cells, seeds); larger is better, and every cell has a number
    rows: tuple[int, ...]  # level of each cell, ascending from 0
    resolution: float = 0.0  # step of the cells' values

    @cached_property
    def noise(self) -> PairNoise:
        """Noise of the cells."""
        return fit_pairs(self.values, self.resolution)

    @property
    def levels(self) -> int:
        """Number of levels."""
        return max(self.rows) + 1

    @property
    def _is_untuned(self) -> bool:
        """Whether each level has one setting."""
        return len(self.rows) == self.levels

    def pairs(self, alpha: float = 0.05) -> Bounds:
        """Return simultaneous intervals of all differences between levels, (..., levels, levels)."""
        if self._is_untuned:
            return all_pairs(self.values, alpha, self.noise)
        low = self.low(alpha, self.levels * (self.levels - 1) // 2, sides=2)
        return complete_bounds(self._estimate, low, -np.swapaxes(low, -1, -2))

    def at_most(self, alpha: float = 0.05) -> Array:
        """Return upper bounds of each |difference| by itself, (..., levels, levels); see `simultaneous.at_most`."""
        if self._is_untuned:
            return at_most(self.values, alpha, self.noise)
        low = self.low(alpha, 1, sides=1)
        return np.asarray(np.maximum(-low, -np.swapaxes(low, -1, -2)))

    def against(self, level: int, alpha: float = 0.05) -> Bounds:
        """Return intervals of every level minus the level `level`, (..., levels)."""
        if self._is_untuned:
            return against(self.values, level, alpha, self.noise)
        low = self.low(alpha, self.levels - 1, sides=2)
        return Bounds(self._estimate[..., level], low[..., level], -low[..., level, :])

    def gains(
        self, gains: Sequence[tuple[int, int]], differences: Sequence[tuple[int, int]] = (), alpha: float = 0.05
    ) -> Bounds:
        """Return what `contrasts.estimate_gains` returns for levels: gains of pairs of levels, then their differences.

        The gains share `alpha`. The interval of a difference follows from the intervals of its two gains.
        """
        low = self.low(alpha, len(gains), sides=2)
        rows, others = (np.array(side) for side in zip(*gains, strict=True))
        estimate, low, high = (m[..., rows, others] for m in (self._estimate, low, -np.swapaxes(low, -1, -2)))
        if not differences:
            return Bounds(estimate, low, high)
        firsts, seconds = (np.array(side) for side in zip(*differences, strict=True))
        parts = ((estimate, estimate), (low, high), (high, low))
        return Bounds(*(np.concatenate([own, own[..., firsts] - other[..., seconds]], -1) for own, other in parts))

    def low(self, alpha: float, comparisons: int, *, sides: int) -> Array:
        """Return L of every ordered pair of levels; -infinite if not testable, 0 on the diagonal."""
        kept = self.may_be_best(alpha)
        settings = np.stack([kept[..., self._is_in(level)].sum(-1) for level in self.rows], -1)
        reach = half_widths(self._larger_noise, alpha, comparisons, sides=sides, each=settings)
        testable = np.isfinite(reach) & kept[..., None]
        return self._fold(np.where(testable, np.nan_to_num(self.noise.estimate) - reach, -np.inf))

    def may_be_best(self, alpha: float = 0.05) -> Mask:
        """Return the cells that no other setting of their level significantly beats, (..., cells)."""
        level = np.array(self.rows)
        rivals = (level[:, None] == level) & ~np.eye(len(level), dtype=bool)
        reach = half_widths(self._larger_noise, alpha, max(1, int(rivals.sum())), sides=1)
        return np.asarray(~((np.nan_to_num(self.noise.estimate) + reach < 0) & rivals).any(-1))

    @cached_property
    def _larger_noise(self) -> PairNoise:
        """Noise of each pair, shrunk towards the typical pair of its noisier cell."""
        return replace(self.noise, variance=np.maximum(self.noise.beside, np.swapaxes(self.noise.beside, -1, -2)))

    @cached_property
    def _estimate(self) -> Array:
        """Best mean of a level minus that of another level; with lost seeds, the average of both directions."""
        folded = self._fold(np.where(np.isnan(self.noise.estimate), -np.inf, self.noise.estimate))
        with np.errstate(invalid="ignore"):  # if neither direction is known, two infinities are subtracted
            both = (folded - np.swapaxes(folded, -1, -2)) / 2
        return np.asarray(np.where(np.isfinite(both), both, np.nan))

    def _fold(self, cells: Array) -> Array:
        """Return min_t max_s of a matrix of cells, for every pair of levels."""
        best = np.stack([cells[..., self._is_in(level), :].max(-2) for level in range(self.levels)], -2)
        folded = np.stack([best[..., self._is_in(level)].min(-1) for level in range(self.levels)], -1)
        return np.asarray(np.where(np.eye(self.levels, dtype=bool), 0.0, folded))

    def _is_in(self, level: int) -> Mask:
        return np.asarray(np.array(self.rows) == level)


def tuned_levels(tables: Sequence[Array], resolution: float = 0.0) -> TunedLevels:
    """Build tuned levels from a table (settings, seeds) per level; settings without values are left out."""
    kept = [table[np.isfinite(table).any(1)] for table in tables]
    rows = tuple(level for level, table in enumerate(kept) for _ in table)
    return TunedLevels(np.concatenate(kept), rows, resolution)
