"""Run a small sweep in a process, watch its ledger, inject faults and check the outcome."""

import json
import math
import os
import subprocess
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from helpers.clusters import COMMAND, children_of, command_of, kill
from helpers.stored_runs import StoredRuns
from tune_dml.record.ledger import read_events, read_history
from tune_dml.record.results import results_of


def sweep_file(values=(0.01, 0.1, 0.5, 0.9), seeds=1, steps=120, every=20):
    """Write a sweep file into the working directory and return its name."""
    text = f"""
method: grid
parameters: {{regularizer.rho: {{values: {list(values)}}}}}
dataset: digits
seeds: {seeds}
fixed: {{regularizer.name: sec, regularizer.eta: 0.5, training.steps: {steps}, training.eval_every: {every}}}
"""
    Path("toy.yaml").write_text(text)
    return "toy.yaml"


@dataclass
class SweepProcess:
    words: list[str]
    folder: Path
    environment: dict = field(default_factory=dict)
    says_in: Path | None = None
    """Folder of its output; beside the sweeps by default."""

    def __post_init__(self):
        place = self.says_in or self.folder.parent.parent
        place.mkdir(parents=True, exist_ok=True)
        self.output = place / f"{self.folder.name}-{time.monotonic_ns()}.out"
        with self.output.open("w") as file:
            command, environment = [*COMMAND, *map(str, self.words)], {**os.environ, **self.environment}
            both = {"stdout": file, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, env=environment, start_new_session=True, **both)
        self.pid = self.process.pid

    @property
    def driver(self):
        """Return the pid of the process that is connected to Ray."""
        (driver,) = [pid for pid in children_of(self.pid) if "tune_dml.cli" in command_of(pid)][:1]
        return driver

    def find(self, words):
        """Return pids of its Ray processes whose command line starts with these words."""
        return [pid for pid in children_of(self.pid) if words in command_of(pid)[:250]]

    def events(self, kind):
        return [event for event in read_events(self.folder) if event.kind == kind]

    def wait_until(self, condition, seconds=150):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)

    def in_the_middle(self):
        """Return whether one trial has ended and another has a checkpoint."""
        ended = {event.key for event in self.events("ended")}
        begun = {event.key for event in self.events("started")} - ended
        return bool(ended) and any((self.folder / "trials" / key / "checkpoint.pt").exists() for key in begun)

    def end(self, seconds=280):
        try:
            return self.process.wait(timeout=seconds)
        finally:
            self.stop()

    def final_table(self):
        """Wait for the end, which must be that of a whole sweep, and return the table."""
        assert self.end() == 0, self.read_output()
        return table(self.folder)

    def finish(self, expected, since=None):
        """Wait for the end, compare the table with the expected one, and return the outcome since the fault."""
        since = since or time.time()
        assert self.final_table() == expected
        return outcome(self.folder, since)

    def stop(self):
        kill([*children_of(self.pid), self.pid])
        self.process.wait()

    def read_output(self):
        return self.output.read_text()


def table(folder):
    """Return the results that no fault may change: cell, seed, status and every metric."""
    trials = results_of(folder).trials
    return [(trial.cell.label, trial.seed, trial.status, sorted(trial.metrics.items())) for trial in trials]


def repeated_steps(folder, key, events):
    """Return the steps that a trial repeated although a later evaluation was known, before its last checkpoint."""
    evaluations = [row for row in read_history(folder, key) if any(name.startswith("val/") for name in row)]
    rows = [(row["time"], int(row["step"])) for row in evaluations]
    mine = [event for event in events if event.key == key]
    starts = [event.time for event in mine if event.kind == "started"]
    again = 0
    for start, following in list(pairwise([*starts, math.inf]))[1:]:
        known = max((step for time_, step in rows if time_ < start), default=0)
        resumed = [event for event in mine if event.kind == "resumed" and start <= event.time < following]
        went_on = [event.body()["step"] for event in resumed]
        trained = any(start <= time_ < following for time_, _ in rows)
        if went_on or trained:  # else it was lost again before its first report
            again += max(known - max(went_on, default=0), 0)
    return again


def outcome(folder, since):
    """Return the row of docs/reliability.md; `seconds` is the time from `since` to the next event."""
    results, events = results_of(folder), read_events(folder)
    store = json.loads((folder / "mlflow.json").read_text())["uri"]
    seen = StoredRuns(store, folder.name)  # a doubled run is an error there
    assert set(seen.by_key) == {trial.key for trial in results.trials}
    rows = {run.data.tags["tune_dml.trial_key"]: [step for step, _, _ in seen.history(run)] for run in seen.children}
    doubled = sum(len(steps) - len(set(steps)) for steps in rows.values())
    begun = [event for event in events if event.kind == "started"]
    alive = [event.time for event in events if event.time > since and event.kind in {"started", "ended"}]
    return {
        "finished": results.count("finished"),
        "repeated": len(begun) - len({event.key for event in begun}),
        "lost": len(results.trials) - results.count("finished"),
        "doubled": doubled,
        "steps": sum(repeated_steps(folder, key, events) for key in {event.key for event in begun}),
        "seconds": round(min(alive) - since, 1) if alive else 0.0,
    }
