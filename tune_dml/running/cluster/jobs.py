"""Run a command of ours as a Ray job on a cluster's head.

    with cluster_client("cluster.yaml") as client:          # or http://HEAD:8265, HOST:6379, ray://HOST:10001
        upload = collect_upload(files=[Path("mine.yaml")])
        job, new = submit(client, "cluster.yaml", "eta1", ["sweep", "mine.yaml", "--name", "eta1"], upload)
        for text in follow(client, job): ...

Our packages travel with the job, so the nodes need only the project's dependencies.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.record.origin.commands import SUBMITTED_TO
from tune_dml.running.cluster.probe_address import address_problems, job_server_problems
from tune_dml.running.cluster.upload import Upload
from tune_dml.text import one_line, shortened

_GRACE = 60
"""Seconds that a cancelled sweep has to write its table and report."""
_TUNNEL_SECONDS = 120.0
_PLACE = "cluster"
_ADDRESS = re.compile(r"(https?|ray)://.+|[^/]+:\d+")
_REFUSED = "Request failed with status code"
"""How an error of Ray's job client begins."""
_PROGRAM = "python -m tune_dml.cli"
_SENT = "tune_dml.sent"
_GO_ON = re.compile(r"Continue with: (.+)")
_EXIT = re.compile(r"exit code (\d+)")
_ENDS = {"3": "finished, with trials that failed", "130": "interrupted, resumable"}
"""Exit codes of a command that are no failure."""
_OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class RayJob:
    """A command on the cluster."""

    id: str
    sweep: str
    status: str
    message: str = ""
    """Ray's message about it."""
    sent: str = field(default="", compare=False)
    """Digest of the command and the files that went with it."""

    def __str__(self) -> str:
        """Return `eta1@1: stopped`, with the reason of a failure: the log of a job that never began is empty."""
        why = one_line(self.message.partition(", last available logs")[0]) if self.status == "FAILED" else ""
        code = _EXIT.search(why)
        if code and code[1] in _ENDS:  # the command's own exit code, which Ray calls a failure
            return f"{self.id}: {_ENDS[code[1]]}"
        return f"{self.id}: {self.status.lower()}" + (f" ({shortened(why, 200)})" if why else "")

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in _OVER


