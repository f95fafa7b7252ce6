"""Find contradictions in a sweep's record: files edited by hand, trials that ran different code.

They are listed with the sweep's notes and never repaired.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from trainables.registries import source_digest
from tune_dml.record.events import TrialEnded
from tune_dml.record.ledger import LEDGER
from tune_dml.record.state import SweepState

_MEASURED = {"finished", "diverged", "stopped"}


def contradictions(state: SweepState) -> tuple[str, ...]:
    """Return a sentence for each contradiction."""
    return tuple(_all(state))


def _all(state: SweepState) -> Iterator[str]:
    if altered := state.stored.alterations:
        yield f"plan.json {altered}"
    if unplanned := len(state.unplanned):
        yield (
            f"{LEDGER} has {unplanned} trial(s) that plan.json does not have; they are ignored. "
            "The plan was edited by hand, or it belongs to another sweep"
        )
    yield from _changed_code(state)


def _changed_code(state: SweepState) -> Iterator[str]:
    """Yield a sentence for each module of another package that was edited between trials."""
    ended = _measured(state)
    for module in sorted({name for event in ended for name in event.end.code}):
        known = [(event.key, event.end.code[module]) for event in ended if module in event.end.code]
        later = [key for key, digest in known if digest != known[0][1]]
        if later:
            first = state.trials[later[0]]
            yield (
                f"the code of {module} was changed while the sweep ran: {len(later)} of {len(known)} trials, first "
                f"{first.cell.label}, seed {first.seed}, trained with another version than those before, and cannot be "
                "compared with them; use another --name to train all with one version"
            )


def edited_code(state: SweepState) -> tuple[str, ...]:
    """Return a sentence for each module of another package that changed since its trials were trained."""
    known: dict[str, str] = {}
    for event in _measured(state):
        known |= event.end.code
    return tuple(
        f"the code of {module} changed after some trials had been trained. They are not run again, and new trials cannot be "
        "compared with them: use another --name to run everything"
        for module, digest in sorted(known.items())
        if _digest_now(module) not in {digest, None}
    )


def _digest_now(module: str) -> str | None:
    """Return the digest of a module's source; None if it is not installed."""
    try:
        if module.endswith(".py"):  # the script of a program
            return source_digest(module) if Path(module).is_file() else None
        spec = importlib.util.find_spec(module)
        return source_digest(spec.origin) if spec and spec.origin else None
    except (ImportError, OSError, ValueError):
        return None


def _measured(state: SweepState) -> list[TrialEnded]:
    """Return the ends of trials with figures, in order of time."""
    measured = [state.trial(key) for key in state.trials if state.trial(key).status in _MEASURED]
    return sorted((trial.ended for trial in measured if trial.ended is not None), key=lambda event: event.time)
