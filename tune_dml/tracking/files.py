"""Upload the files of a sweep's runs: plan, provenance of each session, evidence of trials, report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainables.context import EVIDENCE
from tune_dml.record.ledger import trial_folder
from tune_dml.tracking.client import file_store, reason_of
from tune_dml.tracking.descriptions import REPORT
from tune_dml.tracking.projection import Projection
from tune_dml.tracking.runs import Push
from tune_dml.tracking.sync_state import PARENT, SyncState


class FilePusher:
    """Uploads files to the artifact store, which is often on another machine than the metrics.

    After a failure it uploads nothing before the last push.
    """

    def __init__(self, projection: Projection, sync_state: SyncState):
        self._projection = projection
        self._sync_state = sync_state
        self._failed = False

    def push(self, client: Any, push: Push) -> None:
        """Upload the plan and sessions to the sweep's run, and evidence to the runs of ended trials."""
        try:
            if not self._failed or push.final:
                self._push_sources(client)
                self._push_evidence(client)
        except Exception as error:
            self._failed, push.error = True, reason_of(error)

    def _push_sources(self, client: Any) -> None:
        state, parent = self._projection.state, self._sync_state.runs[PARENT]
        if self._sync_state.sessions == len(state.sessions):
            return
        if (plan := state.folder / "plan.json").exists():
            client.log_artifact(parent, str(plan))
        for number in range(self._sync_state.sessions, len(state.sessions)):
            client.log_dict(parent, state.sessions[number].body(), f"sessions/{number + 1}.json")
        self._sync_state.sessions = len(state.sessions)

    def _push_evidence(self, client: Any) -> None:
        """Upload the evidence of ended trials. A repeated upload replaces the same files."""
        for run in self._projection.runs.values():
            if not self._sync_state.lacks_evidence(run) or self._projection.state.trial(run.key).has_remote_files:
                continue
            folder = trial_folder(self._projection.state.folder, run.key) / EVIDENCE
            if folder.is_dir():
                client.log_artifacts(self._sync_state.runs[run.key], str(folder), EVIDENCE)
            self._sync_state.record_evidence_push(run)


def replace_files(client: Any, run_id: str, paths: Sequence[Path], subfolder: str) -> None:
    """Upload files, then delete the other files of an earlier upload, so that a failure loses nothing."""
    new_paths: set[str] = set()
    for path in paths:
        if path.is_dir():
            client.log_artifacts(run_id, str(path), subfolder)
            new_paths |= {
                f"{subfolder}/{file.relative_to(path).as_posix()}" for file in path.rglob("*") if file.is_file()
            }
        else:
            client.log_artifact(run_id, str(path), subfolder)
            new_paths.add(f"{subfolder}/{path.name}")
    repository = file_store(client, run_id)
    for stale in set(_files_under(client, run_id, subfolder)) - new_paths:
        repository.delete_artifacts(stale)


def attach_missing_report(client: Any, run_id: str, folder: Path) -> bool:
    """Upload a sweep's report if its run has none; return whether the run then has one."""
    if any(entry.path == f"{REPORT}/report.html" for entry in client.list_artifacts(run_id, REPORT)):
        return True
    if not (folder / "report.html").exists():
        return False
    client.log_artifacts(run_id, str(folder), REPORT)
    return True


def _files_under(client: Any, run_id: str, folder: str) -> Iterator[str]:
    for entry in client.list_artifacts(run_id, folder):
        if entry.is_dir:
            yield from _files_under(client, run_id, entry.path)
        else:
            yield entry.path
