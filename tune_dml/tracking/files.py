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
    """Uploads files. The artifact store is often another machine, and metrics do not wait for it.

    After a failure it is not contacted again before the last push.
    """

    def __init__(self, projection: Projection, synced: SyncState):
        self._projection = projection
        self._synced = synced
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
        """Upload the plan and the provenance of each new session."""
        state, parent = self._projection.state, self._synced.runs[PARENT]
        if self._synced.sessions == len(state.sessions):
            return
        if (plan := state.folder / "plan.json").exists():
            client.log_artifact(parent, str(plan))
        for number in range(self._synced.sessions, len(state.sessions)):
            client.log_dict(parent, state.sessions[number].body(), f"sessions/{number + 1}.json")
        self._synced.sessions = len(state.sessions)

    def _push_evidence(self, client: Any) -> None:
        """Upload the evidence of ended trials; a repeated upload replaces the same files."""
        for run in self._projection.runs.values():
            if not self._synced.lacks_evidence(run) or self._projection.state.trial(run.key).away:
                continue
            folder = trial_folder(self._projection.state.folder, run.key) / EVIDENCE
            if folder.is_dir():
                client.log_artifacts(self._synced.runs[run.key], str(folder), EVIDENCE)
            self._synced.evidence_pushed(run)


def replace_files(client: Any, run_id: str, paths: Sequence[Path], subfolder: str) -> None:
    """Upload files, then delete those of an earlier upload: a failure in between loses nothing."""
    fresh: set[str] = set()
    for path in paths:
        if path.is_dir():
            client.log_artifacts(run_id, str(path), subfolder)
            fresh |= {f"{subfolder}/{file.relative_to(path).as_posix()}" for file in path.rglob("*") if file.is_file()}
        else:
            client.log_artifact(run_id, str(path), subfolder)
            fresh.add(f"{subfolder}/{path.name}")
    repository = file_store(client, run_id)
    for stale in set(_files_under(client, run_id, subfolder)) - fresh:
        repository.delete_artifacts(stale)


def attach_missing_report(client: Any, run_id: str, folder: Path) -> bool:
    """Upload a sweep's report that could not be attached before; return whether its run has one."""
    if any(entry.path == f"{REPORT}/report.html" for entry in client.list_artifacts(run_id, REPORT)):
        return True
    if not (folder / "report.html").exists():
        return False
    client.log_artifacts(run_id, str(folder), REPORT)
    return True


def _files_under(client: Any, run_id: str, folder: str) -> Iterator[str]:
    """Yield the path of every file of a run in a folder, recursively."""
    for entry in client.list_artifacts(run_id, folder):
        if entry.is_dir:
            yield from _files_under(client, run_id, entry.path)
        else:
            yield entry.path
