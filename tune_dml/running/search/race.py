"""Propose the trials of a race: blocks of paired seeds, until every question is decided (`stats.sequential.racing`).

After each block the table of cells x seeds is judged at this look's level. Settled cells stop; the others get the next
block, until no cell is open or a limit is reached. Each step is an event of the ledger, so that a resumed race takes
the same decisions. This module does not use Ray.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from trainables.errors import Problem, raise_if_any
from trainables.option_names import option_problem, spell
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import MAX_SEEDS, Racing
from tune_dml.record.events import BlockAdded, BlockJudged, CellReopened, CellSettled, Event, RaceEnded
from tune_dml.record.judging.race import Race, RaceRule, SettledCell, Why
from tune_dml.record.judging.resolution import resolution_in
from tune_dml.record.state import SweepState
from tune_dml.running.search.groups import Record, TrialSource
from tune_dml.stats.intervals import Mask
from tune_dml.stats.sequential import racing
from tune_dml.stats.sequential.looks import race_level


class RacingProposals(TrialSource):
    """Chooses the next trials of a race, and settles cells. Updates the state; a diverged trial has the value NaN."""

    def __init__(
        self,
        state: SweepState,
        *,
        trial_values: Mapping[str, float],
        record: Record,
        on_note: Callable[[str], None] = lambda text: None,
        on_block: Callable[[], None] = lambda: None,
    ):
        super().__init__(trial_values)
        self.state = state
        self._write, self._print_note, self._on_block = record, on_note, on_block
        self._queue(list(state.trials.values()))

    @property
    def plan(self) -> Plan:
        """The plan with the current seeds of the race."""
        return self.state.plan

    @property
    def is_finished(self) -> bool:
        """Whether no trial is left to start now or later."""
        return bool(self._race.over) and not self.waiting

    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial; None if the block must end first, or if `is_finished`."""
        if not self.waiting and not self._race.over and all(key in self.trial_values for key in self.state.trials):
            self._judge()
        elif self.waiting and self._is_over_budget():
            self._end("budget")
        return self.waiting.popleft() if self.waiting else None

    @property
    def _race(self) -> Race:
        assert self.state.race is not None  # noqa: S101 - `proposals_for` has checked
        return self.state.race

    def _is_over_budget(self) -> bool:
        if self._race.rule.budget is None:
            return False
        self.state.update()
        return _hours_spent(self.state) >= self._race.rule.budget

    def _record(self, event: Event) -> None:
        self._write(event)
        self.state.update()

    def _queue(self, trials: Sequence[PlannedTrial]) -> None:
        """Queue trials seed by seed, so that an interrupted race has complete replicates."""
        order = {seed: number for number, seed in enumerate(self.plan.seeds)}
        missing = [trial for trial in trials if trial.key not in self.trial_values]
        self.waiting.extend(sorted(missing, key=lambda trial: order[trial.seed]))

    def _judge(self) -> None:
        self.state.update()
        seeds, race = len(self.plan.seeds), self._race
        if seeds < racing.FIRST_LOOK:
            self._start_block(racing.FIRST_LOOK, np.ones(len(self.plan.cells), dtype=bool))
            return
        if not race.judged or race.judged[-1][0] < seeds:
            self._record(BlockJudged(seeds=seeds, level=self._level()))
        race_state = self._replay_looks()
        self._settle(race_state)
        if race_state.decided:
            self._end("decided")
        elif race_state.ended:
            self._end("failed")
        elif seeds >= race.rule.max_seeds:
            self._end("max_seeds")
        elif self._is_over_budget():
            self._end("budget")
        else:
            self._start_block(min(race.rule.max_seeds, racing.next_look(seeds)), race_state.runs)

    def _level(self) -> float:
        """Record this look and return its error level, before its result is known."""
        self.state.record_look("race")
        looks = self.state.looks
        if not looks:  # nearly all trials diverged, so that no claim will be made
            return race_level([len(self.plan.seeds)], planned=self._race.rule.max_seeds)
        return race_level([look.seeds for look in looks], planned=looks[0].planned)

    def _replay_looks(self) -> racing.RaceState:
        plan, race = self.plan, self._race
        sign = 1.0 if plan.space.goal == "maximize" else -1.0
        keys = [[plan.trial(cell, seed).key for seed in plan.seeds] for cell in plan.cells]
        values = np.array([[sign * self.trial_values.get(key, math.nan) for key in row] for row in keys])
        ended = np.array([[key in self.trial_values for key in row] for row in keys])
        diverged = np.array([[self.state.trial(key).status == "diverged" for key in row] for row in keys])
        outcomes = racing.Outcomes(values, diverged, ended & ~diverged & ~np.isfinite(values))
        is_compared = np.array([not cell.baseline for cell in plan.cells])
        resolution = resolution_in(plan.metric, [[self.state.trial(key).metrics for key in row] for row in keys])
        return racing.replay(outcomes, race.rule.margin, race.judged, compared=is_compared, resolution=resolution)

    def _settle(self, race_state: racing.RaceState) -> None:
        stopped = race_state.settled | race_state.lost
        for number, cell in enumerate(self.plan.cells):
            previous = self._race.settled.get(cell.digest)
            if stopped[number] and (number != race_state.leader or race_state.ended):
                settled = self._settled_cell(race_state, number)
                if previous is None or settled.supersedes(previous):
                    self._record(CellSettled(settled=settled))
                    self._print_note(f"stops: {cell.label} {settled.sentence}")
            elif previous is not None:
                seeds = self._race.judged[-1][0]
                self._record(CellReopened(cell=cell.digest, seeds=seeds))
                leads = f"{self.plan.cells[int(race_state.leader)].label} now leads"
                why = "its trials were retried" if previous.why in {"failed", "diverged"} else leads
                self._print_note(f"continues: {cell.label} after {seeds} seeds: {why}")

    def _settled_cell(self, race_state: racing.RaceState, number: int) -> SettledCell:
        why, against, effect = _reason(race_state, number)
        cells = self.plan.cells
        label = "" if against is None else cells[against].label
        failed_labels = [cell.label for cell, failed in zip(cells, race_state.lost, strict=True) if failed]
        unjudged = ", ".join(failed_labels) if why == "best" else ""
        seeds, level = self._race.judged[-1]
        failed = racing.MAX_FAILURES if why == "failed" else 0
        return SettledCell(
            cells[number].digest, seeds, why, label, self._race.rule.margin, level, effect, unjudged, failed
        )

    def _start_block(self, seeds: int, runs: Mask) -> None:
        seeds_so_far = self.plan.seeds
        new_seeds = range(max(seeds_so_far) + 1, max(seeds_so_far) + 1 + seeds - len(seeds_so_far))
        digests = tuple(cell.digest for cell, continues in zip(self.plan.cells, runs, strict=True) if continues)
        self._record(BlockAdded(seeds=(*seeds_so_far, *new_seeds), cells=digests))
        self._queue(self._race.blocks[-1].trials)
        self._on_block()

    def _end(self, why: Literal["decided", "failed", "max_seeds", "budget"]) -> None:
        self.waiting.clear()
        self._record(RaceEnded(why=why))
        self._on_block()


