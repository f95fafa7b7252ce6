"""Sweep state: a fold over the ledger's events, updated incrementally. The only reader of events.

    state = read_state(folder)        # or SweepState(folder, plan) for a plan that is not on disk yet
    state.update()                    # reads the events that were appended since

Results, MLflow's runs and the trials of a resume are derived from the state, so deriving them again gives the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trainables.errors import ConfigError, nearest
from trainables.option_names import option_problem
from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import Resources
from tune_dml.record import events
from tune_dml.record.judging.current_look import look_at, seeds_of_blocks
from tune_dml.record.judging.looks import Look, read_looks, record_look
from tune_dml.record.judging.race import Block, Race, SettledCell
from tune_dml.record.ledger import LEDGER, GrowingFile, read_events

TrialStatus = Literal["finished", "diverged", "failed", "stopped", "running", "missing"]


_GONE = (
    f"{LEDGER} is empty or gone, and trials/ holds the rows of {{begun}} trial(s): "
    "ended trials run again, unless a copy of the ledger is restored first"
)


@dataclass
class TrialState:
    """State of one trial. Times are in seconds since the epoch."""

    key: str
    status: TrialStatus = "missing"
    """`running` until an end is recorded, even if its driver has died; `missing` if it will be retried."""
    ended: events.TrialEnded | None = None
    rescored: dict[str, float] = field(default_factory=dict)
    """Validation metrics computed later from the embeddings that it kept."""
    figures_time: float = 0.0
    """Time of its last new figures."""
    attempts: int = 0
    paused: bool = False
    """Whether it waits at a rung; continuing from there is not a new attempt."""
    seconds: float = 0.0
    """Training time over all attempts."""
    worker_seconds: float = 0.0
    """Seconds for which it had its workers, over all attempts, lost ones included."""
    workers_since: float = 0.0
    """When it got the workers that it has; 0 without any."""
    host: str = ""
    micro_batch: int | None = None
    """Pictures that a worker processed at a time; None if the session did not set it."""
    started: float = 0.0
    """Time of its first event."""
    active: float = 0.0
    """Time of its last event."""
    live: bool = False
    """Whether it started in the current session and has not ended."""
    away: bool = False
    """Whether it has files in object storage (`record.fetching`)."""
    version: int = 0
    """Number of changes recorded."""

    def fold(self, event: events.TrialEvent) -> None:
        """Update the state by one event about this trial."""
        self.version += 1
        self.started = self.started or event.time
        self.active = event.time
        match event:
            case events.TrialStarted():
                self.attempts += not self.paused
                self.paused = False
                self.workers_since = self.workers_since or event.time
                self.host, self.away, self.micro_batch = event.host, event.away, event.micro_batch
                self.status, self.live, self.ended, self.rescored = "running", True, None, {}
            case events.TrialEnded(end=end) if end.status != "paused":
                self.seconds = self.seconds if end.seconds is None else end.seconds
                self.release_workers(event.time)
                self.worker_seconds = max(self.worker_seconds, self.seconds)
                self.status, self.live, self.ended, self.figures_time = end.status, False, event, event.time
            case events.TrialPaused():
                self.paused, self.live, self.seconds = True, False, event.seconds
                self.release_workers(event.time)
            case events.TrialRetried():
                self.release_workers(event.time)
            case events.FilesFetched():
                self.away = False
            case events.TrialReset():
                self.status, self.live, self.ended, self.rescored = "missing", False, None, {}
            case events.TrialRescored():
                self.rescored |= event.metrics
                self.figures_time = event.time

    def release_workers(self, time: float) -> None:
        """Count the time of its workers up to now: the trial ended, paused, or lost its process or driver."""
        if self.workers_since:
            self.worker_seconds += max(time - self.workers_since, 0.0)
        self.workers_since = 0.0

    @property
    def end(self) -> events.TrialEnd | None:
        """How it ended; None while it has not."""
        return self.ended.end if self.ended else None

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of the trial, those computed later included; empty until it has ended."""
        return self.rescored | (dict(self.end.metrics) if self.end else {})  # the measured ones are exact


