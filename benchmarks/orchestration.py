"""Measure the overhead of orchestration over bare trials, beside plain Ray Tune and Optuna with joblib, in one run.

    python benchmarks/orchestration.py [--trials 24] [--steps 150]
    python benchmarks/orchestration.py --driver 5000    # time per trial in the driver, early and late, and its memory

Every contestant runs the same trial, one per core at a time: `trainables.training.train` on digits with evaluation,
sheet and checkpoint. *Bare* is a pool of running processes, timed before and after each contestant; a contestant is
compared with the mean of the two, and their difference shows the machine's noise. Each comparison has elapsed time and
processor time, Ray's processes included; on a shared machine use the latter.

"Over its trials' training" is the time of all slots, or of the processor, over the seconds that the contestant's trials
trained. A slower machine changes these ratios little. Time in which a trial waits for a daemon counts as training in
the first ratio, not in the second.

The *floor* of a sweep on Ray and MLflow is bare trials plus the imports of new processes: torch and Ray in each slot,
Ray Tune and MLflow in the driver. Engine `train` with two workers is timed from its second trial on, because the first
one starts Ray Train.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

from features import SLOTS, UsageSampler, tune_grid
from program import run_program

SAMPLER = UsageSampler()
_SECONDS = "seconds"


def settings(steps: int, rho: float) -> dict[str, Any]:
    sec = {"regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": rho}
    batch = {"batch.batch_size": 60, "batch.instances_per_class": 20}  # digits has three training classes
    length = {"training.steps": steps, "training.eval_every": steps // 2}
    return {"data.name": "digits", "seed": 0, **length, **batch, **sec}


def rhos(trials: int) -> list[float]:
    return [round((index + 1) / (trials + 1), 4) for index in range(trials)]


def run_trial(steps: int, rho: float, folder: str) -> float:
    """Run one trial, append its training seconds to a file of the folder, and return its metric."""
    import torch

    from trainables.context import TrialContext
    from trainables.resolve import read_settings
    from trainables.training import train

    context = TrialContext(Path(folder) / str(rho), torch.device("cpu"))
    outcome = train(read_settings(settings(steps, rho)), context)
    with (Path(folder) / _SECONDS).open("a") as file:
        file.write(f"{outcome.seconds}\n")
    return outcome.metrics["val/recall_at_1"]


def training_seconds(folder: str) -> float:
    """Return the total training seconds of the trials of a folder."""
    return sum(map(float, (Path(folder) / _SECONDS).read_text().split()))


@dataclass(frozen=True)
class RunCost:
    """Cost of a run, in seconds."""

    clock: float
    processor: float
    """Processor time of this process and its descendants."""
    training: float = 0.0
    """Total training and evaluation time that the trials report."""

    @property
    def over_training(self) -> tuple[float, float]:
        """Return the time of all slots, and processor time, over training time."""
        return self.clock * SLOTS / self.training, self.processor / self.training


class Meter:
    """Measures the cost of its block: `with Meter() as meter: ...`, then `meter.cost`."""

    def __enter__(self) -> Meter:
        self._start, self._processor = time.perf_counter(), SAMPLER.sample()
        return self

    def __exit__(self, *error: object) -> None:
        self.cost = RunCost(time.perf_counter() - self._start, SAMPLER.sample() - self._processor)


def run_bare(trials: int, steps: int) -> RunCost:
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(SLOTS, get_context("spawn")) as pool:
        list(pool.map(run_trial, [2] * SLOTS, [0.999 - n / 1000 for n in range(SLOTS)], [folder] * SLOTS))  # imports
        with Meter() as meter:
            list(pool.map(run_trial, [steps] * trials, rhos(trials), [f"{folder}/timed"] * trials))
        return replace(meter.cost, training=training_seconds(f"{folder}/timed"))


@contextlib.contextmanager
def running_ray() -> Iterator[None]:
    """Start a local Ray before the timing begins, like the pool of `run_bare`."""
    import ray

    resources = {"trial_driver": 8.0}
    ray.init(num_cpus=SLOTS, log_to_driver=False, logging_level="ERROR", include_dashboard=True, resources=resources)
    try:
        yield
    finally:
        ray.shutdown()


def mean(first: RunCost, last: RunCost) -> RunCost:
    return RunCost(*((a + b) / 2 for a, b in zip(astuple(first), astuple(last), strict=True)))


def import_seconds(*modules: str) -> float:
    """Return the processor seconds of a new process that imports these modules: the smallest of three."""
    seconds = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", f"import {', '.join(modules)}"], check=True)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(seconds)


def run_ray_tune(trials: int, steps: int) -> RunCost:
    with tempfile.TemporaryDirectory() as folder:
        with Meter() as meter:
            tune_grid(lambda rho: run_trial(steps, rho, folder), rhos(trials), folder)
        return replace(meter.cost, training=training_seconds(folder))


def _optimize(storage: str, share: list[float], steps: int, folder: str) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    backend = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(storage))
    study = optuna.load_study(study_name="bench", storage=backend)
    for rho in share:
        study.enqueue_trial({"rho": rho})
        study.optimize(lambda trial: run_trial(steps, trial.suggest_float("rho", 0, 1), folder), n_trials=1)


def run_optuna(trials: int, steps: int) -> RunCost:
    import optuna
    from joblib import Parallel, delayed

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/journal"
        backend = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(file))
        optuna.create_study(study_name="bench", storage=backend, direction="maximize")
        shares = [rhos(trials)[slot::SLOTS] for slot in range(SLOTS)]
        with Meter() as meter:
            Parallel(n_jobs=SLOTS)(delayed(_optimize)(file, share, steps, folder) for share in shares)
        return replace(meter.cost, training=training_seconds(folder))


def run_sweep(trials: int, steps: int, workers: int) -> tuple[RunCost, list[Any]]:
    """Run a sweep; return its cost and the events of its ledger."""
    import tune_dml
    from tune_dml.planning.request import Resources
    from tune_dml.record.ledger import read_events
    from tune_dml.space import Grid, Knob, Space

    fixed = {key: v for key, v in settings(steps, 0.5).items() if key not in {"data.name", "seed", "regularizer.rho"}}
    grid = Knob("regularizer.rho", Grid(tuple(rhos(trials))), "rho")
    space = Space("bench", "own", "", None, (grid,), fixed=fixed, default_dataset="digits")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        resources = Resources(workers=workers, engine="local" if workers == 1 else "train")
        with Meter() as meter:
            sweep = tune_dml.run_sweep(space, seeds=1, resources=resources)
        events: list[Any] = read_events(sweep.folder)
    training = sum(event.end.seconds for event in events if event.kind == "ended")
    return replace(meter.cost, training=training), events


def mean_overhead(events: list[Any], first: int) -> float:
    """Return mean seconds per trial beyond training, without the `first` trials, which start processes."""
    started = {event.key: event.time for event in events if event.kind == "started"}
    order = list(dict.fromkeys(event.key for event in events if event.kind == "started"))
    ends = {event.key: event for event in events if event.kind == "ended"}
    return float(statistics.mean(ends[key].time - started[key] - ends[key].end.seconds for key in order[first:]))


def measure_driver(trials: int) -> None:
    """Print the driver's time and memory for trials that only report two rows of 21 figures, with MLflow as usual."""
    from scale import stub_engine

    from tune_dml.running import sweep

    with patch.object(sweep, "engine", stub_engine(0.0, 2)):
        _, events = run_sweep(trials, 2, workers=1)
    ends = [event.time for event in events if event.kind == "ended"]
    count = min(200, trials // 4)
    early, late = ((ends[start + count] - ends[start]) / count for start in (count // 2, trials - count - 1))
    print(
        f"driver: {early * 1000:.1f} ms a trial from trial {count // 2} on, {late * 1000:.1f} ms for the last {count}"
    )
    growth = SAMPLER.memory_at(ends[-1]) - SAMPLER.memory_at(ends[count])
    print(f"        ratio {late / early:.2f}; {growth * 1000 / (trials - count):.0f} kB of memory a trial")


def show(name: str, cost: RunCost, base: RunCost, trials: int) -> None:
    over = [(cost.clock - base.clock) * SLOTS / trials, (cost.processor - base.processor) / trials]
    ratios = f"{cost.clock / base.clock:5.2f} x bare, processor {cost.processor / base.processor:5.2f} x"
    print(f"{name:24} {cost.clock:7.1f} s {ratios}; over it a trial {over[0]:6.3f} s, processor {over[1]:6.3f} s")
    (clock, processor), (bare_clock, bare_processor) = cost.over_training, base.over_training
    times = f"{clock / bare_clock:5.3f} x bare's, processor {processor / bare_processor:5.3f} x"
    print(f"{'':24} over its trials' training {clock:5.3f}, {times}")


def main(trials: int = 24, steps: int = 150, driver: int = 0) -> None:
    """Print the comparison, or only the driver's costs over `driver` trials."""
    SAMPLER.start()
    if driver:
        measure_driver(driver)
        return

    bares = [run_bare(trials, steps)]
    costs = {"Optuna with joblib": run_optuna(trials, steps)}
    bares.append(run_bare(trials, steps))
    with running_ray():
        costs["Ray Tune, reuse_actors"] = run_ray_tune(trials, steps)
    bares.append(run_bare(trials, steps))
    with running_ray():
        start = time.time()
        costs["tune_dml, local"], events = run_sweep(trials, steps, workers=1)
        end = time.time()
    bares.append(run_bare(trials, steps))
    baselines = [mean(*pair) for pair in itertools.pairwise(bares)]
    base = baselines[-1]
    shown = [f"{cost.clock:.1f} s, processor {cost.processor:.1f} s" for cost in bares]
    print(f"{trials} trials of {steps} steps, {SLOTS} at once; bare: {'; '.join(shown)}")
    slot, start_driver = import_seconds("torch", "ray"), import_seconds("ray.tune", "mlflow")
    imports = SLOTS * slot + start_driver
    floor = replace(base, clock=base.clock + imports / SLOTS, processor=base.processor + imports)
    print(
        f"imports: {slot:.1f} s of processor per slot (torch, ray), {start_driver:.1f} s for the driver (ray.tune, mlflow)"
    )
    show("floor", floor, base, trials)
    for (name, cost), baseline in zip(costs.items(), baselines, strict=True):
        show(name, cost, baseline, trials)
    first = next(event.time for event in events if event.kind == "started")
    before, after = first - start, end - events[-1].time
    print(f"tune_dml, local: {before:.1f} s to the first trial, {after:.1f} s after the last event;")
    ends = [event.time for event in events if event.kind == "ended"]
    steady = (ends[-1] - ends[SLOTS]) * SLOTS / (trials - SLOTS - 1)
    alone = base.clock * SLOTS / trials
    overhead = mean_overhead(events, SLOTS)
    print(
        f"    with all processes running: {steady:.3f} s a trial, bare {alone:.3f} s; beyond training {overhead:.3f} s"
    )
    count = min(6, trials)
    with running_ray():
        cost, events = run_sweep(count, steps, workers=2)
    overhead = mean_overhead(events, 1)
    print(f"tune_dml, train, 2 workers: {count} trials in {cost.clock:.1f} s; beyond training {overhead:.2f} s a trial")


if __name__ == "__main__":
    run_program(main, __doc__)
