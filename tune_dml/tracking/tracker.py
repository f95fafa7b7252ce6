"""Keep MLflow up to date with a sweep's ledger.

    tracker = Tracker(state, uri, experiment)
    tracker.start()          # syncs in the background
    tracker.notify()         # requests a sync
    tracker.stop()           # syncs a last time, with final states

An unreachable tracking server delays nothing: the next sync catches up, in this process or a later one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainables.context import NETWORK
from tune_dml.planning.cells import Cell
from tune_dml.record.judging.judgement import Judgement
from tune_dml.record.ledger import trial_folder
from tune_dml.record.origin.provenance import mask
from tune_dml.record.state import SweepState
from tune_dml.tracking.background import PATIENCE, SyncThread
from tune_dml.tracking.best_model import log_model, typical_trial
from tune_dml.tracking.client import checkpoint, quiet_mlflow, reason_of
from tune_dml.tracking.descriptions import BEST_CONFIGURATION, REPORT
from tune_dml.tracking.files import FilePusher, attach_missing_report, replace_files
from tune_dml.tracking.projection import Projection, TrialRun
from tune_dml.tracking.reconciler import Counts, Reconciler
from tune_dml.tracking.runs import Push, RunPusher
from tune_dml.tracking.store import sweep_link, ui_command
from tune_dml.tracking.sync_state import PARENT, SyncState

_LAST_ATTEMPTS = 3  # attempts of the last sync


@dataclass(frozen=True)
class SyncReport:
    """Result of a sync."""

    trials: int = 0
    """Trials that were pushed."""
    rows: int = 0
    """Rows that were pushed."""
    waiting: int = 0
    """Trials that are not up to date in MLflow."""
    error: str | None = None
    """Why they wait, in one line."""


@dataclass(frozen=True)
class Reconciliation:
    """Result of comparing and repairing a store."""

    before: tuple[str, ...]
    """A line for each difference found."""
    after: tuple[str, ...]
    """The differences left after the repair."""
    counts: Counts
    """The scope of the last comparison."""
    error: str | None
    """Why it failed; None if it did not."""

    @property
    def equal(self) -> bool:
        """Whether the store equals the ledger."""
        return not self.after and self.error is None


class Tracker:
    """Pushes one sweep to MLflow, from the driver. Thread-safe."""

    def __init__(
        self,
        state: SweepState,
        uri: str,
        experiment: str,
        *,
        say: Callable[[str], None] | None = None,
        colour_of: Callable[[int], str] | None = None,
    ):
        """Create a tracker without contacting the store.

        Args:
            state: the sweep; every sync updates it.
            uri: from `tracking_uri`.
            experiment: from `experiment_name`.
            say: called from the background thread when the store fails and when it works again.
            colour_of: returns an arm's colour by its index; MLflow's own colours by default.
        """
        self.uri = uri
        self._say = say or (lambda text: None)
        self._projection = Projection(state, colour_of)
        self._synced = SyncState(state.folder, mask(uri), experiment)
        self._runs = RunPusher(uri, experiment, self._projection, self._synced)
        self._files = FilePusher(self._projection, self._synced)
        self._troubled = self._was_away = False
        self._lock = threading.RLock()
        self._background = SyncThread(lambda: self.sync().error is None)

    def sync(self) -> SyncReport:
        """Push what MLflow lacks. Idempotent; reports errors of the store instead of raising them."""
        return self._sync(Push(final=False))

    def start(self) -> None:
        """Sync in a background thread until `stop`. The thread imports MLflow; no other thread may do so meanwhile."""
        self._background.start()

    def notify(self) -> None:
        """Request a sync; return at once."""
        self._background.notify()

    def stop(self, *, interrupted: bool = False) -> SyncReport:
        """Stop the thread and push final states: trials that have not ended are KILLED until they resume.

        Args:
            interrupted: trials remain that are not in the ledger, because a search was cut short.
        """
        if not self._background.stop():
            return SyncReport(error=f"the store has not answered for {PATIENCE:g} s")
        if self._was_away:  # a request that timed out may have succeeded: look again
            self._runs.connected = False
        report = self._sync(Push(final=True, interrupted=interrupted))
        for attempt in range(1, _LAST_ATTEMPTS):
            if report.error is None:
                break
            time.sleep(0.5 * attempt)
            report = self._sync(Push(final=True, interrupted=interrupted))
        checkpoint(self.uri)
        return report

    def attach(self, paths: Sequence[Path], subfolder: str, judgement: Judgement | None = None) -> str | None:
        """Upload files and folders to a folder of the sweep's run, replacing earlier ones.

        Args:
            paths: the files and folders.
            subfolder: artifact folder.
            judgement: findings of the report; they are added to descriptions and metrics.

        Returns:
            Why it failed, or None.
        """

        def act() -> None:
            replace_files(self._runs.client, self._synced.runs[PARENT], paths, subfolder)
            if judgement is not None:
                self._describe(judgement)

        return self._once(act)

    def reconcile(self, judgement: Judgement | None) -> Reconciliation:
        """Compare the store with the ledger, push what differs, and compare again.

        Without a `judgement`, descriptions and intervals stay as they are.
        """
        before: list[str] = []
        after: list[str] = []
        counted = Counts()

        def act() -> None:
            nonlocal counted
            reconciler = Reconciler(self._runs.client, self._projection, self._synced)
            before.extend(reconciler.differences())
            for key in reconciler.differing:
                self._synced.forget(self._projection.runs[key])
            push = Push(final=True, interrupted=self._projection.state.incomplete)
            self._push(push)
            if judgement is not None:
                self._describe(judgement)
            if push.error:
                raise ConnectionError(push.error)
            if before:  # a comparison reads every point, which takes long
                after.extend(reconciler.differences())
            counted = reconciler.counts

        error = self._once(act)
        return Reconciliation(tuple(before), tuple(after), counted, error)

    def _describe(self, judgement: Judgement) -> None:
        """Push descriptions, intervals, the best configuration, and a report that could not be attached before."""
        client, run_id = self._runs.client, self._synced.runs[PARENT]
        reported = attach_missing_report(client, run_id, self._projection.state.folder / REPORT)
        best = next((cell for cell in self._projection.cells_begun() if cell.label == judgement.best), None)
        model = ""
        if best is not None:
            client.log_dict(run_id, {"cell": best.label, "settings": dict(best.settings)}, BEST_CONFIGURATION)
            model = self._model_of(best)
        self._runs.push_judgement(judgement, reported=reported, model=model)

    def _model_of(self, best: Cell) -> str:
        """Return the id of the best configuration's model; empty if no trial stored its network."""
        state, synced = self._projection.state, self._synced
        trial = typical_trial(state.folder, self._projection.trials_of(best), state.plan.metric)
        if trial is None:
            return ""
        network = trial_folder(state.folder, trial.key) / NETWORK
        place = {
            "experiment_id": synced.experiment_id,
            "sweep_run": synced.runs[PARENT],
            "trial_run": synced.runs[trial.key],
        }
        return log_model(self._runs.client, best, trial, network, **place)

    def show_opened(self) -> str | None:
        """Push the test metrics of an opened sweep. Return why it failed, or None."""
        return self._once(self._runs.push_opened)

    def _once(self, act: Callable[[], None]) -> str | None:
        """Connect, push a sweep that is new to the store, and call `act`. Return why it failed, or None."""
        try:
            with self._lock, quiet_mlflow():
                self._projection.update()
                if self._projection.state.created is None:
                    return "the sweep has not begun"
                self._runs.connect()
                if self._runs.was_new and not self._background.running:
                    self._push(Push(final=True))
                act()
                self._synced.save()
            if not self._background.running:
                checkpoint(self.uri)
        except Exception as error:
            self._runs.connected = False
            return reason_of(error)
        return None

    def link(self) -> str:
        """Return the address of this sweep's cells in MLflow's pages; empty while unknown."""
        return sweep_link(self.uri, self._synced.experiment_id, self._projection.state.plan.name)

    def ui_command(self) -> str:
        """Return the command that opens this store in MLflow's pages."""
        return ui_command(self.uri)

    def _sync(self, push: Push) -> SyncReport:
        with self._lock:
            self._projection.update()
            if self._projection.state.created is None:
                return SyncReport()
            try:
                with quiet_mlflow():
                    self._push(push)
            except Exception as error:  # each store raises its own errors
                push.error = reason_of(error)
                self._runs.connected = False
            runs = self._projection.runs.values() if push.error else ()
            waiting = sum(run.due or self._lacks_more(run) for run in runs)
        self._announce(push.error)
        return SyncReport(push.trials, push.rows, waiting, push.error)

    def _lacks_more(self, run: TrialRun) -> bool:
        opened = self._projection.state.opened is not None
        return self._synced.lacks_evidence(run) or (opened and self._synced.lacks_opened(run))

    def _push(self, push: Push) -> None:
        self._runs.connect()
        self._runs.push(push)
        self._files.push(self._runs.client, push)
        self._synced.save()

    def _announce(self, error: str | None) -> None:
        if error and not self._troubled:
            self._say(f"MLflow is not up to date ({error}); the ledger keeps everything and the next sync catches up")
        elif self._troubled and error is None:
            self._say("MLflow is up to date again")
        self._troubled = error is not None
        self._was_away |= self._troubled
