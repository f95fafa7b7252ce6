"""Run a command of ours as a Ray job on a cluster's head.

The job includes the code of our packages, so that the nodes need only the project's dependencies.
"""

import asyncio
import hashlib
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.record.origin.commands import CONTINUE_WITH, SUBMITTED_TO
from tune_dml.running.cluster.probe_address import address_problems, job_server_problems
from tune_dml.running.cluster.upload import Upload
from tune_dml.text import one_line, shortened

_GRACE = 60  # seconds that a cancelled sweep gets to write its table and report
_TUNNEL_SECONDS = 120.0
_PLACE = "cluster"
_ADDRESS = re.compile(r"(https?|ray)://.+|[^/]+:\d+")
_REQUEST_FAILED = "Request failed with status code"  # beginning of the errors of Ray's job client
_PROGRAM = "python -m tune_dml.cli"
_DIGEST = "tune_dml.sent"
_CONTINUE = re.compile(CONTINUE_WITH + "(.+)")
_EXIT = re.compile(r"exit code (\d+)")
_ENDS = {"3": "finished, with trials that failed", "130": "interrupted, resumable"}
"""Exit codes of a command that do not mean that it failed."""
_FINAL_STATUSES = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class RayJob:
    """A command on the cluster."""

    id: str
    sweep: str
    status: str
    message: str = ""  # Ray's message about the job
    digest: str = field(default="", compare=False)  # digest of the command and its files

    def __str__(self) -> str:
        """Return `eta1@1: stopped`; a failure with its reason, because a job that never started has an empty log."""
        reason = one_line(self.message.partition(", last available logs")[0]) if self.status == "FAILED" else ""
        code = _EXIT.search(reason)
        if code and code[1] in _ENDS:  # an exit code of the command, which Ray reports as a failure
            return f"{self.id}: {_ENDS[code[1]]}"
        return f"{self.id}: {self.status.lower()}" + (f" ({shortened(reason, 200)})" if reason else "")

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended."""
        return self.status in _FINAL_STATUSES


@contextmanager
def cluster_client(target: str) -> Iterator[Any]:
    """Connect to the cluster's job server, through an SSH tunnel if the target is a cluster file.

    Raise ConfigError if no job server answers, a token is missing, or the connection breaks.
    """
    from ray.job_submission import JobSubmissionClient
    from ray.util.state.exception import RayStateApiException

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # hide Ray's messages about uploads; we print our own
    variables = os.environ.keys() & {"RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"}
    environment = {name: os.environ.pop(name) for name in variables}
    try:
        with _tunnel(target) as address:
            yield JobSubmissionClient(_dashboard_of(address))
    except OSError as error:
        if error.filename is not None or type(error) is BrokenPipeError:  # of our files or output
            raise
        raise ConfigError(_connection_problem(target, error)) from error
    except (RuntimeError, RayStateApiException) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(_REQUEST_FAILED):
            raise
        rule = f"the cluster's head must answer ({shortened(_last_line(error), 90)})"
        remedy = "Try again; if it still fails, the cluster's Ray hangs: restart it."
        raise ConfigError(Problem(_PLACE, rule, target, remedy)) from error
    finally:
        os.environ.update(environment)
        logging.disable(level)


def _connection_problem(target: str, error: Exception) -> Problem:
    rule = f"the connection to the cluster must last ({_last_line(error)})"
    remedy = "Try again; submitted jobs continue without the connection, as long as the head runs."
    return Problem(_PLACE, rule, target, remedy)


def _dashboard_of(address: str) -> str:
    """Return the address of the job server, http://HOST:PORT. Raise ConfigError if it does not answer in seconds."""
    from ray.dashboard.utils import get_address_for_submission_client

    if not _ADDRESS.fullmatch(address):
        rule = "a cluster is named by its file, http://HEAD:8265, HOST:6379 or ray://HOST:10001"
        example = "Example: tune-dml submit cluster.yaml -- list --storage DIR."
        raise ConfigError(Problem(_PLACE, rule, address, example))
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
    """Yield an address unchanged; for a cluster file, open an SSH tunnel and yield its local end."""
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
        _end(tunnel)
        tunnel.wait()


def _end(tunnel: subprocess.Popen[str]) -> None:
    """End `ray dashboard` and its ssh, which would outlive it."""
    import psutil  # type: ignore[import-untyped]  # in Ray, which `cluster_client` imports

    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(tunnel.pid).children(recursive=True), tunnel):
            process.terminate()


def _wait_for(port: int, tunnel: subprocess.Popen[str], target: str) -> None:
    deadline = time.monotonic() + _TUNNEL_SECONDS
    while time.monotonic() < deadline and tunnel.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    _end(tunnel)
    lines = (tunnel.communicate()[0] or "").strip().splitlines() or ["no answer"]
    rule = f"the cluster's head must be reachable by SSH ({lines[-1].strip()})"
    raise ConfigError(Problem(_PLACE, rule, target, f"Start it: `ray up {target}`."))


def _jobs_of(client: Any, sweep: str) -> list[RayJob]:
    jobs = [job for job in client.list_jobs() if (job.metadata or {}).get("tune_dml.sweep") == sweep]
    jobs.sort(key=lambda job: job.start_time or 0)
    return [
        RayJob(job.submission_id, sweep, str(job.status.value), job.message or "", job.metadata.get(_DIGEST, ""))
        for job in jobs
        if job.submission_id
    ]


