"""Count the GPU-hours of a command's trials, over all drivers and SLURM jobs that it starts."""

from __future__ import annotations

from pathlib import Path

from tune_dml.record.events import SessionStarted, TrialEnded, TrialPaused, TrialRetried, TrialStarted
from tune_dml.record.ledger import read_events, read_history


def hours_spent(sweep: Path, began: float, now: float | None = None) -> float:
    """Return the GPU-hours (worker-hours without GPUs) of trials since `began`, lost and interrupted attempts included.

    The time in which a sweep had no driver costs nothing.

    Args:
        sweep: The sweep's folder.
        began: Seconds since the epoch; earlier events do not count.
        now: Time up to which open trials count. None if their driver ended earlier: they count to their last row.
    """
    share, hours, last = 1.0, 0.0, began
    since: dict[str, float] = {}

    def release(key: str, time: float) -> None:
        nonlocal hours
        start = since.pop(key, time)
        hours += share * max(time - start, 0.0) / 3600

    for event in read_events(sweep):
        if event.time < began:
            continue
        match event:
            case SessionStarted():
                for key in list(since):
                    release(key, max(last, event.heard.get(key, 0.0)))
                share = event.resources.workers * (event.resources.gpus_per_worker or 1)
            case TrialStarted():
                since.setdefault(event.key, event.time)
            case TrialRetried() | TrialPaused() | TrialEnded():
                release(event.key, event.time)
        last = max(last, event.time)
    for key in list(since):
        rows = read_history(sweep, key) if now is None else []
        release(key, now or max([last, *(row["time"] for row in rows)]))
    return hours
