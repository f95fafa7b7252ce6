"""The only file that speaks MLflow. MLflow is a projection of the ledger: `sync` pushes what it does not have yet.

    tracker = Tracker(folder, plan, uri, experiment)
    tracker.start()          # syncs in the background
    tracker.notify()         # something happened
    tracker.stop()           # a last sync with true final states

Exactly once: a trial's run is looked up by its tag before it is created, requests are never repeated blindly, and a metric
keeps the time of its row, so that pushing it again adds nothing. A server that is away costs nothing either: the ledger is
the spool, and the next sync catches up, in this process or a later one.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.context import EVIDENCE
from tune_dml.planning.plan import Plan
from tune_dml.record.ledger import trial_folder
from tune_dml.record.provenance import mask
from tune_dml.tracking.books import PARENT, Books, Run
from tune_dml.tracking.projection import Point, Projection, RunStatus, TrialState, milliseconds, parameters
from tune_dml.tracking.store import (
    attach,
    calm,
    check,
    experiment_id_of,
    local_database,
    on_local_disk,
    one_line,
    search_runs,
    ui_command,
)

INTERVAL = 2.0  # seconds between syncs that nothing asked for
SPACING = 0.2  # seconds between syncs that were asked for: a burst of reports is one sync
LONGEST_WAIT = 60.0  # seconds between attempts while the server is away
PATIENCE = 60.0  # seconds that `stop` waits for a sync under way
LAST_ATTEMPTS = 3  # syncs that `stop` tries
SAVE_EVERY = 200  # trials between two writes of the bookkeeping within a sync
_PARENT_TAG = "mlflow.parentRunId"
_REFUSALS = {
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
}  # of one run, not of the server


@dataclass(frozen=True)
class SyncReport:
    """What a sync did."""

    trials: int = 0
    """Trials that were brought up to date."""
    rows: int = 0
    """Evaluations that were pushed."""
    waiting: int = 0
    """Trials that MLflow does not show as the ledger has them."""
    error: str | None = None
    """Why they wait, in one line; nothing is lost meanwhile."""


class Tracker:
    """Keeps MLflow in step with a sweep's ledger. One per sweep, on the driver; safe to call from any thread."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        uri: str,
        experiment: str,
        *,
        say: Callable[[str], None] | None = None,
    ):
        """Contacts nothing yet.

        Args:
            folder: the sweep's folder, which holds the ledger.
            plan: what the sweep is.
            uri: from `tracking_uri`.
            experiment: from `experiment_name`.
            say: told, from the background thread, when the store goes away and when it is back.
        """
        self.uri = uri
        self.experiment = experiment
        self._say = say or (lambda text: None)
        self._ledger = Projection(folder, plan)
        self._books = Books(folder / "mlflow.json", mask(uri), experiment)
        self._client: Any = None
        self._found: dict[str, Run] = {}
        self._connected = False
        self._made = False
        self._troubled = self._was_away = self._files_failed = False
        self._lock = threading.RLock()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def sync(self) -> SyncReport:
        """Push what MLflow lacks. Idempotent; never raises for trouble with the store."""
        return self._sync(final=False, interrupted=False)

    def start(self) -> None:
        """Sync in a background thread until `stop`."""
        if self._thread is None:
            _load()
            self._stopping.clear()
            self._thread = threading.Thread(target=self._loop, name="mlflow-sync", daemon=True)
            self._thread.start()

    def notify(self) -> None:
        """The ledger has gained something: sync soon. Costs nothing."""
        self._wake.set()

    def stop(self, *, interrupted: bool = False) -> SyncReport:
        """End the thread and push the final states: what was started and not ended is KILLED, until it is resumed.

        Args:
            interrupted: trials remain that the ledger does not know of (a search that was cut short).
        """
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                return SyncReport(error=f"the store has not answered for {PATIENCE:g} s")
            self._thread = None
        if self._was_away:  # a request that timed out may have been served: look again before the last word
            self._connected = False
        report = self._sync(final=True, interrupted=interrupted)
        for attempt in range(1, LAST_ATTEMPTS):
            if report.error is None:
                break
            time.sleep(0.5 * attempt)
            report = self._sync(final=True, interrupted=interrupted)
        return report

    def attach(self, paths: Sequence[Path], subfolder: str) -> str | None:
        """Log files and folders to the parent run under a folder, replacing what was attached there before.

        Returns why it could not be done, or None.
        """
        try:
            with self._lock, calm():
                self._ledger.read()
                if self._ledger.born is None:
                    return "the sweep has not begun"
                self._connect()
                if self._made and self._thread is None:  # this store knew nothing of the sweep, and nobody tells it
                    self._push(_Work(final=True, interrupted=False))
                    self._books.save()
                parent = self._books.runs[PARENT]
                attach(self._client, _repository(self._client, parent), parent, paths, subfolder)
        except Exception as error:
            self._connected = False
            return one_line(error)
        return None

    def ui_command(self) -> str:
        """The one command that shows this store in MLflow's own pages."""
        return ui_command(self.uri)

    def _loop(self) -> None:
        wait = 0.0
        while not self._stopping.wait(SPACING if wait == 0 else wait):
            report = self.sync()
            if report.error is None:
                wait = 0.0
                self._wake.wait(INTERVAL)  # `stop` wakes it too
            else:  # notifications wait too: they must not hammer a server that is away
                wait = min(max(2 * wait, INTERVAL), LONGEST_WAIT)
            self._wake.clear()

    def _sync(self, *, final: bool, interrupted: bool) -> SyncReport:
        with self._lock:
            self._ledger.read()
            if self._ledger.born is None:
                return SyncReport()
            work = _Work(final=final, interrupted=interrupted)
            try:
                with calm():
                    self._connect()
                    self._push(work)
                self._books.save()
            except Exception as error:  # MLflow raises whatever its store's libraries raise
                work.error = one_line(error)
                self._connected = False
            states = self._ledger.states.values() if work.error else ()
            waiting = sum(state.due or self._books.lacks_evidence(state) for state in states)
        self._tell(work.error)
        return SyncReport(work.trials, work.rows, waiting, work.error)

    def _tell(self, error: str | None) -> None:
        if error and not self._troubled:
            self._say(f"MLflow is not up to date ({error}); the ledger keeps everything and the next sync catches up")
        elif self._troubled and error is None:
            self._say("MLflow is up to date again")
        self._troubled = error is not None
        self._was_away |= self._troubled

    def _connect(self) -> None:
        """Find the experiment, the parent run and every child run, once; create the parent if there is none."""
        if self._connected:
            return
        if problems := check(self.uri):
            raise ConnectionError(str(problems[0]))
        self._client = self._client or _client(self.uri)
        experiment_id = experiment_id_of(self._client, self.experiment, self.uri)
        parent = self._parent(experiment_id)
        self._found = {PARENT: parent}
        for run in search_runs(self._client, experiment_id, f"tags.`{_PARENT_TAG}` = '{parent.id}'"):
            key = run.tags.get("tune_dml.trial_key", "").rpartition("-")[2]
            if key:
                self._found[key] = self._one_of(self._found.get(key), run, key)
        self._books.adopt(experiment_id, self._found, self._ledger.states)
        self._books.save()
        self._connected = True

    def _parent(self, experiment_id: str) -> Run:
        ledger = self._ledger
        found: Run | None = None
        for run in search_runs(self._client, experiment_id, f"tags.`tune_dml.ledger` = '{ledger.ledger_id}'"):
            found = self._one_of(found, run, PARENT)
        if found is not None:
            return found
        self._made = True
        return self._create(experiment_id, ledger.plan.name, ledger.born or 0.0, ledger.parent_tags())

    def _one_of(self, known: Run | None, other: Run, key: str) -> Run:
        """Of two runs of one trial, which a lost answer to a creation can leave, keep the one on the books."""
        if known is None:
            return other
        keep, drop = (other, known) if self._books.runs.get(key) == other.id else (known, other)
        self._client.delete_run(drop.id)
        return keep

    def _create(self, experiment_id: str, name: str, started: float, tags: Mapping[str, str]) -> Run:
        """A new run without parameters; the first news brings them."""
        git = {"mlflow.source.git.commit": tags["git_commit"]} if tags["git_commit"] else {}
        tags = {**tags, **git, "mlflow.source.name": "tune-dml", "mlflow.source.type": "JOB"}
        info = self._client.create_run(experiment_id, milliseconds(started), tags, name).info
        return Run(info.run_id, "RUNNING", tags, frozenset())

    def _push(self, work: _Work) -> None:
        for state in self._ledger.states.values():
            run = self._found.get(state.key)
            if not state.due and run is not None and run.status == state.status(final=work.final):
                continue
            try:
                self._push_trial(state, run, work)
            except Exception as error:
                if getattr(error, "error_code", "") not in _REFUSALS:
                    raise
                work.error = f"{state.key}: {one_line(error)}"  # of this trial; the others go on
                self._connected = False  # perhaps its run was deleted by hand: look again
            if work.trials % SAVE_EVERY == SAVE_EVERY - 1:
                self._books.save()
        self._push_parent(work)
        self._push_evidence(work)

    def _push_evidence(self, work: _Work) -> None:
        """The files that ended trials left to look at, each under its own name: pushing them again adds none."""
        for state in self._ledger.states.values():
            if self._files_failed and not work.final:
                return
            if not self._books.lacks_evidence(state):
                continue
            folder = trial_folder(self._ledger.folder, state.key) / EVIDENCE
            try:
                if folder.is_dir():
                    self._client.log_artifacts(self._books.runs[state.key], str(folder), EVIDENCE)
            except Exception as error:  # files have a store of their own; the numbers do not wait for it
                self._files_failed, work.error = True, one_line(error)
                return
            self._books.evidence_pushed(state)

    def _push_trial(self, state: TrialState, run: Run | None, work: _Work) -> None:
        trial = self._ledger.trials.get(state.key)
        params, tags = parameters(trial) if trial else {}, state.tags(final=work.final)
        if run is None:
            name = f"{trial.cell.label}, seed {trial.seed}" if trial else state.key
            own = self._ledger.trial_tags(state.key) | {_PARENT_TAG: self._books.runs[PARENT]}
            run = self._create(self._books.experiment_id, name, state.started, {**own, **tags})
            self._found[state.key], self._books.runs[state.key] = run, run.id
        self._books.skip_known_rows(state)
        rows = state.unread()
        points = [point for row in rows for point in row.points]
        self._log_news(run, points, params, tags)
        state.taken(rows)
        self._log(run.id, state.closing_points(), {}, {})
        self._set_status(run, state.status(final=work.final), state.ended.time if state.ended else state.active)
        pushed = sum(bool(row.points) for row in rows)
        self._books.pushed(state, pushed)
        work.trials, work.rows = work.trials + 1, work.rows + pushed

    def _push_parent(self, work: _Work) -> None:
        run, ledger = self._found[PARENT], self._ledger
        self._log_news(run, (), ledger.parent_parameters(), ledger.parent_tags())
        last = max((state.active for state in ledger.states.values()), default=ledger.born or 0.0)
        self._set_status(run, ledger.parent_status(final=work.final, interrupted=work.interrupted), last)
        if self._books.sessions == len(ledger.sessions) or (self._files_failed and not work.final):
            return
        try:
            self._attach_sources(run.id)
        except Exception as error:  # files have a store of their own; the numbers do not wait for it
            self._files_failed, work.error = True, one_line(error)

    def _attach_sources(self, run_id: str) -> None:
        """The plan and each session's provenance, whole, once a session."""
        plan, sessions = self._ledger.folder / "plan.json", self._ledger.sessions
        if plan.exists():
            self._client.log_artifact(run_id, str(plan))
        for number in range(self._books.sessions, len(sessions)):
            body = dict(sessions[number].body)
            self._client.log_dict(run_id, body, f"sessions/{number + 1}.json")
        self._books.sessions = len(sessions)

    def _log_news(self, run: Run, points: Sequence[Point], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Metrics, and of the parameters and tags those that the run does not have yet."""
        missing = {name: value for name, value in params.items() if name not in run.params}
        changed = {name: value for name, value in tags.items() if run.tags.get(name, "") != value}
        self._log(run.id, points, missing, changed)
        run.params |= missing.keys()
        run.tags.update(changed)

    def _set_status(self, run: Run, status: RunStatus, moment: float) -> None:
        if run.status == status:
            return
        if status == "RUNNING":
            self._client.update_run(run.id, status=status)
        else:
            self._client.set_terminated(run.id, status, milliseconds(moment))
        run.status = status

    def _log(self, run_id: str, points: Sequence[Point], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """In batches below MLflow's limits: 1000 entities in all, 100 parameters, 100 tags."""
        from mlflow.entities import Metric, Param, RunTag

        names, labels = [Param(*item) for item in params.items()], [RunTag(*item) for item in tags.items()]
        metrics = [Metric(point.name, point.value, point.time, point.step) for point in points]
        for batch in range(max(-(-len(metrics) // 800), -(-len(names) // 100), -(-len(labels) // 100))):
            few, many = slice(100 * batch, 100 * batch + 100), slice(800 * batch, 800 * batch + 800)
            self._client.log_batch(run_id, metrics[many], names[few], labels[few])


@dataclass
class _Work:
    """One sync under way."""

    final: bool
    interrupted: bool
    trials: int = 0
    rows: int = 0
    error: str | None = None


def _load() -> None:
    """Import MLflow on this thread: two threads importing it at once meet half of it."""
    with calm():
        import mlflow.tracking  # noqa: F401


def _client(uri: str) -> Any:
    """MLflow's client; a SQLite file on a local disk gets a write-ahead log, so that readers do not block us."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri, registry_uri=uri)
    client.search_experiments(max_results=1)  # makes the tables of a new database
    path = local_database(uri)
    if path is not None and on_local_disk(path):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode=WAL")
    return client


def _repository(client: Any, run_id: str) -> Any:
    """Where a run's files lie."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(client.get_run(run_id).info.artifact_uri, client.tracking_uri)
