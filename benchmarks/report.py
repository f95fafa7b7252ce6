"""Time the report of 10,000 trials: 100 cells x 100 seeds, each with 50 evaluations and 1,460 hits.

    python benchmarks/report.py [--cells 100] [--seeds 100] [--rows 50]

The program prints the seconds to read the ledger, to write the sweep's line of `tune-dml list` and to write the report,
and peak memory. It simulates the sweep first, which is not timed.
"""

import json
import os
import resource
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from helpers.toys import METRIC, RHO, SETTINGS, Driver, event_of, plan_of, rho_space  # noqa: E402
from program import run_program  # noqa: E402

from trainables.evidence.stored import Hits, hits_file  # noqa: E402
from tune_dml.record.ledger import Ledger, trial_folder  # noqa: E402
from tune_dml.record.results import results_of  # noqa: E402
from tune_dml.report import headline, write_report  # noqa: E402
from tune_dml.space import Grid, Knob  # noqa: E402


def write_sweep(folder: Path, cells: int, seeds: int, rows: int) -> None:
    """Write a sweep with an interior optimum, unit noise and unit seed effects."""
    values = tuple(round(float(value), 6) for value in np.geomspace(0.001, 1.0, cells - 1))
    space = rho_space(scientific=(Knob(RHO.path, Grid(values, scale="log"), symbol="rho"),), fixed=SETTINGS)
    plan = plan_of(space=space, name=folder.name, seeds=seeds)
    os.fsync = lambda fd: None  # fsync protects against power cuts, which do not matter here
    driver = Driver(folder, plan)
    driver.session()
    random = np.random.default_rng(0)
    shifts = random.normal(size=seeds)
    labels = np.repeat(np.arange(73), 20)
    with Ledger(folder) as ledger:
        for trial in plan.trials():
            rho = trial.cell.knobs.get(RHO.path)
            top = 60.0 if rho is None else 70 - 3 * (np.log10(float(rho)) + 1.5) ** 2
            number = float(top + shifts[trial.seed] + random.normal())
            ledger.write(event_of("started", trial.key, host="node-1"))
            path = trial_folder(folder, trial.key) / "history.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            curve = number - 20 * np.exp(-np.arange(1, rows + 1) / (rows / 5))
            lines = []
            for i, value in enumerate(curve):
                norms = {"train/norm_mean": 8 - 0.05 * i, "train/norm_variance": round(5 / (i + 1), 4)}
                figures = {METRIC: round(float(value), 4), "train/loss": round(1 / (i + 1), 4), **norms}
                lines.append({"step": 10 * (i + 1), "time": float(i), **figures})
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            hits = Hits.of(random.random(len(labels)) < number / 100, labels, np.arange(len(labels)))
            (path.parent / hits_file("val")).write_bytes(hits.data())
            metrics = {METRIC: number, "val/map_at_r": number / 2, "train/loss": 0.1}
            end = {"status": "finished", "reason": "", "metrics": metrics, "seconds": 12.0, "step": 10 * rows}
            ledger.write(event_of("ended", trial.key, **end))


def main(cells: int = 100, seeds: int = 100, rows: int = 50) -> None:
    """Write a sweep, then time its report."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "big"
        write_sweep(folder, cells, seeds, rows)
        times = [time.perf_counter()]
        results = results_of(folder)
        times.append(time.perf_counter())
        headline(results)
        times.append(time.perf_counter())
        files = write_report(results, Path(scratch) / "report")
        times.append(time.perf_counter())
        page = files.html.stat().st_size / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    read, line, report = (end - start for start, end in pairwise(times))
    print(
        f"{len(results.trials)} trials: {read:.1f} s to read, {line:.1f} s for the line, {report:.1f} s to report, "
        f"peak {peak:.2f} GB, page {page:.1f} MB"
    )


if __name__ == "__main__":
    run_program(main, __doc__)
