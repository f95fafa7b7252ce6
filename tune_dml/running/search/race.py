"""Propose trials of a race: paired blocks of seeds, until every question is decided (`stats.sequential.racing`).

After each block the table of cells x seeds is judged at this look's level. Settled cells stop, the others get the next
block, until none is open or a limit is reached. Each step is an event of the ledger, so a resumed race takes the same
decisions. Knows no Ray.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from trainables.errors import Problem, raise_if_any
from trainables.option_names import option_problem, spelled
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import MAX_SEEDS, Racing
from tune_dml.record.events import BlockAdded, BlockJudged, CellReopened, CellSettled, Event, RaceEnded
from tune_dml.record.judging.race import Race, RaceRule, SettledCell, Why
from tune_dml.record.judging.resolution import resolution_in
from tune_dml.record.state import SweepState
from tune_dml.stats.intervals import Mask
from tune_dml.stats.sequential import racing
from tune_dml.stats.sequential.looks import race_level

Record = Callable[[Event], None]


class RacingProposals:
    """Chooses the next trials of a race, and settles cells.

    Args:
        state: The sweep, with a race; kept up to date.
        known: Key -> value of trials that have ended; NaN if diverged or failed.
        record: Appends an event to the ledger.
        on_note: Called with notes for people.
        on_block: Called when more trials were added.
    """

    def __init__(
        self,
        state: SweepState,
        *,
        known: Mapping[str, float],
        record: Record,
        on_note: Callable[[str], None] = lambda text: None,
        on_block: Callable[[], None] = lambda: None,
    ):
        self.state = state
        self.known = dict(known)
        self._write, self._say, self._on_block = record, on_note, on_block
        self.waiting: deque[PlannedTrial] = deque()
        self._queue(list(state.trials.values()))

    @property
    def plan(self) -> Plan:
        """The plan with the race's present seeds."""
        return self.state.plan

    @property
    def finished(self) -> bool:
        """Whether no trial is left, and none will come."""
        return bool(self._race.over) and not self.waiting

    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial; None while the block must end first, or when `finished`."""
        if not self.waiting and not self._race.over and self._is_complete():
            self._judge()
        elif self.waiting and self._is_spent():
            self._end("budget")
        return self.waiting.popleft() if self.waiting else None

    def until(self, trial: PlannedTrial) -> int | None:
        """Return None: no trial of a race pauses."""
        return None

    def ended(self, key: str, value: float) -> None:
        """Take a trial's value; NaN if it diverged or failed."""
        self.known[key] = value

    @property
    def _race(self) -> Race:
        assert self.state.race is not None  # noqa: S101 - `proposals_for` has checked
        return self.state.race

    def _is_complete(self) -> bool:
        return all(key in self.known for key in self.state.trials)

    def _is_spent(self) -> bool:
        if self._race.rule.budget is None:
            return False
        self.state.update()
        return _hours_of(self.state) >= self._race.rule.budget

    def _record(self, event: Event) -> None:
        self._write(event)
        self.state.update()

    def _queue(self, trials: Sequence[PlannedTrial]) -> None:
        """Queue trials seed by seed, so that an interrupted race has whole replicates."""
        order = {seed: number for number, seed in enumerate(self.plan.seeds)}
        missing = [trial for trial in trials if trial.key not in self.known]
        self.waiting.extend(sorted(missing, key=lambda trial: order[trial.seed]))

    def _judge(self) -> None:
        """Judge the blocks so far: settle cells, then add a block or end the race."""
        self.state.update()
        seeds, race = len(self.plan.seeds), self._race
        if seeds < racing.FIRST_LOOK:
            self._begin_block(racing.FIRST_LOOK, np.ones(len(self.plan.cells), dtype=bool))
            return
        if not race.judged or race.judged[-1][0] < seeds:
            self._record(BlockJudged(seeds=seeds, level=self._level()))
        standing = self._standing()
        self._settle(standing)
        if standing.decided:
            self._end("decided")
        elif standing.ended:
            self._end("failed")
        elif seeds >= race.rule.max_seeds:
            self._end("max_seeds")
        elif self._is_spent():
            self._end("budget")
        else:
            self._begin_block(min(race.rule.max_seeds, racing.next_look(seeds)), standing.runs)

    def _level(self) -> float:
        """Return the level that this look may spend, recorded before its result is known."""
        self.state.record_look("race")
        looks = self.state.looks
        if not looks:  # nearly all trials diverged: no claim will be made
            return race_level([len(self.plan.seeds)], planned=self._race.rule.max_seeds)
        return race_level([look.seeds for look in looks], planned=looks[0].planned)

    def _standing(self) -> racing.RaceState:
        """Judge all looks so far again, each at its level."""
        plan, race = self.plan, self._race
        sign = 1.0 if plan.space.goal == "maximize" else -1.0
        keys = [[plan.trial(cell, seed).key for seed in plan.seeds] for cell in plan.cells]
        values = np.array([[sign * self.known.get(key, math.nan) for key in row] for row in keys])
        ended = np.array([[key in self.known for key in row] for row in keys])
        diverged = np.array([[self.state.trial(key).status == "diverged" for key in row] for row in keys])
        outcomes = racing.Outcomes(values, diverged, ended & ~diverged & ~np.isfinite(values))
        compared = np.array([not cell.baseline for cell in plan.cells])
        resolution = resolution_in(plan.metric, [[self.state.trial(key).metrics for key in row] for row in keys])
        return racing.replay(outcomes, race.rule.margin, race.judged, compared=compared, resolution=resolution)

    def _settle(self, standing: racing.RaceState) -> None:
        """Record which cells stop and which continue."""
        stopped = standing.settled | standing.lost
        for number, cell in enumerate(self.plan.cells):
            before = self._race.settled.get(cell.digest)
            if stopped[number] and (number != standing.leader or standing.ended):
                found = self._settled_cell(standing, number)
                if before is None or found.supersedes(before):
                    self._record(CellSettled(settled=found))
                    self._say(f"stops: {cell.label} {found.sentence}")
            elif before is not None:
                seeds = self._race.judged[-1][0]
                self._record(CellReopened(cell=cell.digest, seeds=seeds))
                tied = f"{self.plan.cells[int(standing.leader)].label} now leads"
                why = "its trials were retried" if before.why in {"failed", "diverged"} else tied
                self._say(f"continues: {cell.label} after {seeds} seeds: {why}")

    def _settled_cell(self, standing: racing.RaceState, number: int) -> SettledCell:
        why, against, effect = _reason(standing, number)
        cells = self.plan.cells
        label = "" if against is None else cells[against].label
        lost = [cell.label for cell, failed in zip(cells, standing.lost, strict=True) if failed]
        unjudged = ", ".join(lost) if why == "best" else ""
        seeds, level = self._race.judged[-1]
        failed = racing.MAX_FAILURES if why == "failed" else 0
        return SettledCell(
            cells[number].digest, seeds, why, label, self._race.rule.margin, level, effect, unjudged, failed
        )

    def _begin_block(self, seeds: int, runs: Mask) -> None:
        old = self.plan.seeds
        fresh = range(max(old) + 1, max(old) + 1 + seeds - len(old))
        digests = tuple(cell.digest for cell, goes_on in zip(self.plan.cells, runs, strict=True) if goes_on)
        self._record(BlockAdded(seeds=(*old, *fresh), cells=digests))
        self._queue(self._race.blocks[-1].trials)
        self._on_block()

    def _end(self, why: Literal["decided", "failed", "max_seeds", "budget"]) -> None:
        self.waiting.clear()
        self._record(RaceEnded(why=why))
        self._on_block()


