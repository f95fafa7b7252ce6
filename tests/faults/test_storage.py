"""Storage that is full, disappears and returns, is read-only, or was written under another clock."""

import errno
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from helpers.sweeps import SweepProcess, sweep_file
from helpers.toys import write_sweep
from mlflow import MlflowClient
from ray.tune import TuneError

from trainables import files
from trainables.errors import ConfigError
from trainables.files import retry_storage
from tune_dml.record.ledger import read_events
from tune_dml.record.state import read_state
from tune_dml.running.sweep import _storage_errors_as_problem

WAITED = "waiting up to 10 minutes"


def failing(*numbers, forever=False):
    """Return a function that fails with these errors before it writes, or with the last one for ever."""
    ends = iter(numbers)

    def write():
        if (number := next(ends, numbers[-1] if forever else None)) is not None:
            raise OSError(number, os.strerror(number))
        return "written"

    return write


class TestPatience:
    """Unit tests of waiting for storage: which errors are waited for, and the messages."""

    def test_a_temporary_failure_is_waited_for_and_reported_once(self, tmp_path, monkeypatch):
        pauses, said = [], []
        monkeypatch.setattr(files.time, "sleep", pauses.append)
        write = failing(errno.ENOSPC, errno.EROFS, errno.ESTALE)
        assert retry_storage(write, tmp_path, said.append) == "written"
        assert pauses == [0.2, 0.4, 0.8]
        assert [WAITED in text for text in said] == [True, False]
        assert str(tmp_path) in said[0]

    def test_waiting_continues_if_the_report_of_it_fails(self, tmp_path, monkeypatch):
        class Full(io.StringIO):
            def write(self, text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(files.sys, "stderr", Full())
        assert retry_storage(failing(errno.ENOSPC), tmp_path) == "written"

    @pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR])
    def test_a_permanent_error_is_raised_at_once(self, tmp_path, number):
        with pytest.raises(OSError, match=os.strerror(number)):
            retry_storage(failing(number), tmp_path)

    def test_the_first_ctrl_c_ends_the_waiting(self, tmp_path, monkeypatch):
        """Tune records the first one and continues its loop, which waits here."""
        noted = []
        before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
        monkeypatch.setattr(files.time, "sleep", lambda seconds: signal.raise_signal(signal.SIGINT))
        try:
            with pytest.raises(KeyboardInterrupt):
                retry_storage(failing(errno.ESTALE, forever=True), tmp_path, lambda text: None)
            signal.raise_signal(signal.SIGINT)  # afterwards it is noted again
        finally:
            signal.signal(signal.SIGINT, before)
        assert noted == [signal.SIGINT]

    def test_waiting_ends_after_its_limit(self, tmp_path, monkeypatch):
        clock = iter(range(0, 10_000, 100))
        monkeypatch.setattr(files.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
        with pytest.raises(OSError, match="No space left"):
            retry_storage(failing(errno.ENOSPC, forever=True), tmp_path, lambda text: None)


class TestLastingFailures:
    """Unit tests of a session that ends because its storage failed, mostly for longer than it waits."""

    @pytest.fixture
    def fail(self, tmp_path):
        """Return a function that fails as Tune does: its error has the first one only as text."""

        def fail(error):
            write_sweep(tmp_path / "sweeps" / "toy", histories=False, evidence=False)
            with _storage_errors_as_problem(read_state(tmp_path / "sweeps" / "toy")):
                try:
                    raise error
                except type(error):
                    raise TuneError("Traceback ...")  # noqa: B904

        return fail

    def test_a_lasting_failure_is_one_problem_with_the_next_command(self, fail):
        with pytest.raises(ConfigError) as told:
            fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "history.jsonl"))
        (problem,) = told.value.problems
        assert problem.place == "history.jsonl"
        assert "its storage failed (No space left on device)" in problem.rule
        assert "`tune-dml resume toy`" in problem.remedy

    @pytest.mark.parametrize("error", [ValueError("a bug"), ConnectionResetError(104, "reset"), TimeoutError("of Ray")])
    def test_other_errors_stay(self, fail, error):
        with pytest.raises(TuneError):
            fail(error)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system of its own needs the right to mount: {mounted.stderr.decode().strip()}")
    yield place
    os.chdir("/")
    subprocess.run(["umount", "-l", place], check=True)


def begin(place, cache_dir, verb="sweep", says_in=None):
    words = [verb, sweep_file() if verb == "sweep" else "toy", "--cache-dir", cache_dir]
    words += ["--name", "toy"] if verb == "sweep" else []
    return SweepProcess(words, place / "sweeps" / "toy", says_in=says_in)


