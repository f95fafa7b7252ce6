"""Run one task of `srun` per node: a Ray for this job alone and, on the first node, the sweep.

With one node the sweep starts its own Ray, as on a laptop. With several, the first task starts a Ray head and writes
its address and a token to a file in the sweep's folder, for the other tasks. It runs the sweep, then removes the file.
The other tasks join the head, and exit when the file is gone.

Each task ends only its own descendants: `ray stop` would also end the Rays of other jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from trainables.files import write_whole
from tune_dml.record.ledger import read_history
from tune_dml.record.origin.commands import SUBMITTED_TO
from tune_dml.record.origin.several_jobs import ARRAY_GROUP, BUDGET_FROM, TASK_GPUS
from tune_dml.record.state import read_state
from tune_dml.running.slurm.jobs import Submission, read_submission
from tune_dml.running.slurm.task import allocated_gpus

_INTERRUPTED, _WITHOUT_PROGRESS = 130, 1
_FIRST_PORT, _LAST_PORT, _PORTS = 10_240, 32_640, 8
"""Range of ports, and ports per job. Linux uses ports from 32768 for connections."""
_JOIN_TIMEOUT = 120.0  # seconds to wait for the head and its address
_CHECK_INTERVAL = 0.2
_OBJECT_STORE = 200_000_000
"""Bytes of Ray's object store. Trials exchange only numbers."""
_DRIVERS_PER_NODE = 64
_SUBREAPER = 36  # `PR_SET_CHILD_SUBREAPER` of Linux's prctl
_TERM_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class _Allocation:
    """The resources that SLURM gave to this task."""

    job: str
    node: int
    nodes: int
    cpus: int
    gpus: int
    restarts: int

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> _Allocation:
        return cls(
            job=environment["SLURM_JOB_ID"],
            node=int(environment.get("SLURM_NODEID", "0")),
            nodes=int(environment.get("SLURM_NNODES", "1")),
            cpus=int(environment.get("SLURM_CPUS_PER_TASK") or environment.get("SLURM_CPUS_ON_NODE") or 1),
            gpus=allocated_gpus(environment),
            restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
        )

    def folder(self, temp: str) -> Path:
        """Return this task's folder on the node's disk. It is short, because Ray creates its sockets there."""
        return Path(temp) / f"t{self.job}.{self.node}"


