"""What a sweep's record says against itself: files that were changed by hand, trials that ran different code.

Nothing of it is mended: nobody can tell here which side is right. It is said wherever the sweep's notes are.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from trainables.registries import source_digest
from tune_dml.record.events import TrialEnded
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
    ended = _measured(state)
    for module in sorted({name for event in ended for name in event.end.code}):
        known = [(event.key, event.end.code[module]) for event in ended if module in event.end.code]
        later = [key for key, digest in known if digest != known[0][1]]
        if later:
            first = state.trials[later[0]]
            yield (
                f"the code of {module} was changed while the sweep ran: {len(later)} of {len(known)} trials, first "
                f"{first.cell.label}, seed {first.seed}, trained with another version than those before, and cannot be "
                "compared with them; a new sweep under another --name trains all with one"
            )


def edited_code(state: SweepState) -> tuple[str, ...]:
    """Each module of other packages that is another one now than when the sweep's trials were trained, in words."""
    known: dict[str, str] = {}
    for event in _measured(state):
        known |= event.end.code
    return tuple(
        f"the code of {module} has changed since the trials that are there were trained; they are not run again, and what "
        "is trained now cannot be compared with them: another --name runs everything"
        for module, digest in sorted(known.items())
        if _digest_now(module) not in {digest, None}
    )


def _digest_now(module: str) -> str | None:
    """Of a module as it is here; None of one that is not."""
    try:
        spec = importlib.util.find_spec(module)
        return source_digest(spec.origin) if spec and spec.origin else None
    except (ImportError, OSError, ValueError):
        return None


def _measured(state: SweepState) -> list[TrialEnded]:
    """The ends of trials that have figures, in their order."""
    measured = [state.trial(key) for key in state.trials if state.trial(key).status in _MEASURED]
    return sorted((trial.ended for trial in measured if trial.ended is not None), key=lambda event: event.time)
