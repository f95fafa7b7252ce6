"""Where a sweep's driver becomes the bottleneck: an event simulation from measured costs, beside real sweeps.

    python benchmarks/scale.py [--trials 150] [--figure docs/scale.svg]

Measured: a driver's seconds a trial and a row, from sweeps whose trials do nothing but report: few and many trials of 2 rows,
many of 20; differences, so that what a session costs once is in neither. The processor's seconds count MLflow's thread too,
which shares the driver's interpreter; what it takes to tell MLflow of a trial once more, while that runs, is measured by itself.
Checked: sweeps of trials that sleep a second, on 2, 4 and 8 raylets of 2 slots each, against what the simulation says of them.
Then simulated: 20,000 trials on 512 GPUs, by how long a trial is. Nothing here computes, so no GPU is needed.
"""

from __future__ import annotations

import argparse
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

from helpers.toys import event_of

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
FIGURES = {"val/recall_at_1": 0.5, **{f"train/figure_{number}": 0.1 for number in range(20)}}
SLOTS_PER_RAYLET = 2
SHARE, LONGEST_REST = 0.02, 60.0
"""How MLflow's thread rests after a sync (tracking/background.py): until that was this share of the time, or so many seconds."""
LENGTHS = (5, 10, 20, 30, 60, 120, 300, 900, 3600)


@dataclass(frozen=True)
class Costs:
    """What the driver, one thread, is busy for."""

    trial: float
    """Seconds for a trial's start and end together."""
    row: float
    """Seconds for one row."""
    told: float = 0.0
    """Seconds to tell MLflow of one trial that runs and has news; its end is in `trial`."""


@dataclass(frozen=True)
class Simulated:
    """A sweep as the simulation sees it."""

    wall: float
    busy: float
    """Share of the time in which the slots trained."""
    driver: float
    """Share of the time in which the driver was busy."""


def simulate(costs: Costs, *, slots: int, trials: int, seconds: float, rows: int) -> Simulated:
    """Every slot runs trial after trial; starts, rows and ends wait in one queue for the driver, first come first served.

    A trial does not wait for its rows to be taken, but its slot waits for its end to be taken and for the next start. A sync
    tells MLflow of one trial after the other, in the same queue, and then rests.
    """
    free, work = 0.0, 0.0
    news: set[int] = set()
    left, synced = 0, 0.0
    events = [(0.0, slot, "start") for slot in range(slots)] + [(SHARE, slots, "sync")] * (costs.told > 0)
    heapq.heapify(events)
    begun, last = 0, 0.0
    while events:
        now, slot, kind = heapq.heappop(events)
        if (kind == "start" and begun == trials) or (kind == "sync" and not events):
            continue
        if kind == "sync" and not left:
            rest, left, synced = min(synced / SHARE, LONGEST_REST) or 1.0, len(news), 0.0
            news.clear()
            heapq.heappush(events, (now + rest, slot, "sync"))
            continue
        cost = {"row": costs.row, "sync": costs.told}.get(kind, costs.trial / 2)
        free = max(free, now) + cost
        work += cost
        last = max(last, free)
        if kind == "start":
            begun += 1
            for row in range(rows):
                heapq.heappush(events, (free + seconds * (row + 1) / rows, slot, "row"))
            heapq.heappush(events, (free + seconds * (1 + 1e-9), slot, "end"))
        elif kind == "row":
            news.add(slot)
        elif kind == "end":
            news.discard(slot)
            heapq.heappush(events, (free, slot, "start"))
        elif kind == "sync":
            left, synced = left - 1, synced + cost
            heapq.heappush(events, (free, slot, "sync"))
    return Simulated(last, trials * seconds / (slots * last), work / last)


def stand_in(seconds: float, rows: int) -> Callable[..., Callable[[dict[str, Any]], None]]:
    """In place of an engine: a trial that sleeps and reports."""

    def engine(*_: object) -> Callable[[dict[str, Any]], None]:
        def trial(config: dict[str, Any]) -> None:
            import time

            from ray import tune

            from tune_dml.running.trials.messages import as_text

            for row in range(rows):
                time.sleep(seconds / rows)
                tune.report(as_text({"rows": [{"step": row + 1, **FIGURES}]}))
            ended = {"status": "finished", "reason": "", "metrics": FIGURES, "step": rows, "seconds": seconds}
            tune.report(as_text({"ended": ended}))

        return trial

    return engine


