"""Race between cells in paired blocks of seeds: decides which cells need further seeds.

After each block of seeds, every difference has an interval at the error level of this look (`looks`). Intervals of
earlier looks stay valid, so they are intersected. The leader is the running cell with the best mean, the first one of
equal means. A cell is settled, and gets no further seed, in two cases. It is significantly worse than some cell
("worse"), or its difference to the leader lies significantly within the margin ("tied").

The knob matters once some difference is significantly larger than the margin. Until then a cell is "worse" only if it
is worse by more than the margin. Afterwards any significant amount suffices, because no number of seeds distinguishes a
difference that equals the margin from the margin. The leader runs while any cell is open, because comparisons need its
seeds. If another cell takes the lead, a tied cell opens again unless it is tied with the new leader. When all cells are
settled, the leader is significantly within the margin of the best.

"Worse" and "matters" may be wrong for any pair, so they use the simultaneous intervals of all pairs. "Tied" is wrong
only for a cell more than a margin behind the leader, whose mean is (nearly) above that of the true best. So only the m
- 1 pairs with the true best can err, one-sided. Pairs closer than the margin cannot be tied wrongly, and pairs further
apart can hardly be "worse" wrongly, so both verdicts share one level.

A look's level is shared among the m running cells. The intervals of a stopped cell are kept, and its share goes to the
others, as in Holm's procedure (Maurer and Bretz 2013 for looks). Tied cells keep their share until the knob matters,
because "does not matter" is a statement about them too.

A trial without a value settles no cell by itself. A cell leaves the race if all trials of a block that did not fail
have diverged. A failed trial (a full disk, a lost worker) is a hole: its cell runs in the next block. A cell whose last
`MAX_FAILURES` trials failed gets no more seeds. The race continues among the others; it is then "ended", not "decided".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.intervals import Array, Mask, size_of, without_rounding
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import Bounds, all_pairs, half_widths

FIRST_LOOK = 3  # seeds at the first look; with two seeds, noise cannot be distinguished from differences
MAX_FAILURES = 8  # number of consecutive failed trials after which a cell gets no more seeds
_LEAD_BONUS = 0.1  # share of the margin by which a new leader must exceed the old one


@dataclass(frozen=True, eq=False)
class RaceState:
    """State of one or many races; arrays of shape (..., m), (..., m, m) or (...)."""

    low: Array  # [i, k]: lower bound of cell i minus cell k, simultaneous over all pairs
    high: Array  # [i, k]: upper bound of the same; infinite if unknown
    ahead: Array  # [i, k]: upper bound of cell i minus cell k, simultaneous over the pairs with the best cell
    leader: NDArray[np.intp]
    worse: Mask
    tied: Mask
    """Cells tied with the leader, and the leader itself; a baseline significantly above the leader counts as tied."""
    matters: Mask  # whether any difference is significantly larger than the margin
    diverged: Mask  # cells that left the race because their trials diverged
    failed: Mask  # cells whose last `MAX_FAILURES` trials failed; they get no more seeds

    @property
    def settled(self) -> Mask:
        """Cells that need no more seeds, by evidence or because they diverged."""
        judged = self.worse | self.tied
        only_leader_left = np.asarray((self.worse | self.diverged | self._leads).all(-1))
        lost_leader = self._leads & (self.failed | self.diverged) & ~only_leader_left[..., None]
        return np.asarray((judged & ~lost_leader) | self.diverged)

    @property
    def lost(self) -> Mask:
        """Cells that failed without being settled."""
        return np.asarray(self.failed & ~self.settled)

    @property
    def decided(self) -> Mask:
        """Whether every cell is settled."""
        return np.asarray(self.settled.all(-1))

    @property
    def ended(self) -> Mask:
        """Whether every cell is settled or lost."""
        return np.asarray((self.settled | self.failed).all(-1))

    @property
    def runs(self) -> Mask:
        """Cells that get the next block of seeds: unsettled cells, and the leader while there are any."""
        runs = ~(self.settled | self.failed) | (self._leads & ~self.failed & ~self.diverged)
        return np.asarray(runs & ~self.ended[..., None])

    @property
    def _leads(self) -> Mask:
        return np.asarray(np.arange(self.worse.shape[-1]) == self.leader[..., None])

    def of(self, rows: Sequence[int], margin: float, sign: float = 1.0) -> RaceStanding:
        """Return the findings of a single race about the cells `rows`; `sign` is -1 if smaller is better."""
        square, cells = np.ix_(rows, rows), list(rows)
        low, high = (self.low, self.high) if sign > 0 else (-self.high, -self.low)
        settled = self.ended and self.settled[cells].all()
        return RaceStanding(
            low[square],
            high[square],
            np.maximum(self.ahead, self.ahead.T)[square],
            self.ahead[int(self.leader), cells],
            np.asarray((self.low[square] > 0).any(0)),
            self.tied[cells] & ~self.lost[cells].any(),
            flat=bool(settled and not self.matters and int(self.leader) in rows),
            margin=margin,
        )


@dataclass(frozen=True, eq=False)
class RaceStanding:
    """Findings of a race about the requested cells, in the requested order."""

    low: Array  # bounds as in `RaceState`
    high: Array
    at_most: Array  # [i, k]: upper bound of |difference|, simultaneous over the pairs with the best cell
    behind: Array  # upper bound of the distance to the leader
    worse: Mask  # cells that are significantly worse than another of these cells
    tied: Mask  # cells tied with the leader; all false if a lost cell may be better
    flat: bool  # whether the race settled every cell without a difference larger than the margin
    margin: float

    def narrow(self, bounds: Bounds) -> Bounds:
        """Intersect intervals of another look with those of the race."""
        return Bounds(bounds.estimate, np.maximum(bounds.low, self.low), np.minimum(bounds.high, self.high))


def judge_race(
    values: Array,
    margin: float,
    level: float,
    so_far: RaceState | None = None,
    *,
    compared: Mask | None = None,
    resolution: float = 0.0,
) -> RaceState:
    """Judge one look at a race; larger is better.

    Args:
        values: cells x seeds, of one or many tables; NaN for seeds after a cell stopped.
        margin: the smallest difference that matters.
        level: the error level of this look.
        so_far: the state after the previous look.
        compared: cells whose differences decide whether the knob matters; a baseline is not among them. Until the knob
            matters, cells that are not compared neither lead nor settle others.
        resolution: the step of the values.

    Raises:
        ValueError: unless margin > 0.
    """
    if not margin > 0:
        raise ValueError(f"`margin > 0` must hold, but got {margin=}")
    running: Mask = np.asarray(np.isfinite(values).any(-1))
    sharing = running
    if so_far is not None:
        running = running & so_far.runs
        sharing = running | (so_far.tied & ~so_far.matters[..., None])
    low, high, ahead, estimates = _limits(values, level, sharing, resolution)
    m = values.shape[-2]
    if so_far is not None:
        low, high = np.maximum(low, so_far.low), np.minimum(high, so_far.high)
        ahead = np.minimum(ahead, so_far.ahead)
    counts = np.ones(m, dtype=bool) if compared is None else compared
    matters = np.asarray(((low > margin) & counts[:, None] & counts).any((-2, -1)))
    may_settle = matters[..., None, None] | counts[:, None] | ~counts  # a baseline far ahead must not settle the knob
    worse = ((low > np.where(matters, 0.0, margin)[..., None, None]) & may_settle).any(-2)
    may_lead = running & ~worse & (matters[..., None] | counts)
    merit = np.where(np.where(may_lead.any(-1, keepdims=True), may_lead, ~worse), estimates.mean(-1), -np.inf)
    if so_far is not None:
        merit += np.where(np.arange(m) == so_far.leader[..., None], _LEAD_BONUS * margin, 0.0)
    leader = without_rounding(merit, size_of(values)).argmax(-1)
    to_leader = leader[..., None, None]
    leads_by = np.take_along_axis(ahead, to_leader, -2)[..., 0, :]
    trails_by = np.take_along_axis(ahead, to_leader, -1)[..., 0]
    above = ~counts & ~matters[..., None] & (np.take_along_axis(low, to_leader, -1)[..., 0] > margin)
    tied = np.asarray(~worse & (((leads_by < margin) & (trails_by < margin)) | above))
    none = np.zeros(worse.shape, dtype=bool)
    return RaceState(low, high, ahead, leader, np.asarray(worse), tied, matters, none, none)


def _limits(values: Array, level: float, sharing: Mask, resolution: float) -> tuple[Array, Array, Array, Array]:
    """Return `low`, `high` and `ahead` of this look alone, for the cells that share its level, and the estimates."""
    noise = fit_pairs(values, resolution)
    bounds = all_pairs(values, level, noise, among=sharing)
    estimates = np.where(np.isfinite(noise.estimate), noise.estimate, 0.0)
    reach = half_widths(noise, level, sharing.sum(-1) - 1, sides=1, beside=True)
    reach = np.where(
        sharing[..., :, None] & sharing[..., None, :], np.maximum(reach, np.swapaxes(reach, -1, -2)), np.inf
    )
    ahead = np.where(np.eye(values.shape[-2], dtype=bool), 0.0, estimates + reach)
    return bounds.low, bounds.high, np.minimum(ahead, bounds.high), estimates


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Results of the trials of one or many tables; arrays of shape (..., cells, seeds)."""

    values: Array  # larger is better; NaN without a value
    diverged: Mask
    failed: Mask  # trials that ended without a value and did not diverge

    def first(self, seeds: int) -> Outcomes:
        """Return the outcomes of the first `seeds` seeds."""
        return Outcomes(self.values[..., :seeds], self.diverged[..., :seeds], self.failed[..., :seeds])

    def diverged_since(self, seed: int) -> Mask:
        """Return whether each cell has a diverged trial and no value since a seed, (..., cells)."""
        has_value = np.isfinite(self.values[..., seed:]).any(-1)
        return np.asarray(self.diverged[..., seed:].any(-1) & ~has_value)

    @property
    def failed_in_succession(self) -> NDArray[np.intp]:
        """Number of consecutive failures at the end of each cell's trials, (..., cells)."""
        position = np.arange(1, self.values.shape[-1] + 1)
        last_result = np.where(np.isfinite(self.values) | self.diverged, position, 0).max(-1, keepdims=True)
        return np.asarray((self.failed & (position > last_result)).sum(-1))