class SweepState:
    """State of one sweep; empty until the first `update`, which any thread may call."""

    def __init__(self, folder: Path, plan: Plan):
        self.folder = folder
        self.stored = plan
        """The plan of plan.json."""
        self.plan = plan
        """The plan as it is now: a race adds seeds to it."""
        self.proposed: list[Cell] = []
        """Cells that a search has proposed, in order."""
        self.exhausted = 0
        """Number of cells that a search was asked for when it found no further one; 0 if it found all."""
        self.trials: dict[str, PlannedTrial] = {}
        """Key -> requested trial, cell by cell; of a race that ended early, only the trials that began."""
        self.recorded: dict[str, TrialState] = {}
        """Key -> state of every trial in the ledger, in order of their first events."""
        self.sessions: list[events.SessionStarted] = []
        self.waits_for = ""
        """What a running sweep without room waits for."""
        self.notes: dict[str, bool] = {}
        """Text -> whether it holds only until the next session begins; in order."""
        self.looks: list[Look] = []
        """Looks at the sweep's own trials, in order."""
        self.confirmation_looks: list[Look] = []
        """Looks at the fresh seeds of its confirmation, in order."""
        self.race: Race | None = None
        """The race of a sweep with `--until-decided`."""
        self.opened: events.Opened | None = None
        """The first opening of the test metrics."""
        self.confirming: dict[str, PlannedTrial] = {}
        """Key -> trial that measures a cell again on a fresh seed; not among `trials`."""
        self.created: float | None = None
        """Time of the ledger's first event, which distinguishes successive sweeps of the same name."""
        self._read = 0
        self._last_event = 0.0
        self._lock = threading.Lock()
        self.requested: dict[str, PlannedTrial] = {}
        """Key -> every trial of the plan and of the race's blocks."""
        self._know(plan.cells)

    def update(self) -> None:
        """Read the events that were appended since the last update."""
        with self._lock:
            if not GrowingFile(self.folder / LEDGER, self._read).is_whole:
                self._read = 0  # it was truncated by another program
            fresh = read_events(self.folder, self._read, self._note)
            self.looks = read_looks(self.folder, on_garbage=self._note)
            self.confirmation_looks = read_looks(self.folder, "confirmation")
            for event in fresh:
                try:
                    self._fold(event)
                except (LookupError, TypeError, ValueError, StopIteration) as error:
                    self._note(f"{LEDGER}: the event that ends at byte {event.end_offset} is skipped ({error!r})")
                self._read = event.end_offset
            if self._read == 0 and (begun := len(list(self.folder.glob("trials/*/history.jsonl")))):
                self._note(_GONE.format(begun=begun))

    def _note(self, text: str) -> None:
        self.notes.setdefault(text, False)

    def replan(self, plan: Plan) -> None:
        """Replace the plan by an extended one, or by one with moved pictures."""
        self.stored = self.plan = plan
        self.proposed = [plan.relocate(cell) for cell in self.proposed]
        self.trials, self.requested = {}, {}
        self._know(self.cells)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, planned and proposed, in order."""
        return (*self.plan.cells, *self.proposed)

    @property
    def resources(self) -> Resources:
        """Resources of a trial in the last session."""
        return self.sessions[-1].resources if self.sessions else Resources()

    @property
    def trial_files(self) -> str | None:
        """Address in object storage of the last session's trial files; None for the sweep's folder."""
        return self.sessions[-1].trial_files if self.sessions else None

    @property
    def unfetched(self) -> list[str]:
        """Keys of ended trials with files in object storage."""
        return [key for key, trial in self.recorded.items() if trial.ended is not None and trial.away]

    @property
    def unplanned(self) -> list[TrialState]:
        """Ended trials that are neither in the plan nor in a confirmation."""
        asked = self.requested.keys() | self.confirming.keys()
        return [trial for key, trial in self.recorded.items() if trial.ended is not None and key not in asked]

    @property
    def incomplete(self) -> bool:
        """Whether requested trials have not ended, a search has cells to propose, or a race continues."""
        left = self.to_propose > 0 or any(self.trial(key).ended is None for key in self.trials)
        return left or (self.race is not None and not self.race.over)

    @property
    def to_propose(self) -> int:
        """Number of trials of the cells that a search has yet to propose."""
        samples = self.plan.search.num_samples
        cells = 0 if samples <= self.exhausted else max(samples - len(self.proposed), 0)
        return cells * len(self.plan.seeds)

    @property
    def confirmation_left(self) -> int:
        """Number of confirming trials that have not ended."""
        return sum(self.trial(key).ended is None for key in self.confirming)

    def trials_left(self, confirmation: Plan | None) -> int:
        """Return the number of trials left, or of the confirmation's if given; a race may add more."""
        if confirmation is not None:
            return sum(self.trial(trial.key).ended is None for trial in confirmation.trials())
        return sum(self.trial(key).ended is None for key in self.trials) + self.to_propose

    def record_look(self, by: str) -> None:
        """Record a look at the sweep and one at its confirmation."""
        look, confirmation = look_at_sweep(self, by), look_at_confirmation(self, by)
        with self._lock:
            self.looks = record_look(self.folder, look)
            if confirmation is not None:
                self.confirmation_looks = record_look(self.folder, confirmation)

    def trial(self, key: str) -> TrialState:
        """Return the state of a trial, an empty one if the ledger does not have it."""
        return self.recorded.get(key) or TrialState(key)

    def _know(self, cells: Iterable[Cell]) -> None:
        self._ask(self.plan.trial(cell, seed) for cell in cells for seed in self.plan.seeds)

    def _ask(self, trials: Iterable[PlannedTrial]) -> None:
        for trial in trials:
            self.trials[trial.key] = self.requested[trial.key] = trial

    def _fold(self, event: events.Event) -> None:
        self.created = event.time if self.created is None else self.created
        match event:
            case events.TrialEvent():
                self.recorded.setdefault(event.key, TrialState(event.key)).fold(event)
                if isinstance(event, events.TrialReset) and self.race is not None and event.key in self.requested:
                    self.race.retry()
            case events.SessionStarted():
                self.sessions.append(event)
                self.waits_for = ""
                for text in [text for text, of_session in self.notes.items() if of_session]:
                    del self.notes[text]
                for trial in self.recorded.values():  # they died with their driver
                    trial.version += trial.live
                    trial.release_workers(max(self._last_event, event.heard.get(trial.key, 0.0)))
                    trial.live = False
            case events.CellProposed():
                cell = self.plan.relocate(event.cell)
                self.proposed.append(cell)
                self._know([cell])
            case events.SearchExhausted():
                self.exhausted = event.samples
            case events.Note():
                self.notes.setdefault(event.text, event.of_session)
            case events.Waiting():
                self.waits_for = event.text
            case events.Opened():
                self.opened = self.opened or event
            case events.ConfirmationStarted():
                chosen = [cell for cell in self.cells if cell.digest in event.cells]
                again = [self.plan.trial(cell, seed) for seed in event.seeds for cell in chosen]
                self.confirming.update((trial.key, trial) for trial in again)
            case _:
                self._fold_race(event)
        self._last_event = max(self._last_event, event.time)

    def _fold_race(self, event: events.Event) -> None:
        if isinstance(event, events.RaceStarted):
            self.race = self.race or Race(event.rule)
            self.race.limit(event.rule)
        if self.race is None:
            return
        match event:
            case events.BlockAdded(seeds=seeds):
                fresh = seeds[len(self.plan.seeds) :]
                cells = [cell for cell in self.plan.cells if cell.digest in event.cells]
                self.plan = replace(self.plan, seeds=seeds)
                block = Block(len(fresh), tuple(self.plan.trial(cell, seed) for seed in fresh for cell in cells))
                self.race.blocks.append(block)
                self._ask(block.trials)
            case events.BlockJudged():
                self.race.judged.append((event.seeds, event.level))
            case events.CellSettled(settled=found):
                if found.why != "diverged" or _has_diverged(self, found):
                    self.race.settled[found.cell] = found
            case events.CellReopened():
                self.race.settled.pop(event.cell, None)
            case events.RaceEnded():
                unsettled = len(self.race.settled) < len(self.plan.cells)
                self.race.over = "" if unsettled and event.why == "decided" else event.why
        kept = {key: trial for key, trial in self.requested.items() if not self.race.over or key in self.recorded}
        self.trials = kept  # trials that a budget cut off are not missing


