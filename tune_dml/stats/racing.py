"""Which cells of a growing sweep still need seeds: a race in paired blocks.

After each block of seeds every difference has intervals at the level that this look may spend (`looks`); what earlier looks
said stays true, so intervals are intersected. The leader is the running cell with the best mean. A cell is settled, and
gets no further seed, when it is certainly worse than some cell ("worse"), or when its difference to the leader certainly
lies within the margin ("tied"). Until some difference is certainly larger than the margin, so that the knob matters, being
worse settles a cell only when it is so by more than the margin; from then on any amount does, since a gap that happens to
equal the margin could not be told from it with any number of seeds. The leader runs on while any cell is open, because
comparisons need its seeds; a cell whose leader is overtaken opens again unless it is tied with the new one. When all cells
are settled the leader is certainly within the margin of the best.

"Worse" and "matters" may be wrong of any pair, so they take the simultaneous intervals of all pairs. "Tied" is wrong only
of a cell more than a margin behind the leader, and the leader's mean is (nearly) above that of the true best: the pairs with
the true best are all that can err, m - 1 of them, one-sided. Pairs closer than the margin cannot be tied wrongly, and pairs
further apart can hardly be "worse" wrongly, so both share one level.

A look's level is shared among the m cells whose differences it may still narrow: those that run. What a cell has that
stopped stays as it was, and its share goes to the others, as in Holm's procedure (Maurer and Bretz 2013 for looks). Until it is
known whether the knob matters, tied cells keep their share: "does not matter" is a statement about them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.noise import fit_pairs
from tune_dml.stats.simultaneous import Bounds, all_pairs, half_widths

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

FIRST_LOOK = 3
"""Two seeds cannot tell noise from differences."""
_HELD_LEAD = 0.1
"""A lead changes hands only for more than this share of the margin: who was tied with the leader stays settled."""


@dataclass(frozen=True, eq=False)
class Race:
    """Where the race stands: arrays of shape (..., m), (..., m, m) or (...), for one or many tables."""

    low: Array
    """[i, k]: cell i is at least this much better than cell k; all pairs at once."""
    high: Array
    """[i, k]: and at most this much; infinite where unknown."""
    ahead: Array
    """[i, k]: cell i is at most this much better than cell k, of the pairs with the best cell at once."""
    leader: NDArray[np.intp]
    worse: Mask
    tied: Mask
    """With the leader, which is tied with itself; a baseline certainly above it counts as settled too."""
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

    def of(self, rows: Sequence[int], margin: float, dropped: Mask, sign: float = 1.0) -> RaceStanding:
        """What one table's race has found of some of its cells; sign -1: on a scale on which less is better."""
        settled = (self.worse | self.tied | dropped).all()
        square, cells = np.ix_(rows, rows), list(rows)
        low, high = (self.low, self.high) if sign > 0 else (-self.high, -self.low)
        return RaceStanding(
            low[square],
            high[square],
            np.maximum(self.ahead, self.ahead.T)[square],
            self.ahead[int(self.leader), cells],
            np.asarray((self.low[square] > 0).any(0)),
            self.tied[cells],
            flat=bool(settled and not self.matters and int(self.leader) in rows),
            margin=margin,
        )


@dataclass(frozen=True, eq=False)
class RaceStanding:
    """What a race has found of some cells, in the order asked for; a report agrees with it."""

    low: Array
    high: Array
    """As of `Race`."""
    at_most: Array
    """[i, k]: the difference is at most this large, of the pairs with the best cell at once."""
    behind: Array
    """At most this far behind the race's leader."""
    worse: Mask
    """Certainly worse than another of these cells."""
    tied: Mask
    """With the race's leader."""
    flat: bool
    """Decided, and no difference is larger than the margin."""
    margin: float

    def narrow(self, bounds: Bounds) -> Bounds:
        """Intervals of another look at these cells, which hold as the race's do."""
        return Bounds(bounds.estimate, np.maximum(bounds.low, self.low), np.minimum(bounds.high, self.high))


