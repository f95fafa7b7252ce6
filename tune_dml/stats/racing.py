"""Which cells of a growing sweep still need seeds: a race in paired blocks.

After each block of seeds every difference has an interval at the level that this look may spend (`looks`); intervals of
earlier looks stay true, so they are intersected. The leader is the running cell with the best mean. A cell is settled, and
gets no further seed, when it is certainly worse than some cell ("worse"), or when its difference to the leader certainly
lies within the margin ("tied"). Until some difference is certainly larger than the margin, so that the knob matters, being
worse settles a cell only when it is so by more than the margin; from then on any amount does, since a gap that happens to
equal the margin could not be told from it with any number of seeds. The leader runs on while any cell is open, because
comparisons need its seeds; a cell whose leader is overtaken opens again unless it is tied with the new one. When all cells
are settled the leader is certainly within the margin of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.noise import fit_pairs
from tune_dml.stats.simultaneous import all_pairs

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

FIRST_LOOK = 3
"""Two seeds cannot tell noise from differences."""


@dataclass(frozen=True, eq=False)
class Race:
    """Where the race stands: arrays of shape (..., m), (..., m, m) or (...), for one or many tables."""

    low: Array
    """[i, k]: cell i is at least this much better than cell k."""
    high: Array
    """[i, k]: and at most this much; infinite where unknown."""
    leader: NDArray[np.intp]
    worse: Mask
    tied: Mask
    """With the leader, which is tied with itself."""
    matters: Mask
    """Whether some difference is certainly larger than the margin; false and decided: none is."""

    @property
    def decided(self) -> Mask:
        """Whether every cell is settled."""
        return np.asarray((self.worse | self.tied).all(-1))

    @property
    def runs(self) -> Mask:
        """The cells that get the next block of seeds: the open ones, and the leader while there are any."""
        leads = np.arange(self.worse.shape[-1]) == self.leader[..., None]
        return np.asarray((~(self.worse | self.tied) | leads) & ~self.decided[..., None])


def standing(
    values: Array, margin: float, level: float, so_far: Race | None = None, *, compared: Mask | None = None
) -> Race:
    """Judge a table, cells x seeds with NaN where a cell had stopped (larger is better), at this look's level.

    `so_far` is the result of the look before. `compared`: the cells whose differences decide whether the knob matters; a
    baseline is none of them. Raises ValueError unless margin > 0.
    """
    if not margin > 0:
        raise ValueError(f"`margin > 0` must hold, but got {margin=}")
    noise = fit_pairs(values)
    bounds = all_pairs(values, level, noise)
    low, high = bounds.low, bounds.high
    running = np.isfinite(values).any(-1)
    if so_far is not None:
        low, high = np.maximum(low, so_far.low), np.minimum(high, so_far.high)
        running &= so_far.runs
    counts = np.ones(values.shape[-2], dtype=bool) if compared is None else compared
    matters = ((low > margin) & counts[:, None] & counts).any((-2, -1))
    worse = (low > np.where(matters, 0.0, margin)[..., None, None]).any(-2)
    known = np.where(np.isfinite(noise.estimate), noise.estimate, 0.0)
    merit = np.where(running & ~worse, known.mean(-1), -np.inf)
    if so_far is not None:  # a lead within half the margin does not change hands: who was tied with it stays settled
        merit += np.where(np.arange(merit.shape[-1]) == so_far.leader[..., None], margin / 2, 0.0)
    leader = merit.argmax(-1)
    to_leader = leader[..., None, None]
    behind = np.take_along_axis(high, to_leader, -2)[..., 0, :]
    ahead = -np.take_along_axis(low, to_leader, -2)[..., 0, :]
    tied = np.asarray(~worse & (behind < margin) & (ahead < margin))
    return Race(low, high, leader, np.asarray(worse), tied, np.asarray(matters))


def replay(
    values: Array, ran: Mask, margin: float, judged: Sequence[tuple[int, float]], *, compared: Mask
) -> tuple[Race, Mask]:
    """Where a race of one table stands after its looks, and which cells dropped out: a block gave them no number at all.

    The numbers of those that dropped out are left out. Looks after the race is decided are not needed. Raises ValueError
    without a look.

    Args:
        values: as of `standing`.
        ran: which trials have run, diverged ones too; of the shape of `values`.
        margin: as of `standing`.
        judged: (seeds, level) of every look.
        compared: as of `standing`.
    """
    if not judged:
        raise ValueError("`judged` must name at least one look")
    race, before = None, 0
    dropped = np.zeros(len(values), dtype=bool)
    for seeds, level in judged:
        block = np.s_[:, before:seeds]
        dropped |= ran[block].any(1) & ~np.isfinite(values[block]).any(1)
        seen = np.where(dropped[:, None], np.nan, values[:, :seeds])
        race, before = standing(seen, margin, level, race, compared=compared), seeds
        if (race.worse | race.tied | dropped).all():
            break
    assert race is not None  # noqa: S101 - there was a look
    return race, dropped


def next_look(seeds: int) -> int:
    """Seeds at the next look: blocks grow by a quarter, so that late looks do not eat the error."""
    return max(FIRST_LOOK, seeds + 1, round(1.25 * seeds))
