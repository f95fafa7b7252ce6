"""Return the state of a sweep in a few words, and the age of its last entry."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tune_dml.record.ledger import LEDGER, is_running
from tune_dml.text import age

if TYPE_CHECKING:
    from tune_dml.record.results import Results


def state_of(results: Results) -> str:
    """Return a state such as `complete`, `running 5/18`, `not begun`, `2 of 18 diverged`, `confirmation interrupted 2/10`."""
    ended = sum(trial.status not in {"running", "missing"} for trial in results.trials)
    failed, diverged = results.count("failed"), results.count("diverged")
    if is_running(results.folder):
        if results.confirmation_left and not results.is_incomplete:
            return f"confirming {len(results.confirmed) - results.confirmation_left}/{len(results.confirmed)}"
        return f"running {ended}/{results.planned_trials}"
    if results.is_incomplete:
        begun = ended or results.count("running")
        return f"interrupted {ended}/{results.planned_trials}" if begun else "not begun"
    if remaining := results.confirmation_left:
        return f"confirmation interrupted {len(results.confirmed) - remaining}/{len(results.confirmed)}"
    outcomes = " or ".join(word for word, count in (("failed", failed), ("diverged", diverged)) if count)
    return f"{failed + diverged} of {len(results.trials)} {outcomes}" if outcomes else "complete"


def last_update_time(results: Results) -> float:
    """Return the time of the last ledger entry, in seconds since the epoch."""
    files = [results.folder / LEDGER, results.folder / "plan.json"]
    return max(path.stat().st_mtime for path in files if path.exists())


def age_of(results: Results) -> str:
    """Return the time since the last ledger entry, in words."""
    return age(time.time() - last_update_time(results))
