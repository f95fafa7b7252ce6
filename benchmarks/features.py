"""Trials a minute of heads on stored features: this project beside plain Ray Tune, Optuna with joblib, and a bare pool.

    python benchmarks/features.py [--trials 60] [--steps 400]

A trial is `trainables.training.train` of a linear head with batches of 90, its evaluation on validation and test classes
included. The *floor* is a pool of processes that are there already, as many as cores; it runs before and after each of the
others, and each is compared with the mean of the two. Ours is a whole sweep with ledger and MLflow, from the first trial's
start to the last one's end; start and report are printed beside it. A *bare loop* is the head's steps alone: no
evaluation, no files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
sys.path.append(str(Path(__file__).parents[1] / "tests"))

SLOTS = len(os.sched_getaffinity(0))
SWEEP = """
parameters: {{loss.scale: {{values: {values}}}}}
metric: {{name: val/recall_at_1, goal: maximize}}
dataset: features
data_root: {root}
seeds: 5
fixed: {{loss.name: npair, batch.batch_size: 90, training.steps: {steps}, training.eval_every: {steps}}}
"""


def config_of(root: str, number: int, steps: int) -> Any:
    from search_spaces.protocols.features import FEATURES_TRIPLET
    from trainables.resolve import Layer, resolve

    own = {"data.name": "features", "data.root": root, "loss.name": "npair", "batch.instances_per_class": 2}
    length = {"batch.batch_size": 90, "training.steps": steps, "training.eval_every": steps}
    layers = Layer("protocol", {**FEATURES_TRIPLET.settings, **own}), Layer("own", {**length, "loss.scale": 5 + number})
    return resolve(*layers, Layer("seed", {"seed": number % 5})).config


def trial(root: str, number: int, steps: int) -> float:
    import torch

    from trainables.context import FolderContext
    from trainables.training import train

    with tempfile.TemporaryDirectory() as folder:
        context = FolderContext(Path(folder) / "trial", torch.device("cpu"))
        return train(config_of(root, number, steps), context).metrics["val/recall_at_1"]


def loop(root: str, number: int, steps: int) -> float:
    """Take the steps of a trial, and nothing else."""
    import torch

    from trainables.context import FolderContext
    from trainables.tasks import build_learner

    torch.set_num_threads(1)
    learner = build_learner(config_of(root, number, steps), FolderContext(Path("loop") / "t", torch.device("cpu")))
    features = torch.from_numpy(learner.pictures.images.rows.astype("float32"))[learner.split.train]
    labels = torch.from_numpy(learner.train_labels)
    head = torch.nn.Linear(features.shape[1], 64)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, fused=True)
    for step in range(steps):
        batch = torch.from_numpy(learner.sampler.batch(step))
        optimizer.zero_grad()
        value = learner.loss(head(features[batch]), labels[batch])
        value.backward()
        optimizer.step()
    return float(value.detach())


def pooled(pool: ProcessPoolExecutor, work: Callable[..., float], root: str, trials: int, steps: int) -> float:
    begun = time.perf_counter()
    list(pool.map(work, [root] * trials, range(trials), [steps] * trials))
    return time.perf_counter() - begun


def by_tune(root: str, trials: int, steps: int) -> float:
    import ray
    from ray import tune

    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    def function(config: dict[str, int]) -> None:
        tune.report({"value": trial(root, config["number"], steps)})

    begun = time.perf_counter()
    tune.Tuner(
        tune.with_resources(function, {"cpu": 1}),
        param_space={"number": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(Path("tune").absolute()), verbose=0),
    ).fit()
    seconds = time.perf_counter() - begun
    ray.shutdown()
    return seconds


def by_optuna(root: str, trials: int, steps: int) -> float:
    """Run one study in as many processes as cores, joined by joblib, in a SQLite storage."""
    import joblib
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage="sqlite:///optuna.db", direction="maximize")

    def some(count: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        mine = optuna.load_study(study_name=study.study_name, storage="sqlite:///optuna.db")
        mine.optimize(lambda asked: trial(root, asked.suggest_int("number", 0, trials), steps), n_trials=count)

    begun = time.perf_counter()
    joblib.Parallel(SLOTS)(joblib.delayed(some)(trials // SLOTS) for _ in range(SLOTS))
    return time.perf_counter() - begun


def by_us(root: str, trials: int, steps: int) -> tuple[float, float]:
    """Return the seconds from the first start to the last end in the ledger, and those of the whole command."""
    from tune_dml.record.ledger import read_events

    values = [5 + number for number in range(trials // 5)]
    Path("heads.yaml").write_text(SWEEP.format(values=values, root=root, steps=steps))
    begun = time.perf_counter()
    command = [sys.executable, "-m", "tune_dml.cli", "sweep", "heads.yaml", "--tracking-uri", "sqlite:///mlflow.db"]
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - begun
    times = [event.time for event in read_events(Path("sweeps/heads")) if event.kind in {"started", "ended"}]
    return max(times) - min(times), whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    root, trials, steps = str(Path("store").absolute()), asked.trials // 10 * 10, asked.steps
    from helpers.features import stored

    stored(Path(root), classes=200, each=20, dimension=64)
    with ProcessPoolExecutor(SLOTS, mp_context=get_context("spawn")) as pool:
        pooled(pool, trial, root, SLOTS, 20)  # imports
        floors, rows = [pooled(pool, trial, root, trials, steps)], []
        bare = pooled(pool, loop, root, trials, steps)
        peers: dict[str, Callable[[], float]] = {
            "plain Ray Tune, reuse_actors": lambda: by_tune(root, trials, steps),
            "Optuna with joblib": lambda: by_optuna(root, trials, steps),
        }
        for name, run in peers.items():
            rows.append((name, run()))
            floors.append(pooled(pool, trial, root, trials, steps))
        ours, whole = by_us(root, trials, steps)
        rows += [("tune-dml, ledger and MLflow", ours), ("the same, with start and report", whole)]
        floors.append(pooled(pool, trial, root, trials, steps))
    print(f"{trials} trials of {steps} steps, {SLOTS} slots; load {os.getloadavg()[0]:.1f}")
    print(f"{'':34s} trials/min   share of the floor")
    print(f"{'bare loop of the steps alone':34s} {60 * trials / bare:10.0f}")
    print(f"{'floor: bare trials in a pool':34s} {60 * trials * len(floors) / sum(floors):10.0f}")
    around = [(1, 0), (2, 1), (3, 2), (3, 2)]
    for (name, seconds), (after, before) in zip(rows, around, strict=True):
        share = (floors[after] + floors[before]) / 2 / seconds
        print(f"{name:34s} {60 * trials / seconds:10.0f}   {share:.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        main()
