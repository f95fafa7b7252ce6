"""Compare trials per minute of heads on stored features with plain Ray Tune, Optuna with joblib, and a process pool.

    python benchmarks/features.py [--trials 40] [--steps 400]      # some minutes
    python benchmarks/features.py --memory 3000                    # the driver's memory over 3,000 trials of one step

A trial is `trainables.training.train` of a linear head with batches of 90. It evaluates on validation classes and
stores its head for the test. The *floor* is a pool of running processes, one per core, timed first and last. Ours is a
sweep with ledger and MLflow, from the start of the first trial to the end of the last; another row includes start and
report. A *bare loop* takes only the head's steps, without evaluation and files. Processor time covers all
processes of a contestant; other load hardly affects it, unlike elapsed time.
"""

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

from program import run_program

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
sys.path.append(str(Path(__file__).parents[1] / "tests"))

SLOTS = len(os.sched_getaffinity(0))
MARK = "TUNE_DML_BENCHMARK"
os.environ.setdefault(MARK, str(os.getpid()))
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

    own: dict[str, Any] = {
        "data.name": "features",
        "data.root": root,
        "loss.name": "npair",
        "batch.instances_per_class": 2,
    }
    own |= {"batch.batch_size": 90, "training.steps": steps, "training.eval_every": steps, "loss.scale": 5 + number}
    return resolve(Layer("protocol", {**FEATURES_TRIPLET.settings, **own, "seed": number % 5})).config


def run_trial(root: str, number: int, steps: int) -> float:
    import torch

    from trainables.context import TrialContext
    from trainables.training import train

    with tempfile.TemporaryDirectory() as folder:
        context = TrialContext(Path(folder) / "trial", torch.device("cpu"), defers_test=True)
        return train(config_of(root, number, steps), context).metrics["val/recall_at_1"]


def run_bare_loop(root: str, number: int, steps: int) -> float:
    """Take the steps of a trial, without evaluation and files."""
    import torch

    from trainables.context import TrialContext
    from trainables.tasks import build_learner

    torch.set_num_threads(1)
    learner: Any = build_learner(config_of(root, number, steps), TrialContext(Path("loop") / "t", torch.device("cpu")))
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


def run_pool(pool: ProcessPoolExecutor, work: Callable[..., float], root: str, trials: int, steps: int) -> None:
    list(pool.map(work, [root] * trials, range(trials), [steps] * trials))


