"""Find contradictions in the files of a sweep: files edited by hand, and trials that ran different code.

They are listed with the notes of the sweep, and never repaired.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from trainables.registries import source_digest
from tune_dml.record.events import TrialEnded
from tune_dml.record.ledger import LEDGER
from tune_dml.record.state import SweepState

_STATUSES_WITH_FIGURES = {"finished", "diverged", "stopped"}


def find_contradictions(state: SweepState) -> Iterator[str]:
    """Yield a sentence for each contradiction."""
    if alterations := state.stored_plan.alterations:
        yield f"plan.json {alterations}"
    known_keys = state.requested_trials.keys() | state.confirmation_trials.keys()
    if count := sum(trial.ended is not None and key not in known_keys for key, trial in state.trial_states.items()):
        yield (
            f"{LEDGER} has {count} trial(s) that plan.json does not have; they are ignored. "
            "The plan was edited by hand, or it belongs to another sweep"
        )
    yield from _changed_code(state)


def _changed_code(state: SweepState) -> Iterator[str]:
    ends = _ends_with_figures(state)
    for module in sorted({name for event in ends for name in event.end.code}):
        digests = [(event.key, event.end.code[module]) for event in ends if module in event.end.code]
        changed_keys = [key for key, digest in digests if digest != digests[0][1]]
        if changed_keys:
            first = state.trials[changed_keys[0]]
            yield (
                f"the code of {module} was changed while the sweep ran: {len(changed_keys)} of {len(digests)} trials, "
                f"first {first.cell.label}, seed {first.seed}, trained with another version than those before, and cannot "
                "be compared with them; use another --name to train all with one version"
            )


def describe_edited_code(state: SweepState) -> tuple[str, ...]:
    """Return a sentence for each module of another package that changed after its trials were trained."""
    digests: dict[str, str] = {}
    for event in _ends_with_figures(state):
        digests |= event.end.code
    return tuple(
        f"the code of {module} changed after some trials had been trained. They are not run again, and new trials "
        "cannot be compared with them: use another --name to run everything"
        for module, digest in sorted(digests.items())
        if _current_digest(module) not in {digest, None}
    )


def _current_digest(module: str) -> str | None:
    try:
        if module.endswith(".py"):  # the script of a program
            return source_digest(module) if Path(module).is_file() else None
        spec = importlib.util.find_spec(module)
        return source_digest(spec.origin) if spec and spec.origin else None
    except (ImportError, OSError, ValueError):
        return None


def _ends_with_figures(state: SweepState) -> list[TrialEnded]:
    trials = [state.trial(key) for key in state.trials if state.trial(key).status in _STATUSES_WITH_FIGURES]
    return sorted((trial.ended for trial in trials if trial.ended is not None), key=lambda event: event.time)
