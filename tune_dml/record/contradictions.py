"""What a sweep's record says against itself: files that were changed by hand, trials that ran different code.

Nothing of it is mended: nobody can tell here which side is right. It is said wherever the sweep's notes are.
"""

from __future__ import annotations

from collections.abc import Iterator

from tune_dml.record.ledger import LEDGER
from tune_dml.record.state import SweepState

_MEASURED = {"finished", "diverged", "stopped"}


def contradictions(state: SweepState) -> tuple[str, ...]:
    """Each in words."""
    return tuple(_all(state))


def _all(state: SweepState) -> Iterator[str]:
    if altered := state.stored.alterations:
        yield f"plan.json {altered}"
    if unplanned := len(state.unplanned):
        yield (
            f"{LEDGER} tells of {unplanned} trial(s) that plan.json does not have, which count for nothing: "
            "something was taken out of the plan by hand, or it is another sweep's"
        )
    yield from _changed_code(state)


def _changed_code(state: SweepState) -> Iterator[str]:
    """Modules of other packages that were edited while the sweep ran, or before it was resumed."""
    measured = [state.trial(key) for key in state.trials if state.trial(key).status in _MEASURED]
    ended = sorted((trial.ended for trial in measured if trial.ended is not None), key=lambda event: event.time)
    for module in sorted({name for event in ended for name in event.body.get("code", {})}):
        known = [(event.key, event.body["code"][module]) for event in ended if module in event.body.get("code", {})]
        later = [key for key, digest in known if digest != known[0][1]]
        if later:
            first = state.trials[later[0]]
            yield (
                f"the code of {module} was changed while the sweep ran: {len(later)} of {len(known)} trials, first "
                f"{first.cell.label}, seed {first.seed}, trained with another version than those before, and cannot be "
                "compared with them; a new sweep under another --name trains all with one"
            )
