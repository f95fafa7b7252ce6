"""Run two jobs of one user on one SLURM node again and again, and measure how soon after its job a first trial starts.

    python benchmarks/slurm.py --rounds 20     # ten minutes; needs root and Debian's SLURM: `make test-slurm` installs it

The nodes are virtual ones of this machine. In every second round the job that started first is cancelled; otherwise it
ends by itself. A round is passed if the other job's trials all finish, none is repeated, and the tables agree.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from helpers.slurm import Slurm, jobs
from helpers.sweeps import table
from program import run_program

from tune_dml.record.ledger import read_events
from tune_dml.record.state import read_state

SWEEP = ("sweep", "sec_rho", "--dataset", "digits", "--set", "training.steps=40", "--set", "training.eval_every=10")
JOB = ("submit", "slurm", "--nodes", "1", "--cpus-per-task", "2", "--sbatch", "--nodelist=n1", "--")


def starts(folder: Path) -> list[float]:
    """Return the times at which trials of a sweep started."""
    return [event.time for event in read_events(folder) if event.kind == "started"] if folder.exists() else []


def finished(folder: Path) -> int:
    """Return the number of trials that have finished."""
    state = read_state(folder)
    ends = [state.trial(key).end for key in state.trials]
    return sum(end is not None and end.status == "finished" for end in ends)


def seconds_in_queue(slurm: Slurm, name: str) -> int:
    """Return the seconds between submission and start of a sweep's job, by SLURM."""
    times = slurm.out("squeue", "-h", "--name", f"tune-dml-{name}", "-o", "%V %S").split()
    submitted, started = (time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")) for text in times[:2])
    return int(started - submitted)


def run_round(slurm: Slurm, place: Path, number: int) -> tuple[bool, float]:
    """Run two jobs on one node. Return whether neither harmed the other, and the first one's seconds to its first trial."""
    left, right = (place / "sweeps" / f"{side}-{number}" for side in ("left", "right"))
    began = time.time()
    slurm.tune(*JOB, *SWEEP, "--seeds", 1, "--name", left.name, cwd=place)
    slurm.wait_for(lambda: starts(left), seconds=120)
    seconds = starts(left)[0] - began - seconds_in_queue(slurm, left.name)
    slurm.tune(*JOB, *SWEEP, "--seeds", 1, "--name", right.name, cwd=place)
    slurm.wait_for(lambda: starts(right), seconds=120)
    is_cancelled = number % 2 == 1
    if is_cancelled:
        slurm.tune("cancel", "slurm", left.name, cwd=place)
    slurm.wait_for(lambda: not jobs(slurm, left.name) and not jobs(slurm, right.name), seconds=300)
    passed = finished(right) == len(starts(right)) == 6
    if not is_cancelled:
        passed &= finished(left) == len(starts(left)) == 6 and table(left) == table(right)
    return passed, seconds


def main(rounds: int = 20) -> None:
    """Print the outcome of every round, and the summary."""
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, Slurm(Path(folder) / "s", nodes=2) as slurm:
        slurm.profile("warn_seconds = 30\nrequeue = false\ntime = '20'\n")
        for number in range(rounds):
            outcomes.append(run_round(slurm, Path(folder), number))
            print(f"round {number}: passed {outcomes[-1][0]}, first trial after {outcomes[-1][1]:.1f} s", flush=True)
    seconds = [second for _, second in outcomes]
    print(f"{sum(passed for passed, _ in outcomes)} of {rounds} rounds passed")
    print(f"submit to first trial, without the queue: median {np.median(seconds):.1f} s, at most {max(seconds):.1f} s")


if __name__ == "__main__":
    run_program(main, __doc__)