def _free_ports(job: str) -> range:
    """Return free ports for a job's head. Jobs with close numbers get different ports."""
    slots = (_LAST_PORT - _FIRST_PORT) // _PORTS
    for attempt in range(50):
        first = _FIRST_PORT + (int(job) + attempt * 7) % slots * _PORTS
        ports = range(first, first + _PORTS)
        if all(map(_is_free, ports)):
            return ports
    raise RuntimeError(f"no free ports between {_FIRST_PORT} and {_LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _own_folder(path: Path) -> Iterator[Path]:
    """Create a folder that only this user can read; remove it after the block."""
    shutil.rmtree(path, ignore_errors=True)  # left by a job that was killed and requeued
    path.mkdir(mode=0o700)  # fails if it belongs to another user
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _EndSignal:
    """Handles SLURM's signal that this task must end: records its time and forwards it to the driver."""

    def __init__(self) -> None:
        self.received_at: float | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received_at is None:
            self.received_at = time.monotonic()
            if self.driver is not None:
                self.driver.send_signal(signal.SIGTERM)


def run_node(folder: Path) -> int:
    """Run one task of a job to its end. The first task returns the exit code of the sweep."""
    _adopt_orphans()
    end_signal = _EndSignal()
    submission, allocation = read_submission(folder), _Allocation.read(os.environ)
    os.environ["SLURM_CPUS_ON_NODE"] = str(allocation.cpus)
    with _own_folder(allocation.folder(submission.temp)) as temp:
        try:
            if allocation.nodes == 1:
                access = {**_new_token(), "RAY_TMPDIR": str(temp), "RAY_ADDRESS": "local"}
                return _run_sweep(submission, access, end_signal)
            head = folder / "slurm" / f"{allocation.job}.{allocation.restarts}.head"
            if allocation.node == 0:
                return _run_head_node(submission, allocation, head, temp, end_signal)
            return _join_head(allocation, head, temp)
        finally:
            _end_descendants()


def _new_token() -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _run_head_node(
    submission: Submission, allocation: _Allocation, head: Path, temp: Path, end_signal: _EndSignal
) -> int:
    ports, host, access = _free_ports(allocation.job), _address(), _new_token()
    words = ["--head", f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}", f"--dashboard-port={ports[2]}"]
    words += ["--dashboard-host=127.0.0.1", f"--node-ip-address={host}"]
    ray = _start_ray(allocation, words, temp, access)
    address = f"{host}:{ports[0]}"
    try:
        if not _wait_for(lambda: _accepts_connection(host, ports[0]), ray):
            _print_error("Ray's head did not start", temp)
            return 1
        write_whole(head, json.dumps({"address": address, **access}).encode(), private=True)
        return _run_sweep(submission, {**access, "RAY_ADDRESS": address}, end_signal)
    finally:
        head.unlink(missing_ok=True)


def _join_head(allocation: _Allocation, head: Path, temp: Path) -> int:
    if not _wait_for(head.exists):
        _print_error(f"node {allocation.node}: the first node of the job wrote no address into {head}")
        return 1
    access = json.loads(head.read_text())
    words = [f"--address={access.pop('address')}"]
    ray = _start_ray(allocation, words, temp, access)
    while os.listdir(head.parent) and head.exists() and ray.poll() is None:  # `listdir` refreshes NFS's cache
        time.sleep(_CHECK_INTERVAL)
    if head.exists():
        _print_error(f"node {allocation.node}: its Ray ended", temp)
    return 0


def _start_ray(
    allocation: _Allocation, words: Sequence[str], temp: Path, access: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *words]
    command += [f"--num-cpus={allocation.cpus}", f"--num-gpus={allocation.gpus}", f"--temp-dir={temp}"]
    command += ["--resources", json.dumps({"trial_driver": _DRIVERS_PER_NODE})]
    command += [f"--object-store-memory={_OBJECT_STORE}", "--dashboard-agent-listen-port=0"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    with (temp / "ray.log").open("wb") as log:
        return _start(command, {**os.environ, **access}, log)


def _start(
    command: Sequence[str], environment: Mapping[str, str], log: BinaryIO | None = None
) -> subprocess.Popen[bytes]:
    """Start one of our programs. It ignores USR1, which SLURM sends to all processes and only this one handles."""
    return subprocess.Popen(  # noqa: S603 - our own program
        command,
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),  # noqa: PLW1509 - this process has one thread
    )


def _run_sweep(submission: Submission, access: Mapping[str, str], end_signal: _EndSignal) -> int:
    """Run the sweep's command and return its exit code, or 1 if an interrupted session made no progress."""
    began = time.time()
    environment = {**_environment(submission), **access}
    command = [sys.executable, "-m", "tune_dml.cli", *_words(submission)]
    end_signal.driver = _start(command, environment)
    if end_signal.received_at is not None:  # the signal came during the start
        end_signal.driver.send_signal(signal.SIGTERM)
    code = end_signal.driver.wait()
    was_signalled = code == _INTERRUPTED and end_signal.received_at is not None
    if was_signalled and not _has_progressed(Path(submission.folder), began):
        advice = "Give it more time, or evaluate more often."
        _print_error(f"{submission.name}: this job ended before an evaluation. {advice}")
        return _WITHOUT_PROGRESS
    return code if code >= 0 else 128 - code


def _environment(submission: Submission) -> dict[str, str]:
    return {**os.environ, SUBMITTED_TO: submission.there, BUDGET_FROM: str(submission.began)}


def _words(submission: Submission) -> tuple[str, ...]:
    """Return the submitted command, or the command that continues the sweep if it has started."""
    plan = Path(submission.folder) / "plan.json"
    has_begun = plan.exists() and plan.stat().st_mtime > submission.began
    return submission.again if has_begun else submission.words


def _has_progressed(folder: Path, began: float) -> bool:
    """Return whether a trial has reported an evaluation, and so stored a checkpoint, since `began`."""
    if not (folder / "plan.json").exists():
        return False
    metric = read_state(folder).plan.metric
    changed = [file for file in (folder / "trials").glob("*/history.jsonl") if file.stat().st_mtime >= began]
    rows = (row for file in changed for row in read_history(folder, file.parent.name))
    return any(metric in row and row["time"] >= began for row in rows)


def run_collector(folder: Path) -> int:
    """Collect the results of an array and prepare the next round; return ROUND_FOLLOWS if there is one."""
    submission = read_submission(folder)
    environment = {**_environment(submission), ARRAY_GROUP: str(submission.group), TASK_GPUS: str(submission.gpus)}
    command = [sys.executable, "-m", "tune_dml.cli", *_words(submission)]
    array = submission.scripts_folder / "array"
    array.unlink(missing_ok=True)
    code = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603
    from tune_dml.running.slurm.script import ROUND_FOLLOWS

    return ROUND_FOLLOWS if code == _INTERRUPTED and array.exists() else code


def _address() -> str:
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route, contextlib.suppress(OSError):
        route.connect(("10.255.255.255", 1))  # sends nothing
        return str(route.getsockname()[0])
    return "127.0.0.1"


def _accepts_connection(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def _wait_for(is_ready: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> bool:
    """Wait until a condition holds; return False if the process ends first or the time is over."""
    until = time.monotonic() + _JOIN_TIMEOUT
    while not is_ready():
        if time.monotonic() > until or (process is not None and process.poll() is not None):
            return False
        time.sleep(_CHECK_INTERVAL)
    return True


def _print_error(text: str, temp: Path | None = None) -> None:
    """Print a line and the end of Ray's log to standard error."""
    log = temp / "ray.log" if temp else None
    end = log.read_text(errors="replace").strip()[-2000:] if log and log.exists() else ""
    sys.stderr.write(f"{text}\n" + (f"{end}\n" if end else ""))
    sys.stderr.flush()


def _adopt_orphans() -> None:
    """Become the parent of descendants whose parent exits, so that they stay descendants of this process."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    descendants = list(parents.get(pid, []))
    for child in descendants:
        descendants += parents.get(child, [])
    return descendants


def _end_descendants() -> None:
    """End all descendants: SIGTERM first, then SIGKILL."""
    until = time.monotonic() + _TERM_SECONDS
    signalled: set[int] = set()
    while descendants := _descendants(os.getpid()):
        signal_number = signal.SIGTERM if time.monotonic() < until else signal.SIGKILL
        for child in descendants:
            if signal_number == signal.SIGKILL or child not in signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal_number)
                signalled.add(child)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
