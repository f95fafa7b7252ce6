"""Obstacles to starting a local Ray, and the effect of signals on a session."""

import os
import resource
import signal
import sys
import threading
import time

import pytest
from ray._private.utils import validate_socket_filepath

from tune_dml.planning.request import Resources
from tune_dml.running.cluster import cluster, start_checks
from tune_dml.running.process import resend_dropped_interrupts, sigterm_as_interrupt

UNLIMITED = resource.RLIM_INFINITY
LONGEST = "/scratch/slurm-job.12345678/node-17/tmp"


@pytest.fixture
def limits(monkeypatch):
    """Limits of this process by name; none is set."""
    given = {}
    monkeypatch.setattr(start_checks.resource, "getrlimit", lambda number: (given.get(number, UNLIMITED), UNLIMITED))
    monkeypatch.setattr(start_checks.os, "getuid", lambda: 1000)
    return given


def threads_left(proc, groups):
    return [(place, left) for place, left, _ in start_checks._free_threads(proc, groups)]


def test_threads_of_a_user_and_of_each_control_group_above_are_counted(tmp_path, limits, monkeypatch):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    for number, threads in ((7, 3), (8, 1)):
        for thread in range(threads):
            (proc / str(number) / "task" / str(thread)).mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "self" / "cgroup").write_text("9:name=systemd:/\n8:pids:/pod/box\n0::/\n")
    inner, outer = groups / "pids" / "pod" / "box", groups / "pids" / "pod"
    inner.mkdir(parents=True)
    for group, most, now in ((inner, "max", 12), (outer, "100", 40)):
        (group / "pids.max").write_text(f"{most}\n")
        (group / "pids.current").write_text(f"{now}\n")
    limits[resource.RLIMIT_NPROC] = 64
    monkeypatch.setattr(start_checks.os, "getuid", lambda: os.stat(tmp_path).st_uid or 1000)
    for number in (7, 8):
        os.chown(proc / str(number), start_checks.os.getuid(), -1)
    assert threads_left(proc, groups) == [("ulimit -u", 60), (f"{outer}/pids.max", 60)]


def test_root_and_unlimited_users_are_not_checked(tmp_path, limits, monkeypatch):
    assert threads_left(tmp_path, tmp_path) == []
    limits[resource.RLIMIT_NPROC] = 64
    monkeypatch.setattr(start_checks.os, "getuid", lambda: 0)
    assert threads_left(tmp_path, tmp_path) == []


@pytest.mark.parametrize(("places", "refused"), [(2, False), (3, True)])
def test_too_few_threads_are_refused_before_anything_starts(monkeypatch, places, refused):
    monkeypatch.setattr(start_checks, "_free_threads", lambda: [("ulimit -u", 200, "Raise it.")])
    problems = [str(problem) for problem in start_checks.start_problems(places)]
    said = "ulimit -u: Ray and 3 training processes need at least 220 free threads, but got 200. Raise it."
    assert problems == ([said] if refused else [])


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        (LONGEST + "1", " may have 39 bytes, because of its sockets; it has 40"),
        ("/scratch/" + 12 * "ö", " must consist of ASCII characters"),
        (LONGEST, ""),
        ("/a b", ""),
    ],
)
def test_a_folder_too_long_for_the_sockets_of_ray_is_refused(monkeypatch, limits, folder, said):
    """Batch systems create one per job; the kernel limits a socket's name to 107 bytes."""
    monkeypatch.setattr(start_checks, "_free_threads", list)
    monkeypatch.setattr(start_checks.os, "getpid", lambda: 4194304)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", folder)
    told = [str(problem) for problem in start_checks.start_problems(2)]
    remedy = "Set RAY_TMPDIR to another folder, such as /tmp."
    assert told == ([f"Ray: the path of Ray's temporary folder{said}, but got '{folder}'. {remedy}"] if said else [])
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # noqa: S108
    assert start_checks.start_problems(2) == []


def test_ray_accepts_the_longest_folder_that_we_accept():
    validate_socket_filepath(f"{LONGEST}/{start_checks._SOCKET.format(4194304)}")
    with pytest.raises(OSError, match="AF_UNIX"):
        validate_socket_filepath(f"{LONGEST}1/{start_checks._SOCKET.format(4194304)}")


def test_start_checks_apply_only_to_a_local_ray(monkeypatch):
    monkeypatch.setattr(start_checks, "_free_threads", lambda: [("ulimit -u", 1, "Raise it.")])
    monkeypatch.setattr(cluster, "_has_ray", lambda: False)  # other tests may have left one running
    assert [problem.place for problem in cluster.resource_problems(Resources())] == ["ulimit -u"]
    monkeypatch.setattr(cluster, "_has_ray", lambda: True)
    monkeypatch.setattr(cluster, "capacity_at", lambda address: cluster.Capacity(({"CPU": 4.0},)))
    assert cluster.resource_problems(Resources()) == []


def test_a_failed_ray_start_names_resource_limits_and_busy_processors(limits, monkeypatch):
    error = RuntimeError("timed out")
    assert "no low limits (`ulimit -a`)." in start_checks.start_failure(error).remedy
    limits.update({resource.RLIMIT_FSIZE: 20 << 20, resource.RLIMIT_NOFILE: 64, resource.RLIMIT_NPROC: 50_000})
    words = "no low limits: `ulimit -n` is 64, `ulimit -f` is 20 MB."
    assert words in start_checks.start_failure(error).remedy
    for load, is_named in ((31.4, True), (0.2, False)):
        monkeypatch.setattr(start_checks.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        monkeypatch.setattr(start_checks.os, "cpu_count", lambda: 4)
        remedy = start_checks.start_failure(error).remedy
        assert ("31 processes share 4 CPUs now: try again when fewer do." in remedy) == is_named


class InterruptedDeletion:
    """An object during whose deletion Ctrl-C arrives."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


class Broken:
    def __del__(self):
        raise ValueError("of its own")


@pytest.fixture
def ctrl_c():
    """Restore Python's handler of SIGINT, as in a command: a parallel test run ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_object_deletion_is_handled(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: said.append(dropped.exc_type))
    before = sys.unraisablehook

    def tear_down():
        InterruptedDeletion()
        threading.Event().wait(30)

    since = time.monotonic()
    with pytest.raises(KeyboardInterrupt), resend_dropped_interrupts():
        tear_down()
    assert time.monotonic() - since < 20  # it is woken, and does not hear of it at the end of its waiting
    assert said == []
    with resend_dropped_interrupts():
        Broken()
    assert said == [ValueError]
    assert sys.unraisablehook is before


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_after_a_session_reaches_the_caller():
    """Tune replaces the signal handlers in each sweep of a process, and keeps them until a Ctrl-C."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with sigterm_as_interrupt():
        for number in numbers[1:]:
            signal.signal(number, lambda number, frame: None)
    assert [signal.getsignal(number) for number in numbers] == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