def _reason(race_state: racing.RaceState, cell: int) -> tuple[Why, int | None, float | None]:
    """Return why a cell stops, the cell that it was compared with, and their difference."""
    if race_state.diverged[cell] or race_state.lost[cell]:
        return "diverged" if race_state.diverged[cell] else "failed", None, None
    leader = int(race_state.leader)
    if race_state.worse[cell]:
        better = int(race_state.low[:, cell].argmax())
        return "worse", better, float(race_state.low[better, cell])
    if cell == leader or race_state.low[cell, leader] > 0:
        return "best", None, None
    return "tied", leader, float(max(race_state.ahead[leader, cell], race_state.ahead[cell, leader]))


def _hours_spent(state: SweepState) -> float:
    """Return the GPU-hours or worker-hours of all trials, lost attempts included."""
    seconds = sum(trial.worker_seconds for trial in state.trial_states.values())
    return seconds / 3600 * (state.resources.gpus or state.resources.workers)


def rule_of(state: SweepState, request: Racing) -> RaceRule:
    """Return the rule of the requested race. Raise ConfigError if the sweep cannot run it."""
    margin = state.race.rule.margin if state.race else state.plan.margin
    rule = RaceRule(state.plan.stated_margin or margin, request.max_seeds or MAX_SEEDS, request.budget)
    raise_if_any(_race_problems(state, rule))
    return rule


def _race_problems(state: SweepState, rule: RaceRule) -> list[Problem]:
    plan, problems = state.plan, []
    values = sum(not cell.baseline for cell in plan.cells)
    if plan.search.method != "grid":
        remedy = f"Use {spell('search', 'grid')}, or leave it out."
        problems.append(option_problem("until_decided", "a race stops cells of a grid", plan.search.method, remedy))
    elif plan.search.stopping is not None:
        rule_text = "a race compares finished trials, but early stopping ends some of them early"
        remedy = f"Leave {spell('stopping')} or {spell('until_decided')} out."
        problems.append(option_problem("until_decided", rule_text, plan.search.stopping, remedy))
    elif values < 2:
        problems.append(
            option_problem("until_decided", "a race needs two values to compare", values, "List another one.")
        )
    if rule.max_seeds < len(plan.seeds):
        rule_text = "must not be below the present number of seeds"
        remedy = f"Use {spell('max_seeds', max(len(plan.seeds), racing.FIRST_LOOK))} or more."
        problems.append(option_problem("max_seeds", rule_text, rule.max_seeds, remedy))
    if state.race is not None and state.race.rule.margin != rule.margin:
        begun = f"the race was begun with {state.race.rule.margin:g}, the smallest difference that matters"
        rule_text = f"{begun}, and its questions depend on it"
        remedy = "Leave it out, or start a new sweep under another name."
        problems.append(option_problem("margin", rule_text, rule.margin, remedy))
    return problems
