"""Choose the class that proposes a session's trials: for a search, a race or early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan
from tune_dml.record.events import SearchExhausted, TrialEnd
from tune_dml.record.ledger import read_history
from tune_dml.record.state import SweepState
from tune_dml.running.search.optuna_search import Proposals

if TYPE_CHECKING:
    from tune_dml.running.search.race import RacingProposals, Record

NoteFunction = Callable[[str], None]


def proposals_for(
    state: SweepState,
    plan: Plan,
    *,
    record: Record,
    on_note: NoteFunction,
    on_cell: Callable[[Cell], None],
    on_stop: Callable[[str, TrialEnd], None],
    on_block: Callable[[], None],
    say: NoteFunction,
) -> Proposals | RacingProposals:
    """Return the object that proposes the trials of a plan, restored from the state of the ledger.

    Args:
        state: The sweep.
        plan: The plan to run: the sweep's own, or that of its confirmation.
        record: Appends an event to the ledger.
        on_note: Prints a note, and appends it to the ledger.
        on_cell: Called with a proposed cell.
        on_stop: Called with the end of a trial that is stopped early.
        on_block: Called when a race adds trials.
        say: Prints a note about an event of the ledger.
    """
    ends = {key: trial.end for key, trial in state.trial_states.items() if trial.end}
    diverged_number = diverged_value(state, plan)
    trial_values = {key: value_of(end, plan.metric, diverged_number) for key, end in ends.items()}
    if plan is not state.plan:
        return Proposals(plan, trial_values=trial_values, on_cell=on_cell, on_note=on_note)
    if state.race is not None:
        from tune_dml.running.search.race import RacingProposals  # imports scipy, which takes a second

        return RacingProposals(state, trial_values=trial_values, record=record, on_note=say, on_block=on_block)

    def on_exhausted() -> None:
        record(SearchExhausted(samples=plan.search.num_samples))

    if plan.search.stopping is None:
        return Proposals(
            plan,
            trial_values=trial_values,
            proposed=state.proposed_cells,
            on_cell=on_cell,
            on_exhausted=on_exhausted,
            on_note=on_note,
        )
    from tune_dml.running.search.stopping import StoppingProposals  # imports scipy, too

    return StoppingProposals(
        plan,
        trial_values=trial_values,
        stopped={key: end.step or 0 for key, end in ends.items() if end.status == "stopped"},
        values=lambda key: _values_by_step(state, key),
        on_stop=on_stop,
        proposed=state.proposed_cells,
        on_cell=on_cell,
        on_exhausted=on_exhausted,
        on_note=on_note,
    )


def diverged_value(state: SweepState, plan: Plan) -> float:
    """Return the value of a diverged trial: infinite for a search, NaN for a race."""
    return math.nan if state.race is not None and plan is state.plan else math.inf


def value_of(end: TrialEnd, metric: str, diverged_number: float) -> float:
    """Return a trial's metric, at its rung if it was stopped early; `diverged_number` or NaN without one."""
    if end.status == "diverged":
        return diverged_number
    if end.status == "stopped":
        return math.nan if end.at_rung is None else end.at_rung
    return float(end.metrics.get(metric, math.nan)) if end.status == "finished" else math.nan


def _values_by_step(state: SweepState, key: str) -> dict[int, float]:
    metric = state.plan.metric
    return {int(row["step"]): float(row[metric]) for row in read_history(state.folder, key) if metric in row}
