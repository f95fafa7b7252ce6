"""Trials a minute of heads on stored features: this project beside plain Ray Tune, Optuna with joblib, and a bare pool.

    python benchmarks/features.py [--trials 40] [--steps 400]      # some minutes
    python benchmarks/features.py --memory 3000                    # the driver's memory over as many trials of one step

A trial is `trainables.training.train` of a linear head with batches of 90 and its evaluation on validation classes; it
stores its head for the test. The *floor* is a pool of processes that are there already, as many as cores; it runs first
and last. Ours is a whole sweep with ledger and MLflow, from the first trial's start to the last one's end; start and
report are in a row of their own. A *bare loop* is the head's steps alone: no evaluation, no files. A busy machine spoils
the clock, so processor time is measured too: of all processes that a contender starts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
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
        context = FolderContext(Path(folder) / "trial", torch.device("cpu"), defers_test=True)
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
    """Return the times of the first start and the last end in the ledger."""
    from tune_dml.record.ledger import read_events

    values = [5 + number for number in range(trials // 5)]
    Path("heads.yaml").write_text(SWEEP.format(values=values, root=root, steps=steps))
    command = [sys.executable, "-m", "tune_dml.cli", "sweep", "heads.yaml", "--tracking-uri", "sqlite:///mlflow.db"]
    subprocess.run(command, check=True, capture_output=True)
    times = [event.time for event in read_events(Path("sweeps/heads")) if event.kind in {"started", "ended"}]
    return min(times), max(times)


class ProcessorTime(threading.Thread):
    """Adds up the processor time of this process and of all that it starts, also of those that Ray starts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._mark = f"FEATURES_BENCHMARK={os.getpid()}".encode()
        os.environ["FEATURES_BENCHMARK"] = str(os.getpid())
        self._ours = {str(os.getpid()): True}
        self._spent: dict[str, float] = {}
        self.history: list[tuple[float, float]] = []

    def run(self) -> None:
        """Sample five times a second."""
        while True:
            self.sample()
            time.sleep(0.2)

    def sample(self) -> float:
        """Return the seconds so far."""
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if process not in self._ours:
                    self._ours[process] = self._mark in Path(f"/proc/{process}/environ").read_bytes()
                if self._ours[process]:
                    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    self._spent[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except OSError:
                continue  # it has ended, or is another user's
        self.history.append((time.time(), sum(self._spent.values())))
        return self.history[-1][1]

    def between(self, first: float, last: float) -> float:
        """Return the seconds spent between two times."""
        times, totals = zip(*self.history, strict=True)
        return totals[min(bisect(times, last), len(totals) - 1)] - totals[max(bisect(times, first) - 1, 0)]


def driver_memory(root: str, trials: int) -> None:
    """Run a sweep of tiny trials, and print its driver's resident memory as they end."""
    values = [round(1 + number / 100, 2) for number in range(trials // 5)]
    Path("heads.yaml").write_text(SWEEP.format(values=values, root=root, steps=1))
    command = [sys.executable, "-m", "tune_dml.cli", "sweep", "heads.yaml", "--tracking-uri", "sqlite:///mlflow.db"]
    sweep = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    ledger, ended, read, seen = Path("sweeps/heads/ledger.jsonl"), 0, 0, list[tuple[int, int]]()
    while sweep.poll() is None:
        time.sleep(0.5)
        if ledger.exists():
            with ledger.open("rb") as file:
                file.seek(read)
                new = file.read()
            read, ended = read + len(new), ended + new.count(b'"kind":"ended"') + new.count(b'"kind": "ended"')
            seen.append((ended, max(map(_resident, _family(sweep.pid)), default=0)))
    begun = next((size for count, size in seen if count >= trials // 10), 0)
    last = max((size for count, size in seen if count < trials), default=0)
    for part in range(1, 11):
        size = next((size for count, size in seen if count >= trials * part // 10), 0)
        print(f"{trials * part // 10:8d} trials   {size / 2**20:6.0f} MB")
    print(f"{(last - begun) / (0.9 * trials) / 1000:.1f} kB a trial; exit code {sweep.returncode}")


def _family(pid: int) -> list[int]:
    """Return a process and its children: the sweep's driver is a child of its supervisor."""
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, tasks.read_text().split())] if tasks.exists() else [pid]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int, default=0, help="trials of the measurement of memory alone")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    root, trials, steps = str(Path("store").absolute()), asked.trials // 10 * 10, asked.steps
    from helpers.features import stored

    if asked.memory:
        stored(Path(root), classes=200, dimension=64)
        driver_memory(root, asked.memory)
        return
    stored(Path(root), classes=582, each=20, dimension=64)  # as many as the glyphs have
    clock, rows = ProcessorTime(), list[tuple[str, float, float]]()
    clock.start()

    def measure(name: str, run: Callable[[], object]) -> None:
        begun, spent = time.perf_counter(), clock.sample()
        run()
        rows.append((name, time.perf_counter() - begun, clock.sample() - spent))

    with ProcessPoolExecutor(SLOTS, mp_context=get_context("spawn")) as pool:
        pooled(pool, trial, root, SLOTS, 20)  # imports
        measure("bare loop of the steps alone", lambda: pooled(pool, loop, root, trials, steps))
        measure("floor: bare trials in a pool", lambda: pooled(pool, trial, root, trials, steps))
        measure("plain Ray Tune, reuse_actors", lambda: by_tune(root, trials, steps))
        measure("Optuna with joblib", lambda: by_optuna(root, trials, steps))
        first, last = time.time(), time.time()

        def sweep() -> None:
            nonlocal first, last
            first, last = by_us(root, trials, steps)

        measure("tune-dml, with start and report", sweep)
        rows.append(("tune-dml, ledger and MLflow", last - first, clock.between(first, last)))
        measure("floor again", lambda: pooled(pool, trial, root, trials, steps))
    print(f"{trials} trials of {steps} steps, {SLOTS} slots; load {os.getloadavg()[0]:.1f}")
    print(f"{'':34s} trials/min   processor s a trial   trials/min of {SLOTS} whole cores")
    for name, seconds, spent in rows:
        print(f"{name:34s} {60 * trials / seconds:10.0f} {spent / trials:16.2f} {60 * SLOTS * trials / spent:18.0f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        main()