def _reason(standing: racing.RaceState, cell: int) -> tuple[Why, int | None, float | None]:
    """Return why a cell stops, the cell it was compared with, and by how much."""
    if standing.diverged[cell] or standing.lost[cell]:
        return "diverged" if standing.diverged[cell] else "failed", None, None
    leader = int(standing.leader)
    if standing.worse[cell]:
        better = int(standing.low[:, cell].argmax())
        return "worse", better, float(standing.low[better, cell])
    if cell == leader or standing.low[cell, leader] > 0:
        return "best", None, None
    return "tied", leader, float(max(standing.ahead[leader, cell], standing.ahead[cell, leader]))


def _hours_of(state: SweepState) -> float:
    """Return the GPU-hours or worker-hours of all trials, lost attempts included."""
    seconds = sum(trial.worker_seconds for trial in state.recorded.values())
    return seconds / 3600 * (state.resources.gpus or state.resources.workers)


def rule_of(state: SweepState, asked: Racing) -> RaceRule:
    """Return the rule of the requested race. Raise ConfigError if the sweep cannot run it."""
    begun = state.race.rule.margin if state.race else state.plan.margin
    rule = RaceRule(state.plan.stated_margin or begun, asked.max_seeds or MAX_SEEDS, asked.budget)
    raise_if_any(_race_problems(state, rule))
    return rule


def _race_problems(state: SweepState, rule: RaceRule) -> list[Problem]:
    plan, problems = state.plan, []
    values = sum(not cell.baseline for cell in plan.cells)
    if plan.search.method != "grid":
        rule_text, remedy = "a race stops cells of a grid", f"Use {spelled('search', 'grid')}, or leave it out."
        problems.append(option_problem("until_decided", rule_text, plan.search.method, remedy))
    elif plan.search.stopping is not None:
        rule_text = "a race compares whole trials, and early stopping cuts them short"
        remedy = f"Leave {spelled('stopping')} or {spelled('until_decided')} out."
        problems.append(option_problem("until_decided", rule_text, plan.search.stopping, remedy))
    elif values < 2:
        problems.append(
            option_problem("until_decided", "a race needs two values to compare", values, "List another one.")
        )
    if rule.max_seeds < len(plan.seeds):
        remedy = f"Use {spelled('max_seeds', max(len(plan.seeds), racing.FIRST_LOOK))} or more."
        problems.append(option_problem("max_seeds", "must be at least the seeds present", rule.max_seeds, remedy))
    if state.race is not None and state.race.rule.margin != rule.margin:
        begun = f"the race was begun with {state.race.rule.margin:g}, the smallest difference that matters"
        rule_text = f"{begun}, and its questions depend on it"
        remedy = "Leave it out, or start a new sweep under another name."
        problems.append(option_problem("margin", rule_text, rule.margin, remedy))
    return problems
