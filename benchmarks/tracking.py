"""How long MLflow takes to be told of a sweep, trials that have ended, in a new SQLite store, and to be compared with it.

    python benchmarks/tracking.py --trials 10000

Beside it, what MLflow's own client takes for the least that such a run can be (made, one batch, ended): what is left above it
is ours. Seconds of the processor are printed too, for a machine that is shared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.toys import METRIC, PROVENANCE, event_of, plan_of  # noqa: E402

from tune_dml.record.judging.judgement import Judgement  # noqa: E402
from tune_dml.record.ledger import Ledger  # noqa: E402
from tune_dml.record.state import SweepState  # noqa: E402
from tune_dml.space import Grid, Knob  # noqa: E402
from tune_dml.tracking.client import experiment_id_of, open_client, quiet_mlflow  # noqa: E402
from tune_dml.tracking.tracker import Tracker  # noqa: E402

BARE = 100
"""Runs of the client alone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=2, help="evaluations of a trial")
    parser.add_argument("--metrics", type=int, default=24, help="beside the sweep's own")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = write(folder / "sweep", asked)
        tracker = Tracker(state, f"sqlite:///{folder}/mlflow.db", "bench")
        with quiet_mlflow():
            open_client(tracker.uri)  # its tables are made once, for every sweep
        wall, processor = time.perf_counter(), time.process_time()
        report = tracker.stop()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        assert report.error is None, report.error
        print(f"{report.trials} trials, {asked.rows} rows of {asked.metrics + 1} metrics")
        print(f"in all: {wall:.0f} s ({processor:.0f} s of processor)")
        print(f"a trial: {1000 * wall / report.trials:.1f} ms ({1000 * processor / report.trials:.1f} ms of processor)")
        wall = time.perf_counter()
        proven = tracker.reconcile(Judgement((), {}, {}, "", ""))
        assert proven.equal, proven
        print(
            f"compared, {proven.counts.points} points: {1000 * (time.perf_counter() - wall) / report.trials:.1f} ms a trial"
        )
        bare, own = client_alone(tracker.uri, state, asked)
        print(f"the client alone: {bare:.1f} ms ({own:.1f} ms of processor) a run")


def write(folder: Path, asked: argparse.Namespace) -> SweepState:
    """A finished sweep of a hundred cells at most."""
    cells = min(100, asked.trials)
    knob = Knob("loss.margin", Grid(tuple(0.01 * (index + 1) for index in range(cells))), "m")
    plan = plan_of(knob, seeds=asked.trials // cells)
    folder.mkdir()
    plan.save(folder / "plan.json")
    with Ledger(folder) as ledger:
        ledger.write(event_of("session", provenance=PROVENANCE))
        for trial in plan.trials():
            ledger.write(event_of("started", trial.key, host="node-1"))
            for step in range(1, asked.rows + 1):
                others = {f"train/m{number}": 0.5 * step for number in range(asked.metrics)}
                ledger.report(trial.key, {"step": step, "time": 1.7e9 + step, METRIC: 50.0 + step, **others})
            ledger.write(
                event_of(
                    "ended",
                    trial.key,
                    status="finished",
                    reason="",
                    metrics={METRIC: 51.0},
                    seconds=1.0,
                    step=asked.rows,
                )
            )
    state = SweepState(folder, plan)
    state.update()
    return state


def client_alone(uri: str, state: SweepState, asked: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds a run, of the clock and of the processor."""
    from mlflow.entities import Metric, Param

    settings = state.plan.cells[0].settings
    metrics = [Metric(f"m{n}", 1.0, 1, step) for n in range(asked.metrics + 1) for step in range(asked.rows)]
    with quiet_mlflow():
        client = open_client(uri)
        experiment = experiment_id_of(client, "bare", uri)
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(BARE):
            run = client.create_run(experiment, 0, {f"tag{n}": "x" for n in range(18)}, "bare").info.run_id
            client.log_batch(run, metrics, [Param(name, str(value)) for name, value in settings.items()], [])
            client.set_terminated(run)
        scale = 1000 / BARE
        return scale * (time.perf_counter() - wall), scale * (time.process_time() - processor)


if __name__ == "__main__":
    main()
