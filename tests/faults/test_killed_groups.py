"""Groups of short trials survive killed workers and drivers with the same numbers."""

import os
import signal
import time
from pathlib import Path

import pytest
import ray
from helpers.features import stored
from helpers.sweeps import SweepProcess, outcome, table

from tune_dml.record.ledger import read_events
from tune_dml.running.recorder import Recorder
from tune_dml.running.search.groups import TrialGroups

SWEEP = """
parameters: {{loss.scale: {{values: [5, 15, 25]}}}}
metric: {{name: val/recall_at_1, goal: maximize}}
dataset: features
data_root: {root}
seeds: {seeds}
fixed:
  loss.name: npair
  batch.batch_size: 12
  model.embedding_dim: 8
  training.steps: {steps}
  training.eval_every: {steps}
  data.validation_fraction: 0.4
"""


def sweep_file(seeds, steps=10):
    root = Path("toy.features")
    if not root.exists():
        stored(root)
    Path("toy.yaml").write_text(SWEEP.format(root=root.absolute(), seeds=seeds, steps=steps))
    return "toy.yaml"


@pytest.mark.slow
def test_a_lost_worker_changes_no_number_of_its_group(ray_session, new_database, command_line, cache_dir, monkeypatch):
    new_database(Path.cwd())
    told, hurt, groups = Recorder.on_trial_result, [], []

    def then_hurt(recorder, iteration, trials, trial, result, **info):
        told(recorder, iteration, trials, trial, result, **info)
        if '"several"' in result["message"] and '"over"' not in result["message"] and not hurt:
            _, pid = ray.get(trial.temporary_state.ray_actor.get_current_ip_pid.remote())
            hurt.append(time.time())
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Recorder, "on_trial_result", then_hurt)
    requeue = TrialGroups.requeue

    def requeue_recorded(self, keys, *, alone):
        groups.append(kept := list(keys))
        return requeue(self, kept, alone=alone)

    def run(name):
        words = ["--name", name, "--max-concurrent", 1, "--cache-dir", cache_dir]
        code, output, error = command_line("sweep", sweep_file(12, steps=100), *words)
        assert code == 0, output + error

    monkeypatch.setattr(TrialGroups, "requeue", requeue_recorded)
    run("hurt")
    monkeypatch.setattr(Recorder, "on_trial_result", told)
    monkeypatch.setattr(TrialGroups, "_size", lambda self: 1)
    run("alone")
    folder = Path("sweeps/hurt")
    assert table(folder) == table(Path("sweeps/alone"))
    events = read_events(folder)
    assert len([event for event in events if event.kind == "retry"]) == 1
    assert groups, "nothing was handed back"
    found = outcome(folder, hurt[0])
    assert (found["finished"], found["lost"], found["doubled"]) == (36, 0, 0)


@pytest.mark.slow
def test_a_killed_driver_continues_with_unfinished_trials(tmp_path, cache_dir, found):
    words = ["sweep", sweep_file(40), "--cache-dir", cache_dir, "--name"]
    undisturbed = SweepProcess([*words, "undisturbed"], tmp_path / "sweeps" / "undisturbed").final_table()
    sweep = SweepProcess([*words, "toy"], tmp_path / "sweeps" / "toy")
    sweep.wait_until(lambda: len(sweep.events("ended")) > 20)
    os.kill(sweep.driver, signal.SIGKILL)
    found("kill -9 of the driver of heads on features (120 trials in groups)", sweep.finish(undisturbed))
