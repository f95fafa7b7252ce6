"""Return the state of a sweep in a few words, and its answer in a sentence."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from tune_dml.cli._stored_answers import SweepAnswer, stored_answer, stored_headline
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


def answer_of(results: Results) -> SweepAnswer | None:
    """Return the answer of the last look; None without results or before the first look (see `why_no_answer`)."""
    return stored_answer(results) if _is_judged(results) else None


def headline_of(results: Results) -> str:
    """Return the first sentence of the answer; empty if there is none."""
    return stored_headline(results) if _is_judged(results) else ""


def why_no_answer(results: Results) -> str:
    """Return why a sweep with results has no answer yet; empty if it has one.

    Without a recorded look, up to 14 % of sweeps with equal cells would get a wrong verdict.
    """
    from tune_dml.record.origin.commands import command

    if results.has_current_look or not _has_numbers(results):
        return ""
    when = "comes when the sweep ends" if is_running(results.folder) else "comes when a session ends"
    now = f"{command(results, 'report')} judges the present trials now: a look, which spends part of the 5 % error"
    return f"Not judged yet. The answer {when}; {now}."


def _is_judged(results: Results) -> bool:
    return _has_numbers(results) and bool(results.has_current_look)


def _has_numbers(results: Results) -> bool:
    return any(math.isfinite(trial.metrics.get(results.plan.metric, math.nan)) for trial in results.trials)
