"""Sweep state: a fold over the ledger's events, updated incrementally. The only reader of events.

Results, MLflow's runs and the trials of a resume are derived from the state alone, always with the same outcome.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trainables.errors import ConfigError, Problem
from trainables.option_names import option_place
from tune_dml.planning.cells import Cell, with_own_label
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import Resources
from tune_dml.record import events
from tune_dml.record.judging.looks import Look, look_at, read_looks, record_look
from tune_dml.record.judging.race import Block, Race, SettledCell
from tune_dml.record.ledger import LEDGER, GrowingFile, read_events

TrialStatus = Literal["finished", "diverged", "failed", "stopped", "running", "missing"]

_LEDGER_GONE = (
    f"{LEDGER} is empty or gone, and trials/ holds the rows of {{begun}} trial(s): "
    "ended trials run again, unless a copy of the ledger is restored first"
)


@dataclass
class TrialState:
    """State of one trial. Times are in seconds since the epoch."""

    key: str
    status: TrialStatus = "missing"  # `running` until its end is recorded; `missing` if it will run again
    ended: events.TrialEnded | None = None
    rescored: dict[str, float] = field(default_factory=dict)  # validation metrics that were computed later
    figures_time: float = 0.0  # time at which it last got figures
    attempts: int = 0
    is_paused: bool = False  # whether it waits at a rung, from which it continues without a new attempt
    seconds: float = 0.0  # training time over all attempts
    worker_seconds: float = 0.0  # time with workers over all attempts, including lost ones
    workers_since: float = 0.0  # time at which it got its present workers; 0 without workers
    host: str = ""
    micro_batch: int | None = None  # pictures that a worker held at once; None if the session did not set it
    started: float = 0.0  # time of its first event
    active: float = 0.0  # time of its last event
    is_live: bool = False  # whether it started in the current session and has not ended
    has_remote_files: bool = False  # whether it has files in object storage (`record.fetching`)
    version: int = 0  # number of changes of the state

    def fold(self, event: events.TrialEvent) -> None:
        """Update the state by an event about this trial."""
        self.version += 1
        self.started = self.started or event.time
        self.active = event.time
        match event:
            case events.TrialStarted():
                self.attempts += not self.is_paused
                self.is_paused = False
                self.workers_since = self.workers_since or event.time
                self.host, self.has_remote_files, self.micro_batch = event.host, event.away, event.micro_batch
                self.status, self.is_live, self.ended, self.rescored = "running", True, None, {}
            case events.TrialEnded(end=end) if end.status != "paused":
                self.seconds = self.seconds if end.seconds is None else end.seconds
                self.release_workers(event.time)
                self.worker_seconds = max(self.worker_seconds, self.seconds)
                self.status, self.is_live, self.ended, self.figures_time = end.status, False, event, event.time
            case events.TrialPaused():
                self.is_paused, self.is_live, self.seconds = True, False, event.seconds
                self.release_workers(event.time)
            case events.TrialRetried():
                self.release_workers(event.time)
            case events.FilesFetched():
                self.has_remote_files = False
            case events.TrialReset():
                self.status, self.is_live, self.ended, self.rescored = "missing", False, None, {}
            case events.TrialRescored():
                self.rescored |= event.metrics
                self.figures_time = event.time

    def release_workers(self, time: float) -> None:
        """Add the time of its workers up to `time`, when it ended, paused, or lost its process or driver."""
        if self.workers_since:
            self.worker_seconds += max(time - self.workers_since, 0.0)
        self.workers_since = 0.0

    @property
    def end(self) -> events.TrialEnd | None:
        """The end of the trial; None before."""
        return self.ended.end if self.ended else None

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of the trial, including those computed later; empty before its end."""
        return self.rescored | (dict(self.end.metrics) if self.end else {})  # measured figures are more exact


