"""Choose the class that proposes a session's trials: for a search, a race or early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tune_dml.planning.plan import Plan
from tune_dml.record.events import TrialEnd
from tune_dml.record.ledger import read_history
from tune_dml.record.state import SweepState
from tune_dml.running.search.groups import Record
from tune_dml.running.search.optuna_search import Proposals

if TYPE_CHECKING:
    from tune_dml.running.screen.progress import Progress
    from tune_dml.running.search.race import RacingProposals


def proposals_for(
    state: SweepState, plan: Plan, record: Record, progress: Progress, on_stop: Callable[[str, TrialEnd], None]
) -> Proposals | RacingProposals:
    """Return the object that proposes the trials of a plan, restored from the state of the ledger.

    The plan is the sweep's own, or that of its confirmation. `record` appends an event to the ledger. `on_stop` is
    called with the key and the end of a trial that is stopped early.
    """
    ends = {key: trial.end for key, trial in state.trial_states.items() if trial.end}
    diverged_number = diverged_value(state, plan)
    trial_values = {key: value_of(end, plan.metric, diverged_number) for key, end in ends.items()}
    if plan is not state.plan:
        return Proposals(plan, trial_values=trial_values)
    if state.race is not None:
        from tune_dml.running.search.race import RacingProposals  # imports scipy, which takes a second

        return RacingProposals(
            state, trial_values=trial_values, record=record, on_note=progress.note, on_block=progress.recount
        )

    proposed, on_note = state.proposed_cells, progress.note
    if plan.search.stopping is None:
        return Proposals(plan, trial_values=trial_values, proposed=proposed, record=record, on_note=on_note)
    from tune_dml.running.search.stopping import StoppingProposals  # imports scipy, too

    def values(key: str) -> dict[int, float]:
        rows = read_history(state.folder, key)
        return {int(row["step"]): float(row[plan.metric]) for row in rows if plan.metric in row}

    return StoppingProposals(
        plan,
        trial_values=trial_values,
        stopped={key: end.step or 0 for key, end in ends.items() if end.status == "stopped"},
        values=values,
        on_stop=on_stop,
        proposed=proposed,
        record=record,
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