def latest_job(client: Any, sweep: str, target: str) -> RayJob:
    """Return the last job of a sweep. Raise ConfigError if there is none."""
    jobs = _jobs_of(client, sweep)
    if not jobs:
        remedy = f"Start it: `tune-dml submit {target} -- sweep ... --name {sweep}`."
        raise ConfigError(Problem("SWEEP", "no job of this sweep on the cluster", sweep, remedy))
    return jobs[-1]


def submit(client: Any, typed_target: str, sweep: str, words: Sequence[str], upload: Upload) -> tuple[RayJob, bool]:
    """Run `tune-dml WORDS` on the cluster's head. Return the job, and whether it is new.

    The name of a job is made from its sweep. If the sweep has a running job, return it and submit nothing; this also
    holds for two simultaneous callers. Raise ConfigError if the running job was started by another command.

    `typed_target` is the cluster as the user typed it, with its flags, for the commands that messages recommend.
    """
    digest = _digest_of(words, upload)
    jobs = _jobs_of(client, sweep)
    if jobs and not jobs[-1].has_ended:
        raise_if_any(_other_command(jobs, words, digest, typed_target))
        return jobs[-1], False
    name, metadata = f"{sweep}@{len(jobs) + 1}", {"tune_dml.sweep": sweep, _DIGEST: digest}
    if _start(client, name, words, upload, typed_target=typed_target, metadata=metadata):
        return RayJob(name, sweep, "PENDING", digest=digest), True
    jobs = _jobs_of(client, sweep)
    raise_if_any(_other_command(jobs, words, digest, typed_target))
    return next(job for job in jobs if job.id == name), False


def _digest_of(words: Sequence[str], upload: Upload) -> str:
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape"))
    for path in sorted(upload.user_files):
        digest.update(f"\0{path}\0".encode() + hashlib.sha256(upload.files[path].read_bytes()).digest())
    return digest.hexdigest()


def _other_command(jobs: Sequence[RayJob], words: Sequence[str], digest: str, typed_target: str) -> list[Problem]:
    """Return a problem if the command is neither `resume` nor the command of the running job."""
    if words[0] == "resume" or any(job.digest in {digest, ""} for job in jobs):
        return []
    job, target = jobs[-1], shlex.quote(shlex.split(typed_target)[0])
    rule = f"{job.id} runs already, with another command or other files; nothing was sent"
    remedy = f"Wait for its end, or `tune-dml cancel {target} {job.sweep}`; another sweep needs another --name."
    return [Problem("submit", rule, shortened(shlex.join(words), 200), remedy)]


def continue_command(client: Any, job: RayJob) -> str | None:
    """Return the command that continues a job: from its log or, if it was stopped, the command that started it."""
    commands = _CONTINUE.findall(client.get_job_logs(job.id))
    if commands or job.status != "STOPPED":
        return str(commands[-1]).strip() if commands else None
    details = client.get_job_info(job.id)
    environment = (details.runtime_env or {}).get("env_vars", {})
    _, has_program, words = str(details.entrypoint or "").partition(f"{_PROGRAM} ")
    is_ours = has_program and SUBMITTED_TO in environment
    return f"tune-dml submit {environment[SUBMITTED_TO]} -- {words}" if is_ours else None


@contextmanager
def run_temporary_job(client: Any, typed_target: str, words: Sequence[str], upload: Upload) -> Iterator[RayJob]:
    """Run `tune-dml WORDS` on the cluster's head; then stop it, or delete it if it has ended."""
    name = f"{words[0]}-{uuid.uuid4().hex[:12]}"
    _start(client, name, words, upload, typed_target=typed_target, metadata={})
    try:
        yield RayJob(name, "", "PENDING")
    finally:
        if str(client.get_job_status(name).value) not in _FINAL_STATUSES:
            client.stop_job(name)
        else:
            client.delete_job(name)


def _start(
    client: Any, name: str, words: Sequence[str], upload: Upload, *, typed_target: str, metadata: dict[str, str]
) -> bool:
    """Submit a job; return False if its name is taken."""
    environment = {"RAY_JOB_STOP_WAIT_TIME_S": str(_GRACE), "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    environment[SUBMITTED_TO] = typed_target
    with upload.stage() as folder:
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


def cluster_capacity(client: Any) -> dict[str, float]:
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

    async def next_part() -> str | None:
        return await anext(lines, None)

    with asyncio.Runner() as runner:  # closes the connection in any case
        while True:
            try:
                text = runner.run(next_part())
            except RuntimeError as error:  # an error of the connection; the status tells whether the job failed
                raise ConfigError(_connection_problem(client.get_address(), error)) from error
            if text is None:
                return
            yield text


def command_output(client: Any, job: RayJob) -> Iterator[str]:
    """Yield the output of a job's command without the lines before it; the whole log if it never started."""
    marker, log = f"Running entrypoint for job {job.id}:", ""
    parts = follow(client, job)
    for text in parts:
        log += text
        _, _, after_marker = log.partition(marker)
        if "\n" in after_marker:
            yield after_marker.partition("\n")[2]
            yield from parts
            return
    yield log


def exit_code(client: Any, job: RayJob) -> int:
    """Return the exit code of an ended job."""
    details = client.get_job_info(job.id)
    code = getattr(details, "driver_exit_code", None)
    return int(str(details.status.value) != "SUCCEEDED" if code is None else code)
