"""What orchestration costs over bare trials: this project beside plain Ray Tune and Optuna with joblib, in one run.

    python benchmarks/orchestration.py [--trials 24] [--steps 150]
    python benchmarks/orchestration.py --driver 5000    # what a trial costs the driver, early and late, and its memory

The trial is the same everywhere: `trainables.training.train` on digits, evaluation, sheet and checkpoint included, one CPU
each, as many at once as there are cores. *Bare* is a pool of processes that are there already, run before and after each of
the others, without a Ray beside it: how far the runs differ is the machine's own doing, and the mean of the two around it is
what each is compared with. By the clock, and by what
the processor did for it, all processes of Ray included: where the machine is shared with other programs, read that. The
same of its own training: what all slots' time, and the processor's, is of the seconds that its own trials trained. A machine
that is slower in one minute than in the next changes these little, since training and all else are slowed alike; a trial that
waits for the processor while a daemon has it seems to train meanwhile, which the processor's figure tells. The
*floor* of a sweep on Ray with MLflow beside it: bare trials, and nothing else than the imports that its fresh processes
cannot do without (torch and Ray in each slot's, Ray Tune and MLflow in the driver). Engine `train` with two workers is timed
by its trials after the first, which pays for the start of Ray Train.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_dml.record.ledger import Event

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from helpers.clusters import children_of

SLOTS = len(os.sched_getaffinity(0))
_TRAINED = "trained"


def settings(steps: int, rho: float) -> dict[str, Any]:
    sec = {"regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": rho}
    batch = {"batch.batch_size": 60, "batch.instances_per_class": 20}  # digits has three training classes
    return {
        "data.name": "digits",
        "training.steps": steps,
        "training.eval_every": steps // 2,
        "seed": 0,
        **batch,
        **sec,
    }


def rhos(trials: int) -> list[float]:
    return [round((index + 1) / (trials + 1), 4) for index in range(trials)]


def trial(steps: int, rho: float, folder: str) -> float:
    """One trial; its value. The seconds that it trained are appended to a file beside it."""
    import torch

    from trainables.context import FolderContext
    from trainables.resolve import read_settings
    from trainables.training import train

    context = FolderContext(Path(folder) / str(rho), torch.device("cpu"))
    outcome = train(read_settings(settings(steps, rho)), context)
    with (Path(folder) / _TRAINED).open("a") as file:
        file.write(f"{outcome.seconds}\n")
    return outcome.metrics["val/recall_at_1"]


def trained(folder: str) -> float:
    """Seconds that trials of a folder trained, together."""
    return sum(map(float, (Path(folder) / _TRAINED).read_text().split()))


@dataclass(frozen=True)
class Cost:
    """Of a run."""

    clock: float
    """Seconds."""
    processor: float
    """Seconds, of all processes below this one together."""
    training: float = 0.0
    """Seconds that its trials trained and evaluated, by their own clocks, together."""

    @property
    def of_training(self) -> tuple[float, float]:
        """What the slots' time and the processor's are of those seconds."""
        return self.clock * SLOTS / self.training, self.processor / self.training


class Meter:
    """`with Meter() as meter: ...` and then `meter.cost`, of this process and all below it.

    Each of them is looked at once a second: what a process did that nobody waited for is nowhere to be read once it has ended.
    """

    def __enter__(self) -> Meter:
        self._began, self._before, self._seen = time.perf_counter(), _ticks(), dict[int, int]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        clock = time.perf_counter() - self._began
        self._over.set()
        self._thread.join()
        ticks = sum(seen - self._before.get(pid, 0) for pid, seen in self._seen.items())
        self.cost = Cost(clock, ticks / os.sysconf("SC_CLK_TCK"))

    def _look(self) -> None:
        last = False
        while not last:
            last = self._over.wait(1.0)
            self._seen |= _ticks()


def _ticks() -> dict[int, int]:
    """Process -> ticks of the processor that it had so far, of this process and all below it."""
    found = {}
    for pid in [os.getpid(), *children_of(os.getpid())]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = int(fields[11]) + int(fields[12])
    return found


def bare(trials: int, steps: int) -> Cost:
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(SLOTS, get_context("spawn")) as pool:
        list(pool.map(trial, [2] * SLOTS, [0.999 - n / 1000 for n in range(SLOTS)], [folder] * SLOTS))  # imports
        with Meter() as meter:
            list(pool.map(trial, [steps] * trials, rhos(trials), [f"{folder}/timed"] * trials))
        return replace(meter.cost, training=trained(f"{folder}/timed"))


@contextlib.contextmanager
def running_ray() -> Iterator[None]:
    """A Ray of one machine that is there already, as the pool of `bare` is."""
    import ray

    resources = {"trial_driver": 8.0}
    ray.init(num_cpus=SLOTS, log_to_driver=False, logging_level="ERROR", include_dashboard=True, resources=resources)
    try:
        yield
    finally:
        ray.shutdown()


def mean(first: Cost, last: Cost) -> Cost:
    return Cost(*((a + b) / 2 for a, b in zip(astuple(first), astuple(last), strict=True)))


def importing(*modules: str) -> float:
    """Seconds of processor that a fresh process needs for its start and these imports: the least of three."""
    seconds = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", f"import {', '.join(modules)}"], check=True)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(seconds)


def plain_tune(trials: int, steps: int) -> Cost:
    from ray import tune

    with tempfile.TemporaryDirectory() as folder:

        def function(config: dict[str, Any]) -> None:
            tune.report({"value": trial(steps, config["rho"], folder)})

        with Meter() as meter:
            tune.Tuner(
                tune.with_resources(function, {"cpu": 1}),
                param_space={"rho": tune.grid_search(rhos(trials))},
                tune_config=tune.TuneConfig(reuse_actors=True),
                run_config=tune.RunConfig(storage_path=folder, verbose=0),
            ).fit()
        return replace(meter.cost, training=trained(folder))


def _optimize(storage: str, share: list[float], steps: int, folder: str) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    backend = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(storage))
    study = optuna.load_study(study_name="bench", storage=backend)
    for rho in share:
        study.enqueue_trial({"rho": rho})
        study.optimize(lambda t: trial(steps, t.suggest_float("rho", 0, 1), folder), n_trials=1)


def optuna_joblib(trials: int, steps: int) -> Cost:
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
        return replace(meter.cost, training=trained(folder))


def sweep_of(trials: int, steps: int, workers: int) -> tuple[Cost, list[Event]]:
    """What a sweep costs, and what its ledger says."""
    import tune_dml
    from tune_dml.planning.request import Resources
    from tune_dml.record.ledger import read_events
    from tune_dml.space import Grid, Knob, Space

    given = settings(steps, 0.5)
    fixed = {key: given[key] for key in given.keys() - {"data.name", "seed", "regularizer.rho"}}
    grid = Knob("regularizer.rho", Grid(tuple(rhos(trials))), "rho")
    space = Space("bench", "own", "", None, (grid,), fixed=fixed, default_dataset="digits")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            resources = Resources(workers=workers, engine="local" if workers == 1 else "train")
            with Meter() as meter:
                done = tune_dml.run_sweep(space, seeds=1, resources=resources)
            events = read_events(done.folder)
            training = sum(event.end.seconds for event in events if event.kind == "ended")
            return replace(meter.cost, training=training), events
        finally:
            os.chdir(before)


def beyond_training(events: list[Event], first: int) -> list[float]:
    """Of each trial but the `first` ones, which pay for new processes: its seconds beyond its own training and evaluation."""
    started = {event.key: event.time for event in events if event.kind == "started"}
    order = list(dict.fromkeys(event.key for event in events if event.kind == "started"))
    ends = {event.key: event for event in events if event.kind == "ended"}
    return [ends[key].time - started[key] - ends[key].end.seconds for key in order[first:]]


class Memory:
    """What this process holds, looked at twice a second: `with Memory() as memory: ...; memory.at(time)` in MB."""

    def __enter__(self) -> Memory:
        self.seen: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.seen.append((time.time(), pages * os.sysconf("SC_PAGE_SIZE") / 1e6))
            if self._over.wait(0.5):
                return

    def at(self, moment: float) -> float:
        """MB that it held then."""
        return min(self.seen, key=lambda seen: abs(seen[0] - moment))[1]


def driver(trials: int) -> None:
    """A sweep of trials that do nothing but report two rows of 21 figures, MLflow as always; early and late."""
    from scale import stand_in

    from tune_dml.running import sweep

    engine, sweep.engine = sweep.engine, stand_in(0.0, 2)  # type: ignore[assignment]
    try:
        with Memory() as memory:
            _, events = sweep_of(trials, 2, workers=1)
    finally:
        sweep.engine = engine
    ends = [event.time for event in events if event.kind == "ended"]
    few = min(200, trials // 4)
    early, late = ((ends[start + few] - ends[start]) / few for start in (few // 2, trials - few - 1))
    print(
        f"driver: {early * 1000:.1f} ms a trial from the {few // 2}th on, {late * 1000:.1f} ms for the last {few} of {trials}"
    )
    grown = memory.at(ends[-1]) - memory.at(ends[few])
    print(f"        {late / early:.2f} times as much; {grown * 1000 / (trials - few):.0f} kB of memory a trial")


def show(name: str, cost: Cost, base: Cost, trials: int) -> None:
    """A line."""
    over = [(cost.clock - base.clock) * SLOTS / trials, (cost.processor - base.processor) / trials]
    ratios = f"{cost.clock / base.clock:5.2f} x bare, processor {cost.processor / base.processor:5.2f} x"
    print(f"{name:24} {cost.clock:7.1f} s {ratios}; over it a trial {over[0]:6.3f} s, processor {over[1]:6.3f} s")
    (clock, processor), (bare_clock, bare_processor) = cost.of_training, base.of_training
    times = f"{clock / bare_clock:5.3f} x bare's, processor {processor / bare_processor:5.3f} x"
    print(f"{'':24} of its own training {clock:5.3f}, {times}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--driver", type=int)
    asked = parser.parse_args()
    trials, steps = asked.trials, asked.steps

    if asked.driver:
        driver(asked.driver)
        return

    bares = [bare(trials, steps)]
    costs = {"Optuna with joblib": optuna_joblib(trials, steps)}
    bares.append(bare(trials, steps))
    with running_ray():
        costs["Ray Tune, reuse_actors"] = plain_tune(trials, steps)
    bares.append(bare(trials, steps))
    with running_ray():
        began = time.time()
        costs["tune_dml, local"], events = sweep_of(trials, steps, workers=1)
        ended = time.time()
    bares.append(bare(trials, steps))
    around = [mean(*pair) for pair in itertools.pairwise(bares)]
    base = around[-1]
    of_bare = [f"{cost.clock:.1f} s, processor {cost.processor:.1f} s" for cost in bares]
    print(f"{trials} trials of {steps} steps, {SLOTS} at once; bare: {'; '.join(of_bare)}")
    slot, of_driver = importing("torch", "ray"), importing("ray.tune", "mlflow")
    imports = SLOTS * slot + of_driver
    floor = replace(base, clock=base.clock + imports / SLOTS, processor=base.processor + imports)
    print(
        f"imports: {slot:.1f} s of processor for each slot (torch, ray), {of_driver:.1f} s for the driver (ray.tune, mlflow)"
    )
    show("floor", floor, base, trials)
    for (name, cost), beside in zip(costs.items(), around, strict=True):
        show(name, cost, beside, trials)
    shown = [event.time for event in events if event.kind == "started"]
    over = beyond_training(events, SLOTS)
    each = sum(over) / len(over)
    print(
        f"tune_dml, local: {shown[0] - began:.1f} s to the first trial, {ended - events[-1].time:.1f} s after the last event;"
    )
    ends = [event.time for event in events if event.kind == "ended"]
    steady = (ends[-1] - ends[SLOTS]) * SLOTS / (trials - SLOTS - 1)
    alone = base.clock * SLOTS / trials
    print(
        f"    once every slot has a process: {steady:.3f} s a trial, bare {alone:.3f} s; beyond training {each:.3f} s"
    )
    few = min(6, trials)
    with running_ray():
        cost, events = sweep_of(few, steps, workers=2)
    over = beyond_training(events, 1)
    each = sum(over) / len(over)
    print(
        f"tune_dml, train, 2 workers: {few} trials in {cost.clock:.1f} s; over training, from the second on: {each:.2f} s"
    )


if __name__ == "__main__":
    main()