class SweepState:
    """State of one sweep; empty before the first `update`. Any thread may call `update`."""

    def __init__(self, folder: Path, plan: Plan):
        self.folder = folder
        self.stored_plan = plan
        self._labels: set[str] = set()
        cells = tuple(with_own_label(cell, self._labels) for cell in plan.cells)
        self.plan = plan if cells == plan.cells else replace(plan, cells=cells)  # current; a race adds seeds to it
        self.proposed_cells: list[Cell] = []  # cells that a search has proposed, in order
        self.exhausted_at = 0  # number of requested cells when a search found no new one
        self.trials: dict[str, PlannedTrial] = {}  # requested; of a race that has ended, those that started
        self.trial_states: dict[str, TrialState] = {}  # every trial in the ledger, by its first event
        self.sessions: list[events.SessionStarted] = []
        self.waits_for = ""  # the resource that a running sweep waits for; empty if it does not wait
        self.notes: dict[str, bool] = {}  # text -> whether it is shown only until the next session starts
        self.looks: list[Look] = []
        self.confirmation_looks: list[Look] = []
        self.race: Race | None = None  # the race of a sweep with `--until-decided`
        self.opened: events.Opened | None = None  # the first opening of the test metrics
        self.confirmation_trials: dict[str, PlannedTrial] = {}  # trials with fresh seeds, not in `trials`
        self.created: float | None = None  # time of the first event; it tells sweeps of one name apart
        self._offset, self._last_event = 0, 0.0
        self._lock = threading.Lock()
        self.requested_trials: dict[str, PlannedTrial] = {}  # trials of the plan and of the race's blocks
        self._add_cells(cells)

    def update(self) -> None:
        """Read the events that were appended since the last update."""
        with self._lock:
            if not GrowingFile(self.folder / LEDGER, self._offset).is_intact:
                self._offset = 0  # another program truncated the file
            new_events = read_events(self.folder, self._offset, self._note)
            self.looks = read_looks(self.folder, on_garbage=self._note)
            self.confirmation_looks = read_looks(self.folder, "confirmation")
            for event in new_events:
                try:
                    self._fold(event)
                except (LookupError, TypeError, ValueError, StopIteration) as error:
                    self._note(f"{LEDGER}: the event that ends at byte {event.end_offset} is skipped ({error!r})")
                self._offset = event.end_offset
            if self._offset == 0 and (begun := len(list(self.folder.glob("trials/*/history.jsonl")))):
                self._note(_LEDGER_GONE.format(begun=begun))

    def _note(self, text: str) -> None:
        self.notes.setdefault(text, False)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, planned and proposed, in order."""
        return (*self.plan.cells, *self.proposed_cells)

    @property
    def resources(self) -> Resources:
        """Resources of a trial in the last session."""
        return self.sessions[-1].resources if self.sessions else Resources()

    @property
    def trial_files(self) -> str | None:
        """Address in object storage of the last session's trial files; None for the sweep's folder."""
        return self.sessions[-1].trial_files if self.sessions else None

    @property
    def unfetched_keys(self) -> list[str]:
        """Keys of ended trials with files in object storage."""
        return [key for key, trial in self.trial_states.items() if trial.ended is not None and trial.has_remote_files]

    @property
    def is_incomplete(self) -> bool:
        """Whether requested trials have not ended, a search has cells to propose, or a race continues."""
        return self.trials_left(None) > 0 or (self.race is not None and not self.race.over)

    @property
    def to_propose(self) -> int:
        """Number of trials of cells that a search has not proposed yet."""
        samples = self.plan.search.num_samples
        cells = 0 if samples <= self.exhausted_at else max(samples - len(self.proposed_cells), 0)
        return cells * len(self.plan.seeds)

    @property
    def confirmation_left(self) -> int:
        """Number of trials of the confirmation that have not ended."""
        return sum(self.trial(key).ended is None for key in self.confirmation_trials)

    def trials_left(self, confirmation: Plan | None) -> int:
        """Return the number of trials of the sweep, or of `confirmation`, that have not ended. A race may add more."""
        if confirmation is not None:
            return sum(self.trial(trial.key).ended is None for trial in confirmation.trials())
        return sum(self.trial(key).ended is None for key in self.trials) + self.to_propose

    def record_look(self, verb: str) -> None:
        """Record a look at the sweep and one at its confirmation."""
        look, confirmation = look_at_sweep(self, verb), look_at_confirmation(self, verb)
        with self._lock:
            self.looks = record_look(self.folder, look)
            if confirmation is not None:
                self.confirmation_looks = record_look(self.folder, confirmation)

    def trial(self, key: str) -> TrialState:
        """Return the state of a trial, an empty one if it is not in the ledger."""
        return self.trial_states.get(key) or TrialState(key)

    def _add_proposal(self, cell: Cell) -> None:
        if self.plan.trial(cell, self.plan.seeds[0]).key not in self.trials:  # else a doubled line, or read again
            self.proposed_cells.append(with_own_label(cell, self._labels))
            self._add_cells(self.proposed_cells[-1:])

    def _add_cells(self, cells: Iterable[Cell]) -> None:
        self._add_trials(self.plan.trial(cell, seed) for cell in cells for seed in self.plan.seeds)

    def _add_trials(self, trials: Iterable[PlannedTrial]) -> None:
        for trial in trials:
            self.trials[trial.key] = self.requested_trials[trial.key] = trial

    def _fold(self, event: events.Event) -> None:
        self.created = event.time if self.created is None else self.created
        match event:
            case events.TrialEvent():
                self.trial_states.setdefault(event.key, TrialState(event.key)).fold(event)
                is_reset = isinstance(event, events.TrialReset) and event.key in self.requested_trials
                if is_reset and self.race is not None:
                    self.race.retry()
            case events.SessionStarted():
                self.sessions.append(event)
                self.waits_for = ""
                for text in [text for text, of_session in self.notes.items() if of_session]:
                    del self.notes[text]
                for trial in self.trial_states.values():  # their driver has ended
                    trial.version += trial.is_live
                    trial.release_workers(max(self._last_event, event.heard.get(trial.key, 0.0)))
                    trial.is_live = False
            case events.CellProposed():
                self._add_proposal(self.plan.relocate(event.cell))
            case events.SearchExhausted():
                self.exhausted_at = event.samples
            case events.Note():
                self.notes.setdefault(event.text, event.of_session)
            case events.Waiting():
                self.waits_for = event.text
            case events.Opened():
                self.opened = self.opened or event
            case events.ConfirmationStarted():
                cells = [cell for cell in self.cells if cell.digest in event.cells]
                trials = [self.plan.trial(cell, seed) for seed in event.seeds for cell in cells]
                self.confirmation_trials.update((trial.key, trial) for trial in trials)
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
                new_seeds = seeds[len(self.plan.seeds) :]
                cells = [cell for cell in self.plan.cells if cell.digest in event.cells]
                self.plan = replace(self.plan, seeds=seeds)
                trials = tuple(self.plan.trial(cell, seed) for seed in new_seeds for cell in cells)
                self.race.blocks.append(Block(len(new_seeds), trials))
                self._add_trials(trials)
            case events.BlockJudged():
                self.race.judged.append((event.seeds, event.level))
            case events.CellSettled(settled=settled):
                if settled.why != "diverged" or _has_diverged(self, settled):
                    self.race.settled[settled.cell] = settled
            case events.CellReopened():
                self.race.settled.pop(event.cell, None)
            case events.RaceEnded():
                unsettled = len(self.race.settled) < len(self.plan.cells)
                self.race.over = "" if unsettled and event.why == "decided" else event.why
        self.trials = {  # trials that a budget prevented are not missing
            key: trial for key, trial in self.requested_trials.items() if not self.race.over or key in self.trial_states
        }


def _has_diverged(state: SweepState, settled: SettledCell) -> bool:
    """Return whether a trial of the cell diverged. Older versions also settled cells whose trials had failed."""
    cell = next(cell for cell in state.plan.cells if cell.digest == settled.cell)
    keys = [state.plan.trial(cell, seed).key for seed in state.plan.seeds]
    if any(state.trial(key).status == "diverged" for key in keys):
        return True
    state.notes.setdefault(
        f"{cell.label} was stopped as diverged, but its trials only failed: the race continues with it", False
    )
    return False


def look_at_sweep(state: SweepState, verb: str) -> Look | None:
    """Return a look at the sweep; None if fewer than two cells have two seeds."""
    race, ended = state.race, _ended(state)
    look = look_at(state.trials, ended, verb, race.rule.max_seeds if race else len(state.plan.seeds))
    if look is None or race is None:
        return look
    later = {trial.key for block in race.blocks for trial in block.trials}
    first = tuple(trial for key, trial in state.requested_trials.items() if key not in later)
    blocks = [block for block in (Block(len(state.stored_plan.seeds), first), *race.blocks) if block.trials]
    # the sum over blocks of the mean number of ended seeds per cell
    seeds = sum(block.seeds * sum(trial.key in ended for trial in block.trials) / len(block.trials) for block in blocks)
    return replace(look, seeds=seeds, failed=0)


def look_at_confirmation(state: SweepState, verb: str) -> Look | None:
    """Return a look at the confirmation; None if fewer than two cells have two fresh seeds."""
    seeds = len({trial.seed for trial in state.confirmation_trials.values()})
    return look_at(state.confirmation_trials, _ended(state), verb, seeds, "confirmation")


def _ended(state: SweepState) -> dict[str, str]:
    return {key: trial.status for key, trial in state.trial_states.items() if trial.ended}


def packages_of(state: SweepState) -> Mapping[str, str]:
    """Return package -> version and source digest, for the packages of methods in the last session."""
    packages: Mapping[str, str] = state.sessions[-1].provenance.get("methods", {}) if state.sessions else {}
    return packages


def sweep_names(storage: Path) -> list[str]:
    """Return the names of the sweeps in a folder, including those without a plan."""
    folders = {path.parent for file in ("plan.json", LEDGER) for path in storage.glob(f"*/{file}")}
    return sorted(folder.name for folder in folders if is_sweep(folder))


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep. An empty ledger, of an interrupted session, is none."""
    return (folder / "plan.json").exists() or (folder.is_dir() and GrowingFile(folder / LEDGER).has_grown)


def load_state(storage: Path, name: str) -> SweepState:
    """Return the state of a sweep. Raise ConfigError if there is no sweep of this name."""
    is_valid_name = len(os.fsencode(name)) <= 255 and "\0" not in name
    if not (is_valid_name and is_sweep(storage / name)):
        names = sweep_names(storage)
        remedy = "" if names else "No sweep is stored there; start one with `tune-dml sweep SPACE`."
        rule = f"unknown sweep under {storage}:"
        raise ConfigError(Problem(option_place("sweep"), rule, name, remedy, known=names or None, kind="sweep"))
    return read_state(storage / name)


def read_state(folder: Path, plan: Plan | None = None) -> SweepState:
    """Return the state of the sweep in a folder, by default with the stored plan and the name of the folder.

    Another `plan` extends the stored one, or has the pictures in another folder.
    """
    state = SweepState(folder, plan or replace(Plan.load(folder / "plan.json"), name=folder.name))
    state.update()
    return state
