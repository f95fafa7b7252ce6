"""Keep the MLflow runs of a sweep up to date with its ledger.

An unreachable tracking server delays no trial. The next sync, in this process or a later one, pushes what is missing.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainables.context import NETWORK
from tune_dml.record.judging.judgement import Judgement
from tune_dml.record.ledger import trial_folder
from tune_dml.record.origin.provenance import mask
from tune_dml.record.state import SweepState
from tune_dml.tracking.background import STOP_TIMEOUT, SyncThread
from tune_dml.tracking.client import checkpoint, quiet_mlflow, reason_of
from tune_dml.tracking.descriptions import BEST_CONFIGURATION, REPORT
from tune_dml.tracking.files import FilePusher, attach_missing_report, log_model, replace_report, typical_trial
from tune_dml.tracking.projection import Projection, TrialRun
from tune_dml.tracking.reconciler import Counts, Reconciler
from tune_dml.tracking.runs import RunPusher, SyncReport
from tune_dml.tracking.store import sweep_link, ui_command
from tune_dml.tracking.sync_state import PARENT, SyncState

_FINAL_ATTEMPTS = 3  # attempts of the final sync


@dataclass
class Reconciliation:
    """Result of a comparison with the store and its repair."""

    before: tuple[str, ...] = ()  # a line for each difference before the repair
    after: tuple[str, ...] = ()  # a line for each difference after the repair
    counts: Counts = field(default_factory=Counts)
    error: str | None = None  # reason of a failure

    @property
    def is_equal(self) -> bool:
        """Whether the store agrees with the ledger."""
        return not self.after and self.error is None


class Tracker:
    """Pushes a sweep to MLflow from its driver. Thread-safe."""

    def __init__(
        self,
        state: SweepState,
        uri: str,
        experiment: str,
        *,
        say: Callable[[str], None] | None = None,
        colour_of: Callable[[int], str] | None = None,
    ):
        """Create a tracker. This does not contact the store.

        `say` is called from the background thread when the store fails and when it works again. `colour_of` returns the
        colour of an arm by its index.
        """
        self.uri = uri
        self._say = say or (lambda text: None)
        self._projection = Projection(state, colour_of)
        self._sync_state = SyncState.read(state.folder, mask(uri), experiment)
        self._runs = RunPusher(uri, experiment, self._projection, self._sync_state)
        self._files = FilePusher(self._projection, self._sync_state)
        self._has_error = self._had_error = False
        self._lock = threading.RLock()
        self._background = SyncThread(lambda: self.sync().error is None)

    def start(self) -> None:
        """Sync in a background thread until `stop`. No other thread may import MLflow in the meantime."""
        self._background.start()

    def notify(self) -> None:
        """Request a sync; return at once."""
        self._background.notify()

    def stop(self, *, interrupted: bool = False) -> SyncReport:
        """Stop the thread and push final statuses. Trials that have not ended are KILLED until they resume.

        It is `interrupted` if trials are left that are not in the ledger, as in an unfinished search.
        """
        if not self._background.stop():
            return SyncReport(error=f"the store has not answered for {STOP_TIMEOUT:g} s")
        if self._had_error:  # a request may have succeeded after its timeout: search again
            self._runs.is_connected = False
        for attempt in range(_FINAL_ATTEMPTS):
            time.sleep(0.5 * attempt)
            if (report := self.sync(final=True, interrupted=interrupted)).error is None:
                break
        checkpoint(self.uri)
        return report

    def attach(self, folder: Path, files: Sequence[Path], judgement: Judgement | None = None) -> str | None:
        """Attach a report, the `files` below a folder, to the sweep's run, in place of an earlier one.

        The findings of a `judgement` are added to descriptions and metrics. Return the reason of a failure, or None.
        """

        def action() -> None:
            replace_report(self._runs.client, self._sync_state.runs[PARENT], folder, files)
            if judgement is not None:
                self._describe(judgement)

        return self._run_connected(action)

    def reconcile(self, judgement: Judgement | None) -> Reconciliation:
        """Compare the store with the ledger, push what differs, and compare again.

        Without a `judgement`, descriptions and intervals stay unchanged.
        """
        result = Reconciliation()

        def action() -> None:
            reconciler = Reconciler(self._runs.client, self._projection, self._sync_state)
            result.before = tuple(reconciler.differences())
            for key in reconciler.differing_keys:
                self._sync_state.push_again(self._projection.runs[key])
            pushed = SyncReport()
            self._push(pushed, final=True, interrupted=self._projection.state.is_incomplete)
            if judgement is not None:
                self._describe(judgement)
            if pushed.error:
                raise ConnectionError(pushed.error)
            if result.before:  # skip a second comparison, which reads every point
                result.after = tuple(reconciler.differences())
            result.counts = reconciler.counts

        result.error = self._run_connected(action)
        return result

    def _describe(self, judgement: Judgement) -> None:
        client, run_id = self._runs.client, self._sync_state.runs[PARENT]
        reported = attach_missing_report(client, run_id, self._projection.state.folder / REPORT)
        best = next((cell for cell in self._projection.started_cells() if cell.label == judgement.best), None)
        model = ""
        if best is not None:
            client.log_dict(run_id, {"cell": best.label, "settings": dict(best.settings)}, BEST_CONFIGURATION)
            state = self._projection.state
            if trial := typical_trial(state.folder, self._projection.trials_of(best), state.plan.metric):
                network = trial_folder(state.folder, trial.key) / NETWORK
                model = log_model(client, best, trial, network, self._sync_state)
        self._runs.push_judgement(judgement, reported=reported, model=model)

    def _run_connected(self, action: Callable[[], None]) -> str | None:
        """Connect, push the sweep if the store lacks it, and call `action`. Return the reason of a failure, or None."""
        try:
            with self._lock, quiet_mlflow():
                self._projection.update()
                if self._projection.state.created is None:
                    return "the sweep has not started"
                self._runs.connect()
                if self._runs.is_new_sweep and not self._background.is_running:
                    self._push(SyncReport(), final=True, interrupted=self._projection.state.is_incomplete)
                action()
                self._sync_state.save()
            if not self._background.is_running:
                checkpoint(self.uri)
        except Exception as error:
            self._runs.is_connected = False
            return reason_of(error)
        return None

    def link(self) -> str:
        """Return the address of this sweep's cells in MLflow's pages; an empty string before the first sync."""
        return sweep_link(self.uri, self._sync_state.experiment_id, self._projection.state.plan.name)

    def ui_command(self) -> str:
        """Return the command that shows this store in MLflow's pages."""
        return ui_command(self.uri)

    def sync(self, *, final: bool = False, interrupted: bool = False) -> SyncReport:
        """Push what is missing in MLflow. Idempotent; reports errors of the store instead of raising them.

        The arguments are those of `Projection.parent_status`.
        """
        report = SyncReport()
        with self._lock:
            try:
                self._projection.update()
                if self._projection.state.created is None:
                    return report
                with quiet_mlflow():
                    self._push(report, final=final, interrupted=interrupted)
            except Exception as error:  # of a store, each of which has its own, or of the sweep's folder
                report.error = reason_of(error)
                self._runs.is_connected = False
            runs = self._projection.runs.values() if report.error else ()
            report.waiting = sum(run.needs_push or self._lacks_files(run) for run in runs)
        self._report_change(report.error)
        return report

    def _lacks_files(self, run: TrialRun) -> bool:
        opened = self._projection.state.opened is not None
        return self._sync_state.lacks_evidence(run) or (opened and self._sync_state.lacks_opened(run))

    def _push(self, report: SyncReport, *, final: bool, interrupted: bool) -> None:
        self._runs.connect()
        self._runs.push(report, final=final, interrupted=interrupted)
        self._files.push(self._runs.client, report, final=final)
        self._sync_state.save()

    def _report_change(self, error: str | None) -> None:
        if error and not self._has_error:
            self._say(f"MLflow is not up to date ({error}); the ledger has everything, and the next sync pushes it")
        elif self._has_error and error is None and not self._files.has_failed:
            self._say("MLflow is up to date again")
        self._has_error = error is not None or self._files.has_failed
        self._had_error |= self._has_error
