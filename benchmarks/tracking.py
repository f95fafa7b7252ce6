"""Time the sync of a finished sweep to a new SQLite store of MLflow, and the comparison of the two.

    python benchmarks/tracking.py --trials 10000

The program also times MLflow's client alone for a minimal run (create, one batch, terminate). The difference is our
overhead. On shared machines, compare processor times.
"""

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.toys import METRIC, PROVENANCE, event_of, plan_of  # noqa: E402
from program import run_program  # noqa: E402

from tune_dml.record.judging.judgement import Judgement  # noqa: E402
from tune_dml.record.ledger import Ledger  # noqa: E402
from tune_dml.record.state import SweepState  # noqa: E402
from tune_dml.space import Grid, Knob  # noqa: E402
from tune_dml.tracking.client import experiment_id_of, open_client, quiet_mlflow  # noqa: E402
from tune_dml.tracking.tracker import Tracker  # noqa: E402

BARE = 100
"""Runs that the client alone writes."""


def main(trials: int = 1000, rows: int = 2, metrics: int = 24) -> None:
    """Time trials of some rows (evaluations), each with some metrics beside that of the sweep."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = write_sweep(folder / "sweep", trials, rows, metrics)
        tracker = Tracker(state, f"sqlite:///{folder}/mlflow.db", "bench")
        with quiet_mlflow():
            open_client(tracker.uri)  # creates the tables, which serve every sweep
        wall, processor = time.perf_counter(), time.process_time()
        report = tracker.stop()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        assert report.error is None, report.error
        print(f"{report.trials} trials, {rows} rows of {metrics + 1} metrics")
        print(f"in all: {wall:.0f} s ({processor:.0f} s of processor)")
        print(f"a trial: {1000 * wall / report.trials:.1f} ms ({1000 * processor / report.trials:.1f} ms of processor)")
        wall = time.perf_counter()
        comparison = tracker.reconcile(Judgement((), {}, {}, "", ""))
        assert comparison.is_equal, comparison
        wall = 1000 * (time.perf_counter() - wall) / report.trials
        print(f"comparison of {comparison.counts.points} points: {wall:.1f} ms a trial")
        wall, processor = time_client(tracker.uri, state, rows, metrics)
        print(f"the client alone: {wall:.1f} ms ({processor:.1f} ms of processor) a run")


def write_sweep(folder: Path, trials: int, rows: int, metrics: int) -> SweepState:
    """Write a finished sweep of at most 100 cells."""
    cells = min(100, trials)
    knob = Knob("loss.margin", Grid(tuple(0.01 * (index + 1) for index in range(cells))), "m")
    plan = plan_of(knob, seeds=trials // cells)
    folder.mkdir()
    plan.save(folder / "plan.json")
    with Ledger(folder) as ledger:
        ledger.write(event_of("session", provenance=PROVENANCE))
        for trial in plan.trials():
            ledger.write(event_of("started", trial.key, host="node-1"))
            for step in range(1, rows + 1):
                further = {f"train/m{number}": 0.5 * step for number in range(metrics)}
                ledger.report(trial.key, {"step": step, "time": 1.7e9 + step, METRIC: 50.0 + step, **further})
            end = {"status": "finished", "reason": "", "metrics": {METRIC: 51.0}, "seconds": 1.0, "step": rows}
            ledger.write(event_of("ended", trial.key, **end))
    state = SweepState(folder, plan)
    state.update()
    return state


def time_client(uri: str, state: SweepState, rows: int, metrics: int) -> tuple[float, float]:
    """Return elapsed and processor milliseconds per run of MLflow's client alone."""
    from mlflow.entities import Metric, Param

    settings = state.plan.cells[0].settings
    points = [Metric(f"m{n}", 1.0, 1, step) for n in range(metrics + 1) for step in range(rows)]
    with quiet_mlflow():
        client = open_client(uri)
        experiment = experiment_id_of(client, "bare", uri)
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(BARE):
            run = client.create_run(experiment, 0, {f"tag{n}": "x" for n in range(18)}, "bare").info.run_id
            client.log_batch(run, points, [Param(name, str(value)) for name, value in settings.items()], [])
            client.set_terminated(run)
        scale = 1000 / BARE
        return scale * (time.perf_counter() - wall), scale * (time.process_time() - processor)


if __name__ == "__main__":
    run_program(main, __doc__)