def fill(disk):
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"0" * size)
            except OSError:
                continue


def wait_for_words(run, words, seconds=90):
    deadline = time.monotonic() + seconds
    while words not in run.read_output():
        assert time.monotonic() < deadline, run.read_output()
        assert run.process.poll() is None, run.read_output()
        time.sleep(0.1)


@pytest.mark.slow
def test_trials_wait_for_space_on_a_full_disk(small_disk, monkeypatch, undisturbed, found, cache_dir):
    """The disk has results, MLflow's store, the sync state and the sweep's output."""
    monkeypatch.chdir(small_disk)
    sweep = begin(small_disk, cache_dir)
    sweep.wait_until(sweep.in_the_middle)
    fill(small_disk)
    threading.Event().wait(8)  # every trial and the driver want to write by now
    assert sweep.process.poll() is None
    (small_disk / "filler").unlink()
    after = sweep.finish(undisturbed)
    assert {event.kind for event in read_events(sweep.folder)} >= {"session", "ended"}
    found("the disk of results and MLflow is full for 8 s", after)


@pytest.mark.slow
def test_a_sweep_waits_if_the_disk_is_full_when_tune_starts(small_disk, tmp_path, undisturbed, cache_dir):
    """Tune writes a file before the first trial."""
    sweep = begin(tmp_path, cache_dir)
    sweep.wait_until(sweep.in_the_middle)
    sweep.stop()
    shutil.rmtree(sweep.folder / "ray", ignore_errors=True)
    (sweep.folder / "ray").symlink_to(small_disk)
    fill(small_disk)
    again = begin(tmp_path, cache_dir, "resume")
    wait_for_words(again, "/ray: ")
    (small_disk / "filler").unlink()
    assert again.final_table() == undisturbed


