"""Find where a sweep's driver becomes the bottleneck, by an event simulation from measured costs.

    python benchmarks/scale.py [--trials 150] [--figure docs/scale.svg]

1. Measure the driver's time per trial and per row, in sweeps of trials that only report: few and many trials of 2
   rows, many of 20. Differences exclude the fixed cost of a session. Processor time includes MLflow's thread, which
   shares the driver's interpreter. The update of a running trial in MLflow is timed separately.
2. Check the simulation against sweeps of trials that sleep one second, on 2, 4 and 8 raylets of 2 slots each.
3. Simulate 20,000 trials on 512 GPUs, by the length of a trial. No GPU is needed.
"""

import contextlib
import heapq
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from program import run_program

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
METRICS = {"val/recall_at_1": 0.5, **{f"train/figure_{number}": 0.1 for number in range(20)}}
SLOTS_PER_RAYLET = 2
SYNC_SHARE, LONGEST_WAIT = 0.02, 60.0
"""MLflow's thread spends at most this share of its time in syncs, but waits at most this many seconds between them."""
LENGTHS = (5, 10, 20, 30, 60, 120, 300, 900, 3600)


@dataclass(frozen=True)
class Costs:
    """Time of the driver's single thread, in seconds."""

    trial: float
    """Time for the start and end of a trial together."""
    row: float
    update: float = 0.0
    """Time to send new rows of a running trial to MLflow; `trial` includes the end of a trial."""


@dataclass(frozen=True)
class Simulation:
    """Result of a simulated sweep."""

    seconds: float
    training: float
    """Share of the slots' time spent training."""
    driver: float
    """Share of the time in which the driver is busy."""


def simulate(costs: Costs, *, slots: int, trials: int, seconds: float, rows: int) -> Simulation:
    """Simulate slots that run one trial after another, and a driver that serves one queue in order.

    The queue has starts, rows and ends of trials and MLflow's updates. A trial does not wait for its rows, but its slot
    waits for the end and the next start. A sync updates one trial after another, then waits.
    """
    free, work = 0.0, 0.0
    changed: set[int] = set()
    pending, synced = 0, 0.0
    events = [(0.0, slot, "start") for slot in range(slots)] + [(SYNC_SHARE, slots, "sync")] * (costs.update > 0)
    heapq.heapify(events)
    started, last = 0, 0.0
    while events:
        now, slot, kind = heapq.heappop(events)
        if (kind == "start" and started == trials) or (kind == "sync" and not events):
            continue
        if kind == "sync" and not pending:
            wait, pending, synced = min(synced / SYNC_SHARE, LONGEST_WAIT) or 1.0, len(changed), 0.0
            changed.clear()
            heapq.heappush(events, (now + wait, slot, "sync"))
            continue
        cost = {"row": costs.row, "sync": costs.update}.get(kind, costs.trial / 2)
        free = max(free, now) + cost
        work += cost
        last = max(last, free)
        if kind == "start":
            started += 1
            for row in range(rows):
                heapq.heappush(events, (free + seconds * (row + 1) / rows, slot, "row"))
            heapq.heappush(events, (free + seconds * (1 + 1e-9), slot, "end"))
        elif kind == "row":
            changed.add(slot)
        elif kind == "end":
            changed.discard(slot)
            heapq.heappush(events, (free, slot, "start"))
        elif kind == "sync":
            pending, synced = pending - 1, synced + cost
            heapq.heappush(events, (free, slot, "sync"))
    return Simulation(last, trials * seconds / (slots * last), work / last)


def stub_engine(seconds: float, rows: int) -> Callable[..., Callable[[dict[str, Any]], None]]:
    """Return an engine whose trials only sleep and report."""

    def engine(*_: object) -> Callable[[dict[str, Any]], None]:
        def trial(config: dict[str, Any]) -> None:
            from ray import tune

            from tune_dml.running.trials.messages import as_text

            for row in range(rows):
                time.sleep(seconds / rows)
                tune.report(as_text({"rows": [{"step": row + 1, **METRICS}]}))
            end = {"status": "finished", "reason": "", "metrics": METRICS, "step": rows, "seconds": seconds}
            tune.report(as_text({"ended": end}))

        return trial

    return engine


def run_stub_sweep(trials: int, seconds: float, rows: int, slots: int) -> tuple[float, float]:
    """Return elapsed seconds per trial with all processes running, and the driver's total processor seconds."""
    import tune_dml
    from tune_dml.record.ledger import read_events
    from tune_dml.running import sweep
    from tune_dml.space import Grid, Knob, Space

    values = tuple(round((index + 1) / (trials + 1), 5) for index in range(trials))
    fixed = {"regularizer.name": "sec", "regularizer.eta": 0.5, "training.steps": rows, "training.eval_every": 1}
    space = Space(
        "bench", "own", "", None, (Knob("regularizer.rho", Grid(values), "rho"),), fixed=fixed, default_dataset="digits"
    )
    stub = patch.object(sweep, "engine", stub_engine(seconds, rows))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), stub:
        processor = time.process_time()
        sweep_done = tune_dml.run_sweep(space, seeds=1)
        processor = time.process_time() - processor
        ends = sorted(event.time for event in read_events(sweep_done.folder) if event.kind == "ended")
    steady = ends[2 * slots : len(ends) - slots]
    return (steady[-1] - steady[0]) / (len(steady) - 1), processor