def _has_diverged(state: SweepState, found: SettledCell) -> bool:
    """Whether a trial of the cell diverged: older versions also settled cells whose trials had failed."""
    cell = next(cell for cell in state.plan.cells if cell.digest == found.cell)
    keys = [state.plan.trial(cell, seed).key for seed in state.plan.seeds]
    if any(state.trial(key).status == "diverged" for key in keys):
        return True
    state.notes.setdefault(
        f"{cell.label} was stopped as diverged, but its trials only failed: the race continues with it", False
    )
    return False


def look_at_sweep(state: SweepState, by: str) -> Look | None:
    """Return a look at the sweep; None until two cells have two seeds each."""
    race, ended = state.race, _ended(state)
    look = look_at(state.trials, ended, by, race.rule.max_seeds if race else len(state.plan.seeds))
    if look is None or race is None:
        return look
    later = {trial.key for block in race.blocks for trial in block.trials}
    first = tuple(trial for key, trial in state.requested.items() if key not in later)
    blocks = [Block(len(state.stored.seeds), first), *race.blocks]
    return replace(look, seeds=seeds_of_blocks(blocks, ended), failed=0)


def look_at_confirmation(state: SweepState, by: str) -> Look | None:
    """Return a look at the confirmation; None until two cells have two fresh seeds each."""
    planned = len({trial.seed for trial in state.confirming.values()})
    return look_at(state.confirming, _ended(state), by, planned, "confirmation")