@contextmanager
def cluster_client(target: str) -> Iterator[Any]:
    """Connect to the cluster's job server, by an SSH tunnel for a cluster file.

    Raises:
        ConfigError: No job server answers, a token is missing, or the connection breaks.
    """
    from ray.job_submission import JobSubmissionClient
    from ray.util.state.exception import RayStateApiException

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # hide Ray's messages about uploads; we print our own
    hidden = {name: os.environ.pop(name) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS") if name in os.environ}
    try:
        with _tunnel(target) as address:
            yield JobSubmissionClient(_dashboard_of(address))
    except OSError as error:
        if error.filename is not None or type(error) is BrokenPipeError:  # our own file or output, not the connection
            raise
        raise ConfigError(_cut_off(target, error)) from error
    except (RuntimeError, RayStateApiException) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(_REFUSED):
            raise
        rule = f"the cluster's head must answer ({shortened(_last_line(error), 90)})"
        remedy = "Try again; if it still fails, the cluster's Ray hangs: restart it."
        raise ConfigError(Problem(_PLACE, rule, target, remedy)) from error
    finally:
        os.environ.update(hidden)
        logging.disable(level)


def _cut_off(target: str, error: Exception) -> Problem:
    rule = f"the connection to the cluster must last ({_last_line(error)})"
    remedy = "Try again; submitted jobs continue without the connection, as long as the head runs."
    return Problem(_PLACE, rule, target, remedy)


def _dashboard_of(address: str) -> str:
    """Return the job server, http://HOST:PORT. Raise ConfigError if none answers within seconds."""
    from ray.dashboard.utils import get_address_for_submission_client

    if not _ADDRESS.fullmatch(address):
        rule = "a cluster is named by its file, http://HEAD:8265, HOST:6379 or ray://HOST:10001"
        raise ConfigError(
            Problem(_PLACE, rule, address, "Example: tune-dml submit cluster.yaml -- list --storage DIR.")
        )
    if not address.startswith("http"):
        raise_if_any(address_problems(address, _PLACE))
        try:
            address = get_address_for_submission_client(address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            rule = f"the cluster must say where its dashboard is ({_last_line(error)})"
            raise ConfigError(Problem(_PLACE, rule, address, "Give cluster.yaml or http://HEAD:8265.")) from error
    raise_if_any(job_server_problems(address, _PLACE))
    return address


@contextmanager
def _tunnel(target: str) -> Iterator[str]:
    """Yield the address itself, or for a cluster file the near end of an SSH tunnel to its dashboard."""
    if not target.endswith((".yaml", ".yml")):
        yield target
        return
    from tune_dml.running.cluster.cluster_file import cluster_file_problems

    raise_if_any(cluster_file_problems(Path(target), to_start=False))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "dashboard", target, "--port", str(port), "--remote-port", "8265"]
    tunnel = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603
    try:
        _wait_for(port, tunnel, target)
        yield f"http://127.0.0.1:{port}"
    finally:
        tunnel.terminate()
        tunnel.wait()


def _wait_for(port: int, tunnel: subprocess.Popen[str], target: str) -> None:
    deadline = time.monotonic() + _TUNNEL_SECONDS
    while time.monotonic() < deadline and tunnel.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            threading.Event().wait(0.2)
    tunnel.terminate()
    said = (tunnel.communicate()[0] or "").strip().splitlines() or ["no answer"]
    rule = f"the cluster's head must be reachable by SSH ({said[-1].strip()})"
    raise ConfigError(Problem(_PLACE, rule, target, f"Start it: `ray up {target}`."))


def _jobs_of(client: Any, sweep: str) -> list[RayJob]:
    """Return a sweep's jobs in the order of their start."""
    found = [details for details in client.list_jobs() if (details.metadata or {}).get("tune_dml.sweep") == sweep]
    found.sort(key=lambda details: details.start_time or 0)
    return [
        RayJob(
            details.submission_id,
            sweep,
            str(details.status.value),
            details.message or "",
            details.metadata.get(_SENT, ""),
        )
        for details in found
        if details.submission_id
    ]


def latest_job(client: Any, sweep: str, target: str) -> RayJob:
    """Return the last job of a sweep. Raise ConfigError if there is none."""
    jobs = _jobs_of(client, sweep)
    if not jobs:
        rule = "no job of this sweep on the cluster"
        raise ConfigError(
            Problem("SWEEP", rule, sweep, f"Start it: `tune-dml submit {target} -- sweep ... --name {sweep}`.")
        )
    return jobs[-1]


def submit(client: Any, there: str, sweep: str, words: Sequence[str], upload: Upload) -> tuple[RayJob, bool]:
    """Run `tune-dml WORDS` on the cluster's head.

    A job is named after its sweep. A running job is returned instead of a second one, also to two simultaneous callers.

    Args:
        client: From `cluster_client`.
        there: The cluster as its user typed it, for the commands that are advised.
        sweep: The sweep's name.
        words: The command.
        upload: Files that travel with it.

    Returns:
        The job, and whether it is new.

    Raises:
        ConfigError: The running job was started by another command.
    """
    sent = _digest(words, upload)
    before = _jobs_of(client, sweep)
    if before and not before[-1].over:
        raise_if_any(_other_command(before, words, sent, there))
        return before[-1], False
    name = f"{sweep}@{len(before) + 1}"
    if _start(client, name, words, upload, there=there, metadata={"tune_dml.sweep": sweep, _SENT: sent}):
        return RayJob(name, sweep, "PENDING", sent=sent), True
    known = _jobs_of(client, sweep)
    raise_if_any(_other_command(known, words, sent, there))
    return next(job for job in known if job.id == name), False


def _digest(words: Sequence[str], upload: Upload) -> str:
    """Return a digest of a command and the user's files."""
    found = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape"))
    for place in sorted(upload.own):
        found.update(f"\0{place}\0".encode() + hashlib.sha256(upload.files[place].read_bytes()).digest())
    return found.hexdigest()


def _other_command(jobs: Sequence[RayJob], words: Sequence[str], sent: str, there: str) -> list[Problem]:
    """Refuse a command that is neither `resume` nor that of the running job."""
    if words[0] == "resume" or any(job.sent in {sent, ""} for job in jobs):
        return []
    job, target = jobs[-1], shlex.quote(shlex.split(there)[0])
    rule = f"{job.id} runs, begun by another command or other files, and nothing was sent"
    remedy = f"Wait for its end, or `tune-dml cancel {target} {job.sweep}`; another sweep needs another --name."
    return [Problem("submit", rule, shortened(shlex.join(words), 200), remedy)]


def continue_command(client: Any, job: RayJob) -> str | None:
    """Return the command that continues a job: from its log, else the one that started it if it was stopped."""
    told = _GO_ON.findall(client.get_job_logs(job.id))
    if told or job.status != "STOPPED":
        return str(told[-1]).strip() if told else None
    details = client.get_job_info(job.id)
    environment = (details.runtime_env or {}).get("env_vars", {})
    _, ours, words = str(details.entrypoint or "").partition(f"{_PROGRAM} ")
    return f"tune-dml submit {environment[SUBMITTED_TO]} -- {words}" if ours and SUBMITTED_TO in environment else None


@contextmanager
def asked(client: Any, there: str, words: Sequence[str], upload: Upload) -> Iterator[RayJob]:
    """Run `tune-dml WORDS` on the cluster's head to read its output, then delete the job."""
    name = f"{words[0]}-{uuid.uuid4().hex[:12]}"
    _start(client, name, words, upload, there=there, metadata={})
    try:
        yield RayJob(name, "", "PENDING")
    finally:
        if str(client.get_job_status(name).value) not in _OVER:
            client.stop_job(name)
        else:
            client.delete_job(name)


def _start(
    client: Any, name: str, words: Sequence[str], upload: Upload, *, there: str, metadata: dict[str, str]
) -> bool:
    """Submit a job; return False if its name is taken."""
    environment = {"RAY_JOB_STOP_WAIT_TIME_S": str(_GRACE), "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    environment[SUBMITTED_TO] = there
    with upload.staged() as folder:
        try:
            client.submit_job(
                entrypoint=f"{_PROGRAM} {shlex.join(words)}",
                submission_id=name,
                runtime_env={"working_dir": str(folder), "env_vars": environment},
                metadata=metadata,
            )
        except RuntimeError as error:
            if "already exists" in str(error):
                return False
            raise ConfigError(Problem("submit", f"the cluster must take the job ({_last_line(error)})")) from error
    return True


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def capacity_of(client: Any) -> dict[str, float]:
    """Return the present CPUs and GPUs of the cluster's nodes."""
    from ray.util.state import list_nodes

    nodes = list_nodes(
        address=client.get_address(),
        filters=[("state", "=", "ALIVE")],
        limit=10_000,
        detail=True,
        raise_on_missing_output=False,  # dead nodes count as missing
    )
    totals = [node.resources_total or {} for node in nodes]
    return {name: sum(float(total.get(name, 0.0)) for total in totals) for name in ("CPU", "GPU")}


def follow(client: Any, job: RayJob) -> Iterator[str]:
    """Yield a job's log as it grows, until the job ends."""
    lines: AsyncIterator[str] = client.tail_job_logs(job.id)

    async def part() -> str | None:
        return await anext(lines, None)

    with asyncio.Runner() as runner:  # closes the connection in any case
        while True:
            try:
                text = runner.run(part())
            except RuntimeError as error:  # the connection's; a job's failure is in its status
                raise ConfigError(_cut_off(client.get_address(), error)) from error
            if text is None:
                return
            yield text


def answer(client: Any, job: RayJob) -> Iterator[str]:
    """Yield a job's output without Ray's preamble, or the whole log if the command never started."""
    begun, before = f"Running entrypoint for job {job.id}:", ""
    parts = follow(client, job)
    for text in parts:
        before += text
        _, found, behind = before.partition(begun)
        if found and "\n" in behind:
            yield behind.partition("\n")[2]
            yield from parts
            return
    yield before


def exit_code(client: Any, job: RayJob) -> int:
    """Return the exit code of an ended job."""
    details = client.get_job_info(job.id)
    code = getattr(details, "driver_exit_code", None)
    if code is not None:
        return int(code)
    return 0 if str(details.status.value) == "SUCCEEDED" else 1
