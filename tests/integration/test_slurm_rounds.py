"""Rounds of an array as the batch scripts run them, process by process, with a stand-in for SLURM's programs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tune_dml.record.state import read_state
from tune_dml.running.slurm.script import ROUND_FOLLOWS
from tune_dml.running.slurm.task import Round

PROGRAM = """
import argparse
import tune_dml

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
own = parser.parse_args()
tune_dml.log(step=1, acc=own.lr + own.seed)
"""


SEARCH = """
program: train.py
method: bayes
run_cap: 12
metric: {name: acc, goal: maximize}
parameters:
  lr: {min: 0.1, max: 1.0}
seeds: 1
margin: 0.01
"""
COMMAND = "python train.py --lr {lr} --seed {seed}"
OPTIONS = ("--param", "lr=0.1,0.2", "--metric", "acc", "--goal", "maximize", "--margin", "0.05")
pytestmark = pytest.mark.slow


class Arrays:
    """A sweep submitted as arrays."""

    def __init__(self, place, *words):
        self.place, self.folder = place, place / "sweeps" / "rows"
        for name in ("sbatch", "squeue", "scontrol"):
            (place / "bin").mkdir(exist_ok=True)
            (place / "bin" / name).write_text(f"#!/bin/bash\n{'echo 101' if name == 'sbatch' else ':'}\n")
            (place / "bin" / name).chmod(0o755)
        here = os.environ
        self.environment = {**here, "PATH": f"{place / 'bin'}:{here['PATH']}", "XDG_STATE_HOME": str(place / "state")}
        self.submit(*words, "--name", "rows")

    def submit(self, *words):
        self.run("tune_dml.cli", "submit", "slurm", "--array", "--group", 4, "--", *words)

    def start(self, *words):
        return subprocess.Popen(
            [sys.executable, "-m", *map(str, words)],
            cwd=self.place, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *words, expected=0):
        process = self.start(*words)
        printed = process.communicate()[0]
        assert process.returncode == expected, printed
        return printed

    def collect(self, expected=ROUND_FOLLOWS):
        return self.run("tune_dml.running.slurm", "collect", self.folder, expected=expected)

    def task(self, number):
        self.run("tune_dml.running.slurm", "task", self.folder, number)

    def tasks(self):
        return range(len(Round.read(self.folder).groups))

    def ends(self):
        state = read_state(self.folder)
        return [state.trial(key).end for key in state.trials]


def test_an_array_runs_a_program_as_a_trial(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    arrays = Arrays(tmp_path, "sweep", "--command", COMMAND, *OPTIONS, "--seeds", 2)
    assert "4 trials follow in the next array" in arrays.collect()
    arrays.task(0)
    assert "lr matters" in arrays.collect(expected=0)
    assert sorted(end.metrics["acc"] for end in arrays.ends()) == [0.1, 0.2, 1.1, 1.2]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_task_out_of_time_continues_in_the_next_array(tmp_path, number):
    words = ("--dataset", "digits", "--set", "training.steps=20000", "--set", "training.eval_every=10")
    arrays = Arrays(tmp_path, "sweep", "sec_rho", "--seeds", 2, *words)
    arrays.collect()
    process = arrays.start("tune_dml.running.slurm", "task", arrays.folder, 0)
    logs = arrays.folder / "trials"
    while process.poll() is None and not any('"rows"' in log.read_text() for log in logs.glob("*/array.jsonl")):
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait() == 130
    (log,) = logs.glob("*/array.jsonl")
    messages = [json.loads(line) for line in log.read_text().splitlines()]
    assert "cut" in str(messages[-1])
    assert not any("ended" in str(message) for message in messages)
    arrays.collect()
    assert log.parent.name in {trial["key"] for group in Round.read(arrays.folder).groups for trial in group}
    with log.open("a") as file:
        file.write(
            json.dumps({"began": {"host": "n1", "time": time.time()}}) + "\n" + json.dumps({"cut": time.time()}) + "\n"
        )
    assert "ended before any evaluation" in arrays.collect(expected=130)
    arrays.submit("resume", "rows")
    arrays.collect()  # the user has requested more


def test_jobs_share_a_budget_and_a_spent_budget_collects_the_last_array(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    limits = ("--gpu-hours", "1", "--time-budget", "7200")
    arrays = Arrays(tmp_path, "sweep", "--command", COMMAND, *OPTIONS, "--seeds", 4, *limits)
    arrays.collect()
    round_ = Round.read(arrays.folder)
    assert (round_.seconds, round_.until > time.time() + 7000) == (3600, True)
    arrays.task(0)
    log = arrays.folder / "trials" / round_.groups[1][0]["key"] / "array.jsonl"
    log.parent.mkdir()
    began = time.time()
    lines = ({"began": {"host": "n1", "time": began}}, {"cut": began + 3601.0})
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = arrays.collect(expected=130)
    assert "stopped after 1.00 of 1 hours, resumable" in said
    assert sum(end is not None for end in arrays.ends()) == 4
    arrays.submit("resume", "rows")  # without a budget: those of the first command do not apply
    arrays.collect()


@pytest.mark.parametrize(
    ("words", "trials"),
    [(("sweep.yaml",), 12), (("--command", COMMAND, *OPTIONS, "--seeds", 2, "--until-decided", "--max-seeds", 4), 8)],
)
def test_searches_and_races_continue_after_each_array_and_are_judged_at_the_end(tmp_path, words, trials):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "sweep.yaml").write_text(SEARCH)
    arrays = Arrays(tmp_path, "sweep", *words)
    rounds = 0
    while (process := arrays.start("tune_dml.running.slurm", "collect", arrays.folder)).wait() == ROUND_FOLLOWS:
        rounds += 1
        for number in arrays.tasks():
            arrays.task(number)
    printed = process.stdout.read()
    assert process.returncode == 0, printed
    assert rounds > 1
    assert "no trial can be proposed" not in printed
    assert "Not judged yet" not in printed
    assert len(arrays.ends()) == trials