def tune_grid(work: Callable[[Any], float], values: list[Any], folder: str) -> None:
    """Run one trial per value with plain Ray Tune."""
    from ray import tune

    def function(config: dict[str, Any]) -> None:
        tune.report({"value": work(config["value"])})

    tune.Tuner(
        tune.with_resources(function, {"cpu": 1}),
        param_space={"value": tune.grid_search(values)},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()


def run_ray_tune(root: str, trials: int, steps: int) -> None:
    import ray

    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tune_grid(lambda number: run_trial(root, number, steps), list(range(trials)), str(Path("tune").absolute()))
    ray.shutdown()


def run_optuna(root: str, trials: int, steps: int) -> None:
    """Run one study in a joblib process per core, with SQLite storage."""
    import joblib
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage="sqlite:///optuna.db", direction="maximize")

    def optimize(count: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        shared = optuna.load_study(study_name=study.study_name, storage="sqlite:///optuna.db")
        shared.optimize(lambda trial: run_trial(root, trial.suggest_int("number", 0, trials), steps), n_trials=count)

    joblib.Parallel(SLOTS)(joblib.delayed(optimize)(trials // SLOTS) for _ in range(SLOTS))


def sweep_command(root: str, values: list[float], steps: int) -> list[str]:
    """Write a sweep file; return the command that runs it."""
    Path("heads.yaml").write_text(SWEEP.format(values=values, root=root, steps=steps))
    return [sys.executable, "-m", "tune_dml.cli", "sweep", "heads.yaml", "--tracking-uri", "sqlite:///mlflow.db"]


def run_sweep(root: str, trials: int, steps: int) -> tuple[float, float]:
    """Run a sweep; return the times of the first start and the last end in its ledger."""
    from tune_dml.record.ledger import read_events

    command = sweep_command(root, [5 + number for number in range(trials // 5)], steps)
    subprocess.run(command, check=True, capture_output=True)
    times = [event.time for event in read_events(Path("sweeps/heads")) if event.kind in {"started", "ended"}]
    return min(times), max(times)


class UsageSampler(threading.Thread):
    """Samples the processor time of this process and its descendants, and the memory of this process.

    Processes are recognised by a variable in their environment, because Ray's daemons leave the process tree.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._mark = f"{MARK}={os.environ[MARK]}".encode()
        self._is_ours = {str(os.getpid()): True}
        self._processor_seconds: dict[str, float] = {}
        self.history: list[tuple[float, float, int]] = []
        """Time, processor seconds so far, resident bytes."""

    def run(self) -> None:
        """Sample five times a second."""
        while True:
            self.sample()
            time.sleep(0.2)

    def sample(self) -> float:
        """Return the processor seconds so far."""
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if process not in self._is_ours:
                    self._is_ours[process] = self._mark in Path(f"/proc/{process}/environ").read_bytes()
                if self._is_ours[process]:
                    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    self._processor_seconds[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except OSError:
                continue  # the process has ended, or belongs to another user
        self.history.append((time.time(), sum(self._processor_seconds.values()), resident(os.getpid())))
        return self.history[-1][1]

    def seconds_between(self, first: float, last: float) -> float:
        """Return the processor seconds between two times."""
        times, totals = [sample[0] for sample in self.history], [sample[1] for sample in self.history]
        return totals[min(bisect(times, last), len(totals) - 1)] - totals[max(bisect(times, first) - 1, 0)]

    def memory_at(self, moment: float) -> float:
        """Return the resident memory of this process at a moment, in MB."""
        return min(self.history, key=lambda sample: abs(sample[0] - moment))[2] / 1e6


def measure_driver_memory(root: str, trials: int) -> None:
    """Run a sweep of trials of one step; print its driver's resident memory by the number of ended trials."""
    command = sweep_command(root, [round(1 + number / 100, 2) for number in range(trials // 5)], 1)
    sweep = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    ledger, ended, read, samples = Path("sweeps/heads/ledger.jsonl"), 0, 0, list[tuple[int, int]]()
    while sweep.poll() is None:
        time.sleep(0.5)
        if ledger.exists():
            with ledger.open("rb") as file:
                file.seek(read)
                new = file.read()
            read, ended = read + len(new), ended + new.count(b'"kind":"ended"') + new.count(b'"kind": "ended"')
            samples.append((ended, max(map(resident, _process_and_children(sweep.pid)), default=0)))
    first = next((size for count, size in samples if count >= trials // 10), 0)
    last = max((size for count, size in samples if count < trials), default=0)
    for part in range(1, 11):
        size = next((size for count, size in samples if count >= trials * part // 10), 0)
        print(f"{trials * part // 10:8d} trials   {size / 2**20:6.0f} MB")
    print(f"{(last - first) / (0.9 * trials) / 1000:.1f} kB a trial; exit code {sweep.returncode}")


def _process_and_children(pid: int) -> list[int]:
    """Return a process and its children: the driver is a child of its supervisor."""
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, tasks.read_text().split())] if tasks.exists() else [pid]


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def main(memory: int = 0, trials: int = 40, steps: int = 400) -> None:
    """Print the table, or only the driver's memory over `memory` trials."""
    root, trials = str(Path("store").absolute()), trials // 10 * 10
    from helpers.features import stored

    if memory:
        stored(Path(root), classes=200, dimension=64)
        measure_driver_memory(root, memory)
        return
    stored(Path(root), classes=582, each=20, dimension=64)  # the sizes of glyphs
    sampler, rows = UsageSampler(), list[tuple[str, float, float]]()
    sampler.start()

    def measure(name: str, run: Callable[[], object]) -> None:
        started, spent = time.perf_counter(), sampler.sample()
        run()
        rows.append((name, time.perf_counter() - started, sampler.sample() - spent))

    with ProcessPoolExecutor(SLOTS, mp_context=get_context("spawn")) as pool:
        run_pool(pool, run_trial, root, SLOTS, 20)  # imports
        measure("bare loop without evaluation", lambda: run_pool(pool, run_bare_loop, root, trials, steps))
        measure("floor: bare trials in a pool", lambda: run_pool(pool, run_trial, root, trials, steps))
        measure("plain Ray Tune, with start", lambda: run_ray_tune(root, trials, steps))
        measure("Optuna with joblib", lambda: run_optuna(root, trials, steps))
        span = list[float]()
        measure("tune-dml, with start and report", lambda: span.extend(run_sweep(root, trials, steps)))
        first, last = span
        rows.append(("tune-dml, first to last trial", last - first, sampler.seconds_between(first, last)))
        measure("floor again", lambda: run_pool(pool, run_trial, root, trials, steps))
    print(f"{trials} trials of {steps} steps, {SLOTS} slots; load {os.getloadavg()[0]:.1f}")
    print(f"{'':34s} trials/min   processor s a trial   trials/min of {SLOTS} full cores")
    for name, seconds, spent in rows:
        print(f"{name:34s} {60 * trials / seconds:10.0f} {spent / trials:16.2f} {60 * SLOTS * trials / spent:18.0f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_program(main, __doc__)