def judge_block(
    outcomes: Outcomes,
    since: int,
    margin: float,
    level: float,
    so_far: RaceState | None = None,
    *,
    compared: Mask | None = None,
    resolution: float = 0.0,
) -> RaceState:
    """Judge a race after another block of seeds, which begins at seed number `since`; see `judge_race`.

    Values of cells that left the race, because they diverged or failed repeatedly, are ignored from then on.
    """
    diverged, failed = outcomes.diverged_since(since), outcomes.failed_in_succession >= MAX_FAILURES
    if so_far is not None:
        diverged = diverged | so_far.diverged
    values = np.where((diverged | failed)[..., None], np.nan, outcomes.values)
    race = judge_race(values, margin, level, so_far, compared=compared, resolution=resolution)
    return replace(race, diverged=diverged, failed=failed)


def replay(
    outcomes: Outcomes, margin: float, judged: Sequence[tuple[int, float]], *, compared: Mask, resolution: float = 0.0
) -> RaceState:
    """Judge every look of a single race again, in order, up to the end of the race; see `judge_race`.

    `judged` has (seeds, level) of every look. Raises ValueError without a look.
    """
    if not judged:
        raise ValueError("`judged` must contain at least one look")
    race, since = None, 0
    for seeds, level in judged:
        block = outcomes.first(seeds)
        race = judge_block(block, since, margin, level, race, compared=compared, resolution=resolution)
        since = seeds
        if race.ended:
            break
    assert race is not None  # noqa: S101 - there was a look
    return race


def next_look(seeds: int) -> int:
    """Return the number of seeds at the next look; it grows by a quarter, so that late looks spend little error."""
    return max(FIRST_LOOK, round(1.25 * seeds))