def standing(
    values: Array,
    margin: float,
    level: float,
    so_far: Race | None = None,
    *,
    compared: Mask | None = None,
    resolution: float = 0.0,
) -> Race:
    """Judge a table, cells x seeds with NaN where a cell had stopped (larger is better), at this look's level.

    `so_far` is the result of the look before. `compared`: the cells whose differences decide whether the knob matters; a
    baseline is none of them, and neither leads nor settles them until that is known. `resolution`: what values move in steps of.
    Raises ValueError unless margin > 0.
    """
    if not margin > 0:
        raise ValueError(f"`margin > 0` must hold, but got {margin=}")
    running: Mask = np.asarray(np.isfinite(values).any(-1))
    sharing = running
    if so_far is not None:
        running = running & so_far.runs
        sharing = running | (so_far.tied & ~so_far.matters[..., None])
    low, high, ahead, known = _limits(values, level, sharing, resolution)
    m = values.shape[-2]
    if so_far is not None:
        low, high = np.maximum(low, so_far.low), np.minimum(high, so_far.high)
        ahead = np.minimum(ahead, so_far.ahead)
    counts = np.ones(m, dtype=bool) if compared is None else compared
    matters = np.asarray(((low > margin) & counts[:, None] & counts).any((-2, -1)))
    asked = matters[..., None, None] | counts[:, None] | ~counts  # a baseline far ahead must not end the question
    worse = ((low > np.where(matters, 0.0, margin)[..., None, None]) & asked).any(-2)
    alive = running & ~worse & (matters[..., None] | counts)
    merit = np.where(np.where(alive.any(-1, keepdims=True), alive, ~worse), known.mean(-1), -np.inf)
    if so_far is not None:
        merit += np.where(np.arange(m) == so_far.leader[..., None], _HELD_LEAD * margin, 0.0)
    leader = merit.argmax(-1)
    to_leader = leader[..., None, None]
    leads_by = np.take_along_axis(ahead, to_leader, -2)[..., 0, :]
    trails_by = np.take_along_axis(ahead, to_leader, -1)[..., 0]
    above = ~counts & ~matters[..., None] & (np.take_along_axis(low, to_leader, -1)[..., 0] > margin)
    tied = np.asarray(~worse & (((leads_by < margin) & (trails_by < margin)) | above))
    return Race(low, high, ahead, leader, np.asarray(worse), tied, matters)


def _limits(values: Array, level: float, sharing: Mask, resolution: float) -> tuple[Array, Array, Array, Array]:
    """`low`, `high` and `ahead` by this look alone, unknown but for the cells that share it; estimates, 0 where there is none."""
    noise = fit_pairs(values, resolution)
    bounds = all_pairs(values, level, noise, among=sharing)
    known = np.where(np.isfinite(noise.estimate), noise.estimate, 0.0)
    reach = half_widths(noise, level, sharing.sum(-1) - 1, sides=1, beside=True)
    reach = np.where(
        sharing[..., :, None] & sharing[..., None, :], np.maximum(reach, np.swapaxes(reach, -1, -2)), np.inf
    )
    ahead = np.where(np.eye(values.shape[-2], dtype=bool), 0.0, known + reach)
    return bounds.low, bounds.high, np.minimum(ahead, bounds.high), known


def replay(
    values: Array,
    ran: Mask,
    margin: float,
    judged: Sequence[tuple[int, float]],
    *,
    compared: Mask,
    resolution: float = 0.0,
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
        resolution: as of `standing`.
    """
    if not judged:
        raise ValueError("`judged` must name at least one look")
    race, before = None, 0
    dropped = np.zeros(len(values), dtype=bool)
    for seeds, level in judged:
        block = np.s_[:, before:seeds]
        dropped |= ran[block].any(1) & ~np.isfinite(values[block]).any(1)
        seen = np.where(dropped[:, None], np.nan, values[:, :seeds])
        race, before = standing(seen, margin, level, race, compared=compared, resolution=resolution), seeds
        if (race.worse | race.tied | dropped).all():
            break
    assert race is not None  # noqa: S101 - there was a look
    return race, dropped


def next_look(seeds: int) -> int:
    """Seeds at the next look: blocks grow by a quarter, so that late looks do not eat the error."""
    return max(FIRST_LOOK, seeds + 1, round(1.25 * seeds))