def update_seconds(trials: int = 200) -> float:
    """Return processor seconds to update a running trial with one new row in MLflow, on SQLite."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from helpers.toys import Driver, event_of, plan_of

    from tune_dml.record.ledger import Ledger
    from tune_dml.record.state import read_state
    from tune_dml.space import Grid, Knob
    from tune_dml.tracking import Tracker

    spent = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = plan_of(Knob("loss.margin", Grid(tuple(0.01 * (index + 1) for index in range(trials))), "m"), seeds=1)
        Driver(folder / "sweep", plan).session()
        tracker = Tracker(read_state(folder / "sweep"), f"sqlite:///{folder}/mlflow.db", "bench")
        with Ledger(folder / "sweep") as ledger:
            for step in range(4):
                for trial in plan.trials():
                    if step == 0:
                        ledger.write(event_of("started", trial.key, host="node-1"))
                    ledger.report(trial.key, {"step": step + 1, "time": 1.7e9 + step, **METRICS})
                start = time.process_time()
                report = tracker.sync()
                spent.append(time.process_time() - start)
                assert (report.error, report.trials) == (None, trials), report
    return min(spent[1:]) / trials


def run_on_raylets(number: int, *sweeps: tuple[int, float, int]) -> list[tuple[float, float]]:
    """Call `run_stub_sweep` for each (trials, seconds, rows), on a cluster of raylets."""
    temporary = tempfile.mkdtemp(prefix="r")
    os.environ["RAY_TMPDIR"] = temporary  # other programs that start Ray do not find this cluster
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": SLOTS_PER_RAYLET, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    for _ in range(number - 1):
        cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        return [run_stub_sweep(*sweep, slots=number * SLOTS_PER_RAYLET) for sweep in sweeps]
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def simulate_large(costs: Costs, seconds: float, rows: int) -> Simulation:
    """Simulate 20,000 trials on 512 GPUs, which send rows at most once a second."""
    return simulate(costs, slots=512, trials=20_000, seconds=seconds, rows=max(1, min(rows, int(seconds))))


def draw(path: Path, costs: Costs, rows: int) -> None:
    """Draw the share of time in which 512 GPUs train against the length of a trial."""
    from matplotlib import pyplot, rc_context

    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    results = [simulate_large(costs, length, rows) for length in LENGTHS]
    shares, drivers = [100 * result.training for result in results], [100 * result.driver for result in results]
    axes.semilogx(LENGTHS, shares, "o-", color="black", label="GPUs train")
    axes.semilogx(LENGTHS, drivers, "s--", color="tab:red", label="the driver is busy")
    axes.set(xlabel="seconds of a trial", ylabel="share of the time [%]", ylim=(0, 103))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": "scale"}):
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main(trials: int = 150, rows: int = 20, figure: Path | None = None) -> None:
    """Print the measurements and the simulation, whose trials send `rows`."""
    sweeps = ((trials // 3, 0.0, 2), (trials, 0.0, 2), (trials, 0.0, 20), (60, 1.0, 2))
    few_trials, many_trials, many_rows, sleeping = run_on_raylets(2, *sweeps)
    by_clock = Costs(many_trials[0] - 2 * (row := (many_rows[0] - many_trials[0]) / 18), row)
    row = (many_rows[1] - many_trials[1]) / (18 * trials)
    by_processor = Costs((many_trials[1] - few_trials[1]) / (trials - trials // 3) - 2 * row, row, update_seconds())
    for name, costs in (("elapsed", by_clock), ("processor", by_processor)):
        print(f"driver, {name}: {costs.trial * 1000:.1f} ms a trial, {costs.row * 1000:.1f} ms a row of 21 metrics")
    print(f"update of a running trial in MLflow: {by_processor.update * 1000:.1f} ms")
    wider = {raylets: run_on_raylets(raylets, (30 * raylets, 1.0, 2))[0] for raylets in (4, 8)}
    for raylets, (measured, _) in {2: sleeping, **wider}.items():
        slots = raylets * SLOTS_PER_RAYLET
        expected = simulate(by_clock, slots=slots, trials=10_000, seconds=1.0, rows=2).seconds / 10_000
        print(f"{raylets} raylets, {slots} slots, trials of 1 s: {measured:.3f} s a trial; simulated {expected:.3f}")
    print(f"20,000 trials of {rows} rows on 512 GPUs, from processor time")
    for length in LENGTHS:
        found = simulate_large(by_processor, length, rows)
        hours = found.seconds / 3600
        print(
            f"{length:6} s a trial: GPUs train {found.training:6.1%}, driver busy {found.driver:6.1%}, {hours:7.2f} h"
        )
    if figure:
        draw(figure, by_processor, rows)


if __name__ == "__main__":
    run_program(main, __doc__)
