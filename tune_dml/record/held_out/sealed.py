"""Read sealed test metrics, and record the opening of a sweep: who opened it, when and for which selection.

A trial's test metrics are in a file of its folder (`trainables.context.SEALED`); older sweeps have them in the ledger.
Only this module reads them.
"""

import getpass
import json
import socket
from collections.abc import Mapping
from pathlib import Path

from trainables.context import SEALED, read_sealed
from trainables.files import write_whole
from tune_dml.record.events import Opened
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.state import SweepState, TrialState


def record_opening(state: SweepState, cell: str, selection: str = "") -> None:
    """Record the opening of a sweep, unless it is open. Raise ConfigError if another process runs it."""
    with Ledger(state.folder) as ledger:
        state.update()
        if state.opened is None:
            ledger.write(Opened(user=_user(), host=socket.gethostname(), cell=cell, selection=selection))
    state.update()


def sealed_metrics(sweep: Path, trial: TrialState) -> dict[str, float]:
    """Return the test metrics of a finished trial, otherwise nothing. Call it only for opened sweeps."""
    if trial.ended is None or trial.status != "finished":
        return {}
    from_ledger = {name: value for name, value in trial.metrics.items() if is_sealed(name)}
    return from_ledger | read_sealed(trial_folder(sweep, trial.key))


def add_sealed_metrics(sweep: Path, key: str, figures: Mapping[str, float]) -> None:
    """Add test metrics to a trial's sealed file."""
    folder = trial_folder(sweep, key)
    metrics = {**read_sealed(folder), **figures}
    write_whole(folder / SEALED, json.dumps(metrics) + "\n", private=True)


def is_sealed(metric: str) -> bool:
    """Return whether a metric is a test metric."""
    return metric.startswith("test/")


def without_sealed(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures without test metrics."""
    return {name: value for name, value in figures.items() if not is_sealed(name)}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user in a container may have no name
        return "an unnamed user"