def real(trials: int, seconds: float, rows: int, slots: int) -> tuple[float, float]:
    """Seconds a trial once every slot has a process, by the clock; and the driver's processor seconds in all."""
    import tune_dml
    from tune_dml.record.ledger import read_events
    from tune_dml.running import sweep
    from tune_dml.space import Grid, Knob, Space

    values = tuple(round((index + 1) / (trials + 1), 5) for index in range(trials))
    fixed = {"regularizer.name": "sec", "regularizer.eta": 0.5, "training.steps": rows, "training.eval_every": 1}
    space = Space(
        "bench", "own", "", None, (Knob("regularizer.rho", Grid(values), "rho"),), fixed=fixed, default_dataset="digits"
    )
    before, engine = Path.cwd(), sweep.engine
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sweep.engine = stand_in(seconds, rows)  # type: ignore[assignment]
        try:
            processor = time.process_time()
            done = tune_dml.run_sweep(space, seeds=1)
            processor = time.process_time() - processor
            ends = sorted(event.time for event in read_events(done.folder) if event.kind == "ended")
        finally:
            sweep.engine = engine
            os.chdir(before)
    steady = ends[2 * slots : len(ends) - slots]
    return (steady[-1] - steady[0]) / (len(steady) - 1), processor


def told(trials: int = 200) -> float:
    """Processor seconds to tell MLflow, on SQLite, of one trial that runs and has one more row."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]
    from helpers.toys import Driver, plan_of

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
                    ledger.report(trial.key, {"step": step + 1, "time": 1.7e9 + step, **FIGURES})
                began = time.process_time()
                report = tracker.sync()
                spent.append(time.process_time() - began)
                assert (report.error, report.trials) == (None, trials), report
    return min(spent[1:]) / trials


def on_raylets(number: int, *sweeps: tuple[int, float, int]) -> list[tuple[float, float]]:
    """`real` for each (trials, seconds, rows), on a cluster of so many raylets."""
    temporary = tempfile.mkdtemp(prefix="r")
    os.environ["RAY_TMPDIR"] = (
        temporary  # else every program that starts Ray here meanwhile finds this one and joins it
    )
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": SLOTS_PER_RAYLET, "object_store_memory": 80_000_000}
    )
    for _ in range(number - 1):
        cluster.add_node(num_cpus=SLOTS_PER_RAYLET, object_store_memory=80_000_000)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        return [real(*sweep, slots=number * SLOTS_PER_RAYLET) for sweep in sweeps]
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def large(costs: Costs, seconds: float, rows: int) -> Simulated:
    """20,000 trials on 512 GPUs; rows of one second travel together."""
    return simulate(costs, slots=512, trials=20_000, seconds=seconds, rows=max(1, min(rows, int(seconds))))


def draw(path: Path, costs: Costs, rows: int) -> None:
    """Share of the time in which 512 GPUs train, against a trial's length."""
    from matplotlib import pyplot, rc_context

    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    found = [large(costs, length, rows) for length in LENGTHS]
    shares, drivers = [100 * each.busy for each in found], [100 * each.driver for each in found]
    axes.semilogx(LENGTHS, shares, "o-", color="black", label="GPUs train")
    axes.semilogx(LENGTHS, drivers, "s--", color="tab:red", label="the driver is busy")
    axes.set(xlabel="seconds of a trial", ylabel="share of the time [%]", ylim=(0, 103))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": "scale"}):
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--rows", type=int, default=20, help="of a simulated trial")
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    trials = asked.trials
    few, many, long, checked = on_raylets(2, (trials // 3, 0.0, 2), (trials, 0.0, 2), (trials, 0.0, 20), (60, 1.0, 2))
    by_clock = Costs(many[0] - 2 * (row := (long[0] - many[0]) / 18), row)
    row = (long[1] - many[1]) / (18 * trials)
    by_processor = Costs((many[1] - few[1]) / (trials - trials // 3) - 2 * row, row, told())
    for name, costs in (("clock", by_clock), ("processor", by_processor)):
        print(
            f"driver by its {name}: {costs.trial * 1000:.1f} ms a trial, {costs.row * 1000:.1f} ms a row of 21 figures"
        )
    print(f"MLflow is told of a trial that runs in {by_processor.told * 1000:.1f} ms")
    wider = {raylets: on_raylets(raylets, (30 * raylets, 1.0, 2))[0] for raylets in (4, 8)}
    for raylets, (measured, _) in {2: checked, **wider}.items():
        slots = raylets * SLOTS_PER_RAYLET
        expected = simulate(by_clock, slots=slots, trials=10_000, seconds=1.0, rows=2).wall / 10_000
        print(f"{raylets} raylets, {slots} slots, trials of 1 s: {measured:.3f} s a trial; simulated {expected:.3f}")
    print(f"20,000 trials of {asked.rows} rows on 512 GPUs, from the processor's costs")
    for length in LENGTHS:
        found = large(by_processor, length, asked.rows)
        print(
            f"{length:6} s a trial: GPUs train {found.busy:6.1%}, driver busy {found.driver:6.1%}, {found.wall / 3600:7.2f} h"
        )
    if asked.figure:
        draw(asked.figure, by_processor, asked.rows)


if __name__ == "__main__":
    main()
