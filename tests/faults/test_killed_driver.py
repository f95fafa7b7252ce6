"""kill -9 of the driver in the middle of a sweep: nothing is lost, nothing is done twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.stored_runs import StoredRuns

from tune_dml.record.ledger import read_events, read_history
from tune_dml.record.results import results_of

STEPS, EVERY = 120, 20
COMMAND = [sys.executable, "-m", "tune_dml.cli"]
SWEEP = f"""
method: grid
parameters: {{regularizer.rho: {{values: [0.01, 0.1, 0.5, 0.9]}}}}
dataset: digits
seeds: 1
fixed: {{regularizer.name: sec, regularizer.eta: 0.5, training.steps: {STEPS}, training.eval_every: {EVERY}}}
"""


def four_trials():
    Path("four_trials.yaml").write_text(SWEEP)
    return "four_trials.yaml"


def start(*arguments, cache_dir):
    return subprocess.Popen(
        [*COMMAND, *arguments, "--cache-dir", str(cache_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_until(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_driver_resumes_where_it_was(cache_dir):
    folder = Path.cwd() / "sweeps" / "killed"
    process = start("sweep", four_trials(), "--name", "killed", cache_dir=cache_dir)

    def in_the_middle():
        events = read_events(folder)
        ended = {event.key for event in events if event.kind == "ended"}
        begun = {event.key for event in events if event.kind == "started"} - ended
        return len(ended) >= 1 and any((folder / "trials" / key / "checkpoint.pt").exists() for key in begun)

    wait_until(in_the_middle, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = read_events(folder)
    done = {event.key for event in before if event.kind == "ended"}
    begun = {event.key for event in before if event.kind == "started"} - done
    reached = {key: max((row["step"] for row in read_history(folder, key)), default=0) for key in begun}

    process = start("resume", "killed", cache_dir=cache_dir)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output

    after = read_events(folder)[len(before) :]
    started = [event.key for event in after if event.kind == "started"]
    results = results_of(folder)
    assert {trial.status for trial in results.trials} == {"finished"}
    assert not set(started) & done
    assert len(started) == len(set(started)) == 4 - len(done)
    for trial in results.trials:
        steps = [row["step"] for row in read_history(folder, trial.key)]
        assert steps == sorted(set(steps))
        assert steps[-1] == STEPS
    assert any(reached.values())
    for key in begun:
        attempts = next(trial.attempts for trial in results.trials if trial.key == key)
        assert attempts == 2

    seen = StoredRuns(f"sqlite:///{Path.cwd()}/mlflow.db", "killed")
    assert set(seen.by_key) == {trial.key for trial in results.trials}
    assert {run.info.status for run in seen.runs} == {"FINISHED"}
    for run in seen.children:
        assert [step for step, _, _ in seen.history(run)] == list(range(EVERY, STEPS + 1, EVERY))


def test_an_interrupted_sweep_says_how_to_continue(cache_dir):
    process = start("sweep", four_trials(), "--name", "cut", cache_dir=cache_dir)
    folder = Path.cwd() / "sweeps" / "cut"
    wait_until(lambda: any(event.kind == "started" for event in read_events(folder)), process)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "tune-dml resume cut" in output
