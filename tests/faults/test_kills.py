"""Kill real processes at several points of a sweep: its table equals that of an undisturbed run."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.sweeps import SweepProcess, outcome, sweep_file, table

from tune_dml.record.ledger import read_history
from tune_dml.record.results import results_of

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path, cache_dir):
    runs = []

    def start(*flags):
        words = ["sweep", sweep_file(), "--name", "toy", "--cache-dir", cache_dir, *flags]
        runs.append(SweepProcess(words, tmp_path / "sweeps" / "toy"))
        return runs[-1]

    yield start
    for each in runs:
        each.stop()


@pytest.fixture
def sweep(run):
    """A sweep of which one trial has ended and another has a checkpoint."""
    sweep = run()
    sweep.wait_until(sweep.in_the_middle)
    return sweep


@pytest.fixture
def resume(cache_dir):
    return lambda sweep: SweepProcess(["resume", "toy", "--cache-dir", cache_dir], sweep.folder)


def kill(*pids, number=signal.SIGKILL):
    assert pids
    for pid in pids:
        os.kill(pid, number)


def in_a_trial(sweep):
    """Return a process that trains; one between two trials has nothing to repeat."""
    sweep.wait_until(lambda: sweep.find("ray::ImplicitFunc.train"))
    return sweep.find("ray::ImplicitFunc.train")[0]


FAULTS = {
    "a trial's worker": lambda run: kill(in_a_trial(run)),
    "the sweep's driver": lambda run: kill(run.driver),
    "the raylet of the driver": lambda run: kill(*run.find("raylet/raylet --raylet")),
    "the GCS": lambda run: kill(*run.find("gcs/gcs_server")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sweep_continues_after_a_kill(sweep, undisturbed, found, fault):
    FAULTS[fault](sweep)
    after = sweep.finish(undisturbed)
    # That the raylet or the GCS is gone a trial may hear of only after its end.
    assert sweep.events("retry") or fault != "a trial's worker"
    found(f"kill -9 of {fault}", after)


@pytest.mark.parametrize("frozen", ["raylet/raylet --raylet", "gcs/gcs_server"], ids=["raylet", "GCS"])
def test_a_frozen_process_is_replaced(sweep, undisturbed, found, frozen, request):
    """Ray itself waits for these processes without limit, when it starts a process or shuts down."""
    kill(*sweep.find(frozen), number=signal.SIGSTOP)
    found(f"SIGSTOP of the {request.node.callspec.id}, for good", sweep.finish(undisturbed))


POINTS = {
    "before the first trial": lambda run: bool(run.events("session")),
    "as a trial begins": lambda run: bool(run.events("started")),
    "as a trial's end is written": lambda run: bool(run.events("ended")),
    "as the last trial has ended": lambda run: len(run.events("ended")) == 4,
    "while the report is written": lambda run: (run.folder / "report").exists(),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_can_die_at_any_point(run, undisturbed, found, point):
    sweep = run()
    sweep.wait_until(lambda: POINTS[point](sweep))
    kill(sweep.driver)
    after = sweep.finish(undisturbed)
    assert (sweep.folder / "report" / "report.html").exists()
    found(f"kill -9 of the sweep's driver {point}", after)


SEARCH = """
method: random
metric: {goal: maximize, name: val/recall_at_1}
parameters: {regularizer.rho: {min: 0.01, max: 0.9}}
run_cap: 4
dataset: digits
seeds: 1
fixed: {regularizer.name: sec, regularizer.eta: 0.5, training.steps: 120, training.eval_every: 20}
"""


def test_the_driver_dies_between_a_proposal_and_its_trial(tmp_path, cache_dir, found):
    """A recorded proposal without a trial is neither repeated nor replaced."""
    Path("search.yaml").write_text(SEARCH)
    words = ["sweep", "search.yaml", "--cache-dir", cache_dir, "--name"]
    undisturbed = SweepProcess([*words, "undisturbed"], tmp_path / "sweeps" / "undisturbed")
    expected = undisturbed.final_table()
    sweep = SweepProcess([*words, "toy"], tmp_path / "sweeps" / "toy")
    sweep.wait_until(lambda: stopped_with_a_new_proposal(sweep))
    kill(sweep.driver)
    after = sweep.finish(expected)
    assert [event.body() for event in sweep.events("cell")] == [event.body() for event in undisturbed.events("cell")]
    found("kill -9 of the sweep's driver between a proposal and its trial (random search)", after)


def stopped_with_a_new_proposal(sweep):
    """Freeze the driver if it has proposed more cells than it started; else let it continue."""
    if not sweep.events("cell"):
        return False
    kill(sweep.driver, number=signal.SIGSTOP)
    if len(sweep.events("cell")) > len({event.key for event in sweep.events("started")}):
        return True
    kill(sweep.driver, number=signal.SIGCONT)
    return False


def test_the_driver_dies_before_the_last_sync_to_mlflow(run, undisturbed, found):
    """All trials have ended, but a locked database keeps the last of them from MLflow."""
    sweep = run()
    sweep.wait_until(lambda: len(sweep.events("ended")) >= 3)
    database = sqlite3.connect(Path.cwd() / "mlflow.db", isolation_level=None, timeout=60)
    database.execute("BEGIN IMMEDIATE")
    sweep.wait_until(lambda: len(sweep.events("ended")) == 4)
    threading.Event().wait(3)  # Ray is left, and nothing but the last sync is under way
    kill(sweep.driver)
    since = time.time()
    database.close()
    found("kill -9 of the sweep's driver during the last sync", sweep.finish(undisturbed, since))


def test_one_of_two_launchers_runs_the_sweep(run, undisturbed, found):
    since = time.time()
    both = [run(), run()]
    codes = [sweep.end() for sweep in both]
    assert sorted(codes) == [0, 1], [sweep.read_output() for sweep in both]
    assert "one process at a time may run a sweep" in both[codes.index(1)].read_output()
    assert table(both[0].folder) == undisturbed
    found("two launchers of one sweep at the same time", outcome(both[0].folder, since))


@pytest.mark.parametrize(
    ("signals", "fault"),
    [([signal.SIGTERM], "SIGTERM, as a spot machine gets it"), ([signal.SIGINT] * 2, "SIGINT twice")],
    ids=["SIGTERM", "Ctrl-C twice"],
)
def test_a_signalled_sweep_ends_cleanly_and_resumes(sweep, undisturbed, found, resume, signals, fault):
    since = time.time()
    for number in signals:
        kill(sweep.pid, number=number)
        time.sleep(0.3)  # as a hand does it
    assert sweep.end(seconds=60) == 130, sweep.read_output()
    assert "Traceback" not in sweep.read_output()
    assert "Continue with: tune-dml resume toy" in sweep.read_output()
    found(f"{fault}; then resume", resume(sweep).finish(undisturbed, since))


def test_a_hanging_trial_is_killed_and_retried(run, undisturbed, found):
    sweep = run("--stall-limit", "10", "--start-limit", "60")  # the stopped process may be about to begin a trial
    sweep.wait_until(sweep.in_the_middle)
    kill(in_a_trial(sweep), number=signal.SIGSTOP)
    after = sweep.finish(undisturbed)
    assert re.search(r"stalled: no .*step .*retrying from the checkpoint", sweep.read_output())
    found("SIGSTOP of a trial's worker, --stall-limit 10", after)


def test_a_corrupt_ledger_line_and_a_second_launcher_are_reported(sweep, undisturbed, found, resume):
    kill(sweep.driver, number=signal.SIGSTOP)  # it holds the sweep for as long as the second one looks
    second = resume(sweep)
    assert second.end() == 1
    assert "one process at a time may run a sweep" in second.read_output()
    since = time.time()
    sweep.stop()
    lines = (sweep.folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    spoilt = next(line for line in lines if b'"ended"' in line)
    damaged = b"".join(b"\x00" * 40 + b"\n" if line == spoilt else line for line in lines) + b'{"kind": "st'
    (sweep.folder / "ledger.jsonl").write_bytes(damaged)
    (sweep.folder / "lock").write_text("1")  # a stale one, of a process that lives but does not hold it
    again = resume(sweep)
    after = again.finish(undisturbed, since)
    assert "cannot be read" in again.read_output()
    assert (sweep.folder / "ledger.unreadable").exists()
    found("zeros in the ledger's middle, a torn end, a stale lock; then resume", after)


IN_A_GROUP = {
    "one of two DDP workers": "ray::RayTrainWorker",
    "the driver of a trial of two DDP workers": "ray::ImplicitFunc",
    "the dashboard": "dashboard/dashboard.py",
}


@pytest.mark.parametrize("victim", IN_A_GROUP)
def test_a_group_of_workers_continues(tmp_path, cache_dir, found, victim):
    words = ["sweep", sweep_file((0.1, 0.5), steps=200), "--name", "toy", "--cache-dir", cache_dir, "--workers", "2"]
    sweep = SweepProcess(words, tmp_path / "sweeps" / "toy")
    sweep.wait_until(sweep.in_the_middle)
    kill(*sweep.find(IN_A_GROUP[victim])[:1])
    since = time.time()
    assert sweep.end() == 0, sweep.read_output()
    for trial in results_of(sweep.folder).trials:
        steps = [row["step"] for row in read_history(sweep.folder, trial.key)]
        assert sorted(set(steps)) == steps == sorted({*range(20, 201, 20), *range(25, 201, 25)})
    found(f"kill -9 of {victim} (two trials, engine train)", outcome(sweep.folder, since))


def test_workers_lost_at_their_start_free_their_placement_group(tmp_path, cache_dir, found):
    """Ray Train knows a placement group only after its workers started; a leaked one would block the next group."""
    words = ["sweep", sweep_file((0.1, 0.5), steps=40), "--name", "toy", "--cache-dir", cache_dir, "--workers", "2"]
    sweep = SweepProcess(words, tmp_path / "sweeps" / "toy")
    sweep.wait_until(lambda: sweep.find("ray::RayTrainWorker"))
    kill(*sweep.find("ray::ImplicitFunc")[:1])
    since = time.time()
    assert sweep.end(seconds=150) == 0, sweep.read_output()
    assert [trial.status for trial in results_of(sweep.folder).trials] == ["finished"] * 2
    fault = "kill -9 of a trial's driver as its two DDP workers begin (two trials, engine train)"
    found(fault, outcome(sweep.folder, since))


def eat_memory(limit, until):
    """Allocate 500 MB every 0.1 s in another program, until usage exceeds the limit by 1 GB."""
    code = "import sys\nheld = []\nwhile sys.stdin.read(1): held.append(b'x' * 500_000_000)"
    eater = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, bufsize=0)
    try:
        deadline = time.monotonic() + 20
        while not until():
            assert time.monotonic() < deadline, "Ray has ended no trial"
            if memory_in_use()[0] < limit + 0.5e9:
                eater.stdin.write(b".")
            time.sleep(0.1)
    finally:
        eater.kill()
        eater.wait()


def memory_in_use():
    """Return used and total bytes as Ray counts them: the container's if its limit is below the machine's."""
    used, total = _of_machine()
    in_container = _of_container()
    return in_container if in_container is not None and in_container[1] < total else (used, total)


def _of_machine():
    figures = _figures(Path("/proc/meminfo"))
    return 1024 * (figures["MemTotal"] - figures["MemAvailable"]), 1024 * figures["MemTotal"]


def _of_container(place=Path("/sys/fs/cgroup")):
    """Return both for the control group of either version, without file pages; None without a limit."""
    for limit, usage, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_"),
    ):
        if (place / limit).exists() and (most := (place / limit).read_text().strip()) != "max":
            figures = _figures((place / limit).with_name("memory.stat"))
            files = figures[f"{prefix}inactive_file"] + figures[f"{prefix}active_file"]
            return int((place / usage).read_text()) - files, int(most)
    return None


def _figures(file):
    words = (line.replace(":", " ").split() for line in file.read_text().splitlines())
    return {name: int(number) for name, number, *_ in words}


def test_memory_pressure_kills_a_trials_process_but_keeps_its_result(tmp_path, cache_dir, found):
    """Ray kills trials near its memory limit, here 5 GB above the present use."""
    words = ["sweep", sweep_file((0.1, 0.5), steps=1200, every=100), "--cache-dir", cache_dir]  # of some seconds
    quiet = SweepProcess([*words, "--name", "quiet"], tmp_path / "sweeps" / "quiet").final_table()
    used, total = memory_in_use()
    if total - used < 8e9:
        pytest.skip("too little memory is free to be eaten without harm to others")
    limit = used + 5e9
    monitor = {"RAY_memory_usage_threshold": f"{limit / total:.4f}", "RAY_memory_monitor_refresh_ms": "100"}
    sweep = SweepProcess([*words, "--name", "eaten"], tmp_path / "sweeps" / "eaten", monitor)
    sweep.wait_until(lambda: any(sweep.folder.glob("trials/*/checkpoint.pt")))
    since = time.time()
    eat_memory(limit, until=lambda: bool(sweep.events("retry")))
    found("another program eats the memory, Ray ends a trial's worker (two trials)", sweep.finish(quiet, since))