@pytest.mark.slow
def test_a_removed_working_directory_does_not_affect_table_and_report(
    tmp_path, monkeypatch, undisturbed, found, cache_dir
):
    """Results and MLflow's store are in other folders."""
    desk = tmp_path / "desk"
    desk.mkdir()
    monkeypatch.chdir(desk)
    words = ["sweep", sweep_file(), "--name", "toy", "--cache-dir", cache_dir, "--storage", tmp_path / "sweeps"]
    words += ["--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    sweep = SweepProcess(words, tmp_path / "sweeps" / "toy")
    sweep.wait_until(sweep.in_the_middle)
    shutil.rmtree(desk)
    monkeypatch.chdir(tmp_path)  # this process reads MLflow's store, the sweep's own stays without a folder
    after = sweep.finish(undisturbed)
    assert (sweep.folder / "report" / "report.html").exists()
    found("the working directory is removed, storage and MLflow elsewhere", after)


@pytest.mark.slow
def test_a_sweep_waits_for_storage_that_disappears(tmp_path, undisturbed, found, cache_dir):
    """An empty folder takes its place, as below a mount; no new sweep may start in it."""
    sweep = begin(tmp_path, cache_dir)
    sweep.wait_until(sweep.in_the_middle)
    place, away = tmp_path / "sweeps", tmp_path / "away"
    place.rename(away)
    place.mkdir()
    wait_for_words(sweep, WAITED)
    threading.Event().wait(4)
    left = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    shutil.rmtree(place)
    away.rename(place)
    after = sweep.finish(undisturbed)
    assert not [name for name in left if "/ray/" not in name]  # except Tune's state files, which nothing reads
    found("the storage disappears for 4 s and returns", after)


@pytest.mark.slow
def test_a_moved_folder_is_not_created_again_and_resumes_under_its_new_name(tmp_path, undisturbed, cache_dir):
    sweep = begin(tmp_path, cache_dir)
    sweep.wait_until(sweep.in_the_middle)
    moved = sweep.folder.rename(tmp_path / "sweeps" / "moved")
    wait_for_words(sweep, WAITED)
    os.kill(sweep.pid, signal.SIGINT)
    assert sweep.end(seconds=90) == 1
    assert f"{sweep.folder}: the sweep's folder was moved or deleted while it ran" in sweep.read_output()
    assert not sweep.folder.exists()
    assert SweepProcess(["resume", "moved", "--cache-dir", cache_dir], moved).final_table() == undisturbed


@pytest.mark.slow
def test_a_deleted_folder_of_all_trials_is_created_again(tmp_path, undisturbed, cache_dir):
    sweep = begin(tmp_path, cache_dir)
    sweep.wait_until(sweep.in_the_middle)
    trials = sweep.folder / "trials"
    gone = trials.rename(tmp_path / "gone")  # a running trial writes into the folder, so `rmtree` may miss a file
    shutil.rmtree(gone, ignore_errors=True)
    assert sweep.final_table() == undisturbed


@pytest.mark.slow
def test_a_deleted_lock_and_a_replaced_ledger_change_nothing(tmp_path, undisturbed, found, cache_dir):
    """A lock looks stale to people; editors and backups replace a file."""
    sweep = begin(tmp_path, cache_dir)
    sweep.wait_until(sweep.in_the_middle)
    (sweep.folder / "lock").unlink()
    shutil.copy(sweep.folder / "ledger.jsonl", tmp_path / "copy")
    (tmp_path / "copy").rename(sweep.folder / "ledger.jsonl")
    sweep.wait_until(lambda: len(sweep.events("ended")) > 1)  # the driver notices at its next event
    os.kill(sweep.driver, signal.SIGSTOP)  # it holds the sweep for as long as the second one looks
    second = begin(tmp_path, cache_dir, "resume")
    assert second.end() == 1
    os.kill(sweep.driver, signal.SIGCONT)
    assert "one process at a time may run a sweep" in second.read_output()
    found("the lock is deleted and the ledger replaced by its copy", sweep.finish(undisturbed))


@pytest.mark.slow
def test_read_only_storage_is_refused_before_the_start(small_disk, tmp_path, undisturbed, found, cache_dir):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    words = ["sweep", sweep_file(), "--name", "toy", "--cache-dir", cache_dir, "--storage", small_disk / "sweeps"]
    refused = SweepProcess(words, small_disk / "sweeps" / "toy", says_in=tmp_path)
    assert refused.end() == 1
    assert "Traceback" not in refused.read_output()
    assert "--storage" in refused.read_output()
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    again = SweepProcess(words, small_disk / "sweeps" / "toy", says_in=tmp_path)
    after = again.finish(undisturbed)
    found("read-only storage: refused before anything begins; then mounted for writing", after)


@pytest.mark.slow
def test_a_full_cache_disk_is_refused_before_the_start(small_disk, tmp_path, undisturbed, found):
    """The cache can be moved, so the sweep does not wait for this disk, and keeps 64 MB of it free."""
    fill(small_disk)
    refused = begin(tmp_path, small_disk / "cache")
    assert refused.end() == 1
    assert "Traceback" not in refused.read_output()
    assert "--cache-dir" in refused.read_output()
    assert not refused.folder.exists()
    subprocess.run(["mount", "-o", "remount,size=100m", small_disk], check=True)
    after = begin(tmp_path, small_disk / "cache").finish(undisturbed)
    found("the disk of the cache is full: refused before anything begins; then room is made", after)


@pytest.mark.slow
def test_a_full_disk_keeps_the_old_report_and_is_reported(small_disk, command_line):
    write_sweep(small_disk / "toy")
    assert command_line("report", "toy", "--storage", small_disk)[0] == 0
    folder = small_disk / "toy" / "report"
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    fill(small_disk)
    code, _, said = command_line("report", "toy", "--storage", small_disk, "--margin", "2")
    assert (code, said) == (1, f"{folder / 'report.html'}: {os.strerror(errno.ENOSPC)}\n")
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


@pytest.mark.slow
def test_a_clock_set_back_a_day_changes_no_result(tmp_path, undisturbed, found, cache_dir):
    """Events written before the jump have times in the future."""
    MlflowClient("sqlite:///mlflow.db").search_experiments()  # makes its tables: quick trials may end before they exist
    sweep = begin(tmp_path, cache_dir)
    sweep.wait_until(sweep.in_the_middle)
    os.kill(sweep.driver, signal.SIGSTOP)
    sweep.stop()
    for path in [sweep.folder / "ledger.jsonl", *sweep.folder.glob("trials/*/history.jsonl")]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, "time": row["time"] + 86_400}) + "\n" for row in rows))
    with sqlite3.connect("mlflow.db") as database:  # MLflow knows a row by its time, among others
        for rows in ("metrics", "latest_metrics"):
            database.execute(f"UPDATE {rows} SET timestamp = timestamp + 86400000")  # noqa: S608 - names of ours
    since = time.time()
    row = begin(tmp_path, cache_dir, "resume").finish(undisturbed, since + 86_000)
    found("the clock jumps back by a day; then resume", {**row, "seconds": 0.0})
