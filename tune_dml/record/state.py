"""Where a sweep stands: its ledger, folded once and then kept up to date. Nothing else folds events.

    state = read_state(folder)        # or SweepState(folder, plan) for a plan that is not on disk yet
    state.update()                    # takes in what the ledger has gained

The ledger only grows, so it is read from where the last reading stopped, and whatever is derived from the state (results,
MLflow's runs, what a resume still has to run) comes out the same however often it is derived.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trainables.errors import ConfigError, nearest
from trainables.option_names import option_problem
from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Trial
from tune_dml.planning.request import Resources
from tune_dml.record.current_look import look_at, seeds_of_blocks
from tune_dml.record.events import (
    BlockAdded,
    BlockJudged,
    CellProposed,
    CellReopened,
    CellSettled,
    ConfirmationStarted,
    Event,
    FilesFetched,
    Note,
    Opened,
    RaceEnded,
    RaceStarted,
    SessionStarted,
    TrialEnd,
    TrialEnded,
    TrialEvent,
    TrialPaused,
    TrialRescored,
    TrialReset,
    TrialStarted,
    Waiting,
)
from tune_dml.record.ledger import LEDGER, GrowingFile, read_events
from tune_dml.record.looks import Look, read_looks, record_look
from tune_dml.record.race import Block, Race, SettledCell

TrialStatus = Literal["finished", "diverged", "failed", "stopped", "running", "missing"]


_GONE = (
    f"{LEDGER} is empty or gone, and trials/ holds the rows of {{begun}} trial(s): "
    "what had ended runs again, unless a copy of the ledger is put back first"
)


@dataclass
class TrialState:
    """What the ledger says of one trial."""

    key: str
    status: TrialStatus = "missing"
    """`running` until an end is recorded, also while it waits, or its driver has died; `missing` when it is to be retried."""
    ended: TrialEnded | None = None
    """How it ended, if it has."""
    rescored: dict[str, float] = field(default_factory=dict)
    """Validation metrics that were computed of its kept embeddings since."""
    settled: float = 0.0
    """When its figures were last added to."""
    attempts: int = 0
    paused: bool = False
    """It waits at a step where cells are compared; to go on from there is no further attempt."""
    seconds: float = 0.0
    """Training time over all attempts."""
    held: float = 0.0
    """Seconds in which it had its workers, over all attempts, those that were lost included."""
    begun: float = 0.0
    """When it last got them."""
    host: str = ""
    micro_batch: int | None = None
    """Pictures that a worker held at a time, where its session said it."""
    started: float = 0.0
    """When the ledger first spoke of it."""
    active: float = 0.0
    """When it last did."""
    live: bool = False
    """Started in the current session and not ended."""
    away: bool = False
    """It has left something in object storage (`record.fetching`)."""
    version: int = 0
    """Grows with everything that is recorded of it."""

    def fold(self, event: TrialEvent) -> None:
        """Update the state by one event about this trial."""
        self.version += 1
        self.started = self.started or event.time
        self.active = event.time
        match event:
            case TrialStarted():
                self.attempts += not self.paused
                self.paused = False
                self.begun = self.begun if self.live else event.time
                self.host, self.away, self.micro_batch = event.host, event.away, event.micro_batch
                self.status, self.live, self.ended, self.rescored = "running", True, None, {}
            case TrialEnded(end=end) if end.status != "paused":
                self.seconds = self.seconds if end.seconds is None else end.seconds
                self.leave(event.time)
                self.held = max(self.held, self.seconds)
                self.status, self.ended, self.settled = end.status, event, event.time
            case TrialPaused():
                self.paused, self.seconds = True, event.seconds
                self.leave(event.time)
            case FilesFetched():
                self.away = False
            case TrialReset():
                self.status, self.live, self.ended, self.rescored = "missing", False, None, {}
            case TrialRescored():
                self.rescored |= event.metrics
                self.settled = event.time

    def leave(self, time: float) -> None:
        """Its workers are free again: it has ended, or its driver had died by then."""
        if self.live:
            self.held += max(time - self.begun, 0.0)
        self.live = False

    @property
    def end(self) -> TrialEnd | None:
        """How it ended, if it has."""
        return self.ended.end if self.ended else None

    @property
    def metrics(self) -> dict[str, float]:
        """Figures that the trial is judged by, those computed later included; empty until it has ended."""
        return self.rescored | (dict(self.end.metrics) if self.end else {})  # its own are the exact ones


class SweepState:
    """A plan and what its ledger says; empty until the first `update`, which may come from any thread."""

    def __init__(self, folder: Path, plan: Plan):
        self.folder = folder
        self.stored = plan
        """As plan.json has it."""
        self.plan = plan
        """As it is now: a race adds seeds to it."""
        self.proposed: list[Cell] = []
        """Cells that a search has proposed, in order."""
        self.trials: dict[str, Trial] = {}
        """Key -> trial of every cell known so far, cell by cell; of a race, those that its blocks have asked for."""
        self.recorded: dict[str, TrialState] = {}
        """Key -> state of every trial that the ledger speaks of, in that order."""
        self.sessions: list[SessionStarted] = []
        self.waits_for = ""
        """What a running sweep without room waits for."""
        self.notes: dict[str, bool] = {}
        """What had to be said aloud, in order, each text once; True where it holds only until another session goes on."""
        self.looks: list[Look] = []
        """Looks at the sweep's own trials, in order."""
        self.confirmation_looks: list[Look] = []
        """Looks at the fresh seeds of its confirmation, in order."""
        self.race: Race | None = None
        """Of a sweep that stops when it is decided."""
        self.opened: Opened | None = None
        """The first opening of the test metrics; `record.sealed` reads it."""
        self.confirming: dict[str, Trial] = {}
        """Key -> trial of fresh seeds that measure some cells again; they belong to no cell's own seeds."""
        self.born: float | None = None
        """Time of the ledger's first event: a sweep begun anew under an old name is another sweep."""
        self._read = 0
        self._heard = 0.0
        """Time of the ledger's last event."""
        self._lock = threading.Lock()
        self.asked: dict[str, Trial] = {}
        """Every trial that the plan or a block has asked for."""
        self._know(plan.cells)

    def update(self) -> None:
        """Take in what the ledger has gained since the last time."""
        with self._lock:
            if not GrowingFile(self.folder / LEDGER, self._read).is_whole:
                self._read = 0  # somebody cut it, and it grows anew
            events = read_events(self.folder, self._read, self._note)
            self.looks = read_looks(self.folder, on_garbage=self._note)
            self.confirmation_looks = read_looks(self.folder, "confirmation")
            for event in events:
                try:
                    self._fold(event)
                except (LookupError, TypeError, ValueError, StopIteration) as error:  # spoilt, though it is an event
                    text = f"{LEDGER}: what ends at byte {event.end_offset} is skipped: it says nothing that is known ({error!r})"
                    self._note(text)
                self._read = event.end_offset
            if self._read == 0 and (begun := len(list(self.folder.glob("trials/*/history.jsonl")))):
                self._note(_GONE.format(begun=begun))

    def _note(self, text: str) -> None:
        self.notes.setdefault(text, False)

    def replan(self, plan: Plan) -> None:
        """The same sweep under an extended plan, or one whose pictures lie elsewhere."""
        self.stored = self.plan = plan
        self.proposed = [plan.relocated(cell) for cell in self.proposed]
        self.trials, self.asked = {}, {}
        self._know(self.cells)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, planned and proposed, in order."""
        return (*self.plan.cells, *self.proposed)

    @property
    def resources(self) -> Resources:
        """What a trial of the last session was given."""
        return self.sessions[-1].resources if self.sessions else Resources()

    @property
    def trial_files(self) -> str | None:
        """Address in object storage below which the last session's trials keep their files; None for the sweep's folder."""
        return self.sessions[-1].trial_files if self.sessions else None

    @property
    def unfetched(self) -> list[str]:
        """Keys of ended trials that have left something there."""
        return [key for key, trial in self.recorded.items() if trial.ended is not None and trial.away]

    @property
    def unplanned(self) -> list[TrialState]:
        """Trials that have ended and that nobody has asked for."""
        asked = self.asked.keys() | self.confirming.keys()
        return [trial for key, trial in self.recorded.items() if trial.ended is not None and key not in asked]

    @property
    def incomplete(self) -> bool:
        """Whether trials are left that were asked for, or a race is under way."""
        left = any(self.trial(key).ended is None for key in self.trials)
        return left or (self.race is not None and not self.race.over)

    def trials_left(self, confirmation: Plan | None) -> int:
        """How many trials are known to be left, of a confirmation where there is one; a race may ask for more."""
        if confirmation is not None:
            return sum(self.trial(trial.key).ended is None for trial in confirmation.trials())
        to_propose = max(self.plan.search.num_samples - len(self.proposed), 0)
        return sum(self.trial(key).ended is None for key in self.trials) + to_propose * len(self.plan.seeds)

    def record_look(self, by: str) -> None:
        """Record the looks taken now, at the sweep and at its confirmation."""
        look, confirmation = look_at_sweep(self, by), look_at_confirmation(self, by)
        with self._lock:
            self.looks = record_look(self.folder, look)
            if confirmation is not None:
                self.confirmation_looks = record_look(self.folder, confirmation)

    def trial(self, key: str) -> TrialState:
        """The state of a trial; an empty one where the ledger does not speak of it."""
        return self.recorded.get(key) or TrialState(key)

    def _know(self, cells: Iterable[Cell]) -> None:
        self._ask(self.plan.trial(cell, seed) for cell in cells for seed in self.plan.seeds)

    def _ask(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self.trials[trial.key] = self.asked[trial.key] = trial

    def _fold(self, event: Event) -> None:
        self.born = event.time if self.born is None else self.born
        match event:
            case TrialEvent():
                self.recorded.setdefault(event.key, TrialState(event.key)).fold(event)
                if isinstance(event, TrialReset) and self.race is not None:
                    self.race.retry()
            case SessionStarted():
                self.sessions.append(event)
                self.waits_for = ""
                for text in [text for text, of_session in self.notes.items() if of_session]:
                    del self.notes[text]
                for trial in self.recorded.values():  # whatever ran before died with its driver
                    trial.version += trial.live
                    trial.leave(max(self._heard, event.heard.get(trial.key, 0.0)))
            case CellProposed():
                cell = self.plan.relocated(event.cell)
                self.proposed.append(cell)
                self._know([cell])
            case Note():
                self.notes.setdefault(event.text, event.of_session)
            case Waiting():
                self.waits_for = event.text
            case Opened():
                self.opened = self.opened or event
            case ConfirmationStarted():
                chosen = [cell for cell in self.cells if cell.digest in event.cells]
                again = [self.plan.trial(cell, seed) for seed in event.seeds for cell in chosen]
                self.confirming.update((trial.key, trial) for trial in again)
            case _:
                self._fold_race(event)
        self._heard = event.time

    def _fold_race(self, event: Event) -> None:
        if isinstance(event, RaceStarted):
            self.race = self.race or Race(event.rule)
            self.race.limit(event.rule)
        if self.race is None:
            return
        match event:
            case BlockAdded(seeds=seeds):
                fresh = seeds[len(self.plan.seeds) :]
                cells = [cell for cell in self.plan.cells if cell.digest in event.cells]
                self.plan = replace(self.plan, seeds=seeds)
                block = Block(len(fresh), tuple(self.plan.trial(cell, seed) for seed in fresh for cell in cells))
                self.race.blocks.append(block)
                self._ask(block.trials)
            case BlockJudged():
                self.race.judged.append((event.seeds, event.level))
            case CellSettled(settled=found):
                if found.why != "diverged" or self._has_diverged(found):
                    self.race.settled[found.cell] = found
            case CellReopened():
                self.race.settled.pop(event.cell, None)
            case RaceEnded():
                unsettled = len(self.race.settled) < len(self.plan.cells)
                self.race.over = "" if unsettled and event.why == "decided" else event.why
        kept = {key: trial for key, trial in self.asked.items() if not self.race.over or key in self.recorded}
        self.trials = kept  # what a budget has cut off is not missing

    def _has_diverged(self, found: SettledCell) -> bool:
        """Whether a trial of the cell diverged: earlier versions settled cells of which all trials of a block had failed, too."""
        cell = next(cell for cell in self.plan.cells if cell.digest == found.cell)
        keys = [self.plan.trial(cell, seed).key for seed in self.plan.seeds]
        if any(self.trial(key).status == "diverged" for key in keys):
            return True
        self._note(f"{cell.label} had stopped as diverged, but its trials only failed: the race goes on with it")
        return False


def look_at_sweep(state: SweepState, by: str) -> Look | None:
    """Return the look at the sweep taken now; None while nothing can be claimed: no two cells have two seeds each."""
    race, ended = state.race, _ended(state)
    look = look_at(state.trials, ended, by, race.rule.max_seeds if race else len(state.plan.seeds))
    if look is None or race is None:
        return look
    later = {trial.key for block in race.blocks for trial in block.trials}
    first = tuple(trial for key, trial in state.asked.items() if key not in later)
    blocks = [Block(len(state.stored.seeds), first), *race.blocks]
    return replace(look, seeds=seeds_of_blocks(blocks, ended), failed=0)


def look_at_confirmation(state: SweepState, by: str) -> Look | None:
    """Return the look at the confirmation taken now; None while no two of its cells have two fresh seeds each."""
    planned = len({trial.seed for trial in state.confirming.values()})
    return look_at(state.confirming, _ended(state), by, planned, "confirmation")


def _ended(state: SweepState) -> dict[str, str]:
    """Return key -> status of every trial that has ended."""
    return {key: trial.status for key, trial in state.recorded.items() if trial.ended}


def packages_of(state: SweepState) -> Mapping[str, str]:
    """The packages of methods that were installed in a sweep's last session -> version and digest of their source."""
    found: Mapping[str, str] = state.sessions[-1].provenance.get("methods", {}) if state.sessions else {}
    return found


def sweep_names(storage: Path) -> list[str]:
    """The sweeps kept under a folder, those that have lost their plan among them."""
    folders = {path.parent for file in ("plan.json", LEDGER) for path in storage.glob(f"*/{file}")}
    return sorted(folder.name for folder in folders if _is_sweep(folder))


def _is_sweep(folder: Path) -> bool:
    """Whether a sweep lies there; what was interrupted before its first word has left an empty ledger, and is none."""
    return (folder / "plan.json").exists() or GrowingFile(folder / LEDGER).grown


def load_state(storage: Path, name: str) -> SweepState:
    """Where a sweep stands. Raises ConfigError when there is none of that name."""
    if not _is_sweep(storage / name):
        known = sweep_names(storage)
        remedy = nearest(name, known, what="sweep") if known else "There is none yet: start one with `tune-dml sweep`."
        raise ConfigError(option_problem("sweep", f"unknown sweep under {storage}:", name, remedy))
    return read_state(storage / name)


def read_state(folder: Path) -> SweepState:
    """Where the sweep in a folder stands, by the folder's name: it may have been moved or copied by hand."""
    state = SweepState(folder, replace(Plan.load(folder / "plan.json"), name=folder.name))
    state.update()
    return state