def _ended(state: SweepState) -> dict[str, str]:
    """Return key -> status of every trial that has ended."""
    return {key: trial.status for key, trial in state.recorded.items() if trial.ended}


def packages_of(state: SweepState) -> Mapping[str, str]:
    """Return package -> version and source digest, of the method packages in a sweep's last session."""
    found: Mapping[str, str] = state.sessions[-1].provenance.get("methods", {}) if state.sessions else {}
    return found


def sweep_names(storage: Path) -> list[str]:
    """Return the names of the sweeps under a folder, those without a plan included."""
    folders = {path.parent for file in ("plan.json", LEDGER) for path in storage.glob(f"*/{file}")}
    return sorted(folder.name for folder in folders if is_sweep(folder))


def is_sweep(folder: Path) -> bool:
    """Whether the folder holds a sweep; a session interrupted before its first event leaves an empty ledger."""
    return (folder / "plan.json").exists() or (folder.is_dir() and GrowingFile(folder / LEDGER).grown)


def load_state(storage: Path, name: str) -> SweepState:
    """Return the state of a sweep. Raise ConfigError if there is none of that name."""
    possible = len(os.fsencode(name)) <= 255 and "\0" not in name
    if not (possible and is_sweep(storage / name)):
        known = sweep_names(storage)
        none = "No sweep is stored there; start one with `tune-dml sweep SPACE`."
        remedy = nearest(name, known, what="sweep") if known else none
        raise ConfigError(option_problem("sweep", f"unknown sweep under {storage}:", name, remedy))
    return read_state(storage / name)


def read_state(folder: Path) -> SweepState:
    """Return the state of the sweep in a folder; its name is the folder's, which may have been moved or copied."""
    state = SweepState(folder, replace(Plan.load(folder / "plan.json"), name=folder.name))
    state.update()
    return state
