"""Count the GPU-hours of a command's trials, over all drivers and SLURM jobs of the command."""

from pathlib import Path

from tune_dml.record.events import SessionStarted, TrialEnded, TrialPaused, TrialRetried, TrialStarted
from tune_dml.record.ledger import read_events, read_history


def hours_spent(sweep: Path, began: float, now: float | None = None) -> float:
    """Return the GPU-hours (worker-hours without GPUs) of all attempts since `began`, while they had a driver.

    Open trials count up to `now` or, if it is None because their driver has ended, up to their last row.
    """
    gpus, hours, last = 1.0, 0.0, began
    start_times: dict[str, float] = {}

    def add_hours(key: str, time: float) -> None:
        nonlocal hours
        start = start_times.pop(key, time)
        hours += gpus * max(time - start, 0.0) / 3600

    for event in read_events(sweep):
        if event.time < began:
            continue
        match event:
            case SessionStarted():
                for key in list(start_times):
                    add_hours(key, max(last, event.heard.get(key, 0.0)))
                gpus = event.resources.workers * (event.resources.gpus_per_worker or 1)
            case TrialStarted():
                start_times.setdefault(event.key, event.time)
            case TrialRetried() | TrialPaused() | TrialEnded():
                add_hours(event.key, event.time)
        last = max(last, event.time)
    for key in list(start_times):
        rows = read_history(sweep, key) if now is None else []
        add_hours(key, now or max([last, *(row["time"] for row in rows)]))
    return hours
