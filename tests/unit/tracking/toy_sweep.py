"""A sweep on disk as its driver writes it."""

import json
import time
from collections.abc import Callable
from types import SimpleNamespace

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Search
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.space import Citation, Grid, Knob, Space
from tune_dml.tracking.tracker import Tracker

Look = Callable[[], SimpleNamespace]
"""What a reader of the store sees."""

Make = Callable[..., Tracker]
"""A new process's tracker."""

SPACE = Space(
    name="toy_gamma",
    title="Toy",
    question="Does gamma matter?",
    citation=Citation("A. Author", "A Title", "ICML", 2020, "table 3"),
    scientific=(Knob("loss.gamma", Grid((0.1, 1.0)), "γ"),),
    fixed={},
)


def make_plan(*, seeds=(0, 1), name="toy", long="short"):
    """Two cells; built by hand, so that no method has to exist."""
    settings = {"loss.name": "toy", "data.name": "glyphs", "optim.lr_milestones": [1, 2], "loss.note": long}
    cells = tuple(
        Cell(index, f"γ={gamma:g}", {"loss.gamma": gamma}, {**settings, "loss.gamma": gamma}, f"digest{index}")
        for index, gamma in enumerate((0.1, 1.0))
    )
    return Plan(name, SPACE, "glyphs", seeds, cells, Search(), settings, {}, "data0")


class Driver:
    """What the sweep's driver does to its folder."""

    def __init__(self, folder, plan):
        self.folder, self.plan, self.trials = folder, plan, plan.trials()
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / "plan.json")

    def event(self, kind, key="", /, **body):
        row = {"kind": kind, "time": time.time(), "key": key, "body": body}
        with (self.folder / "ledger.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def session(self):
        self.event("session", provenance={"git": {"commit": "c0ffee"}})

    def started(self, trial):
        self.event("started", trial.key, host="node1")

    def row(self, trial, step, **metrics):
        row = {"step": step, "time": 1_700_000_000.0 + step, "val/recall_at_1": 50.0 + step, **metrics}
        with Ledger(self.folder) as ledger:
            ledger.report(trial.key, row)

    def ended(self, trial, status="finished", **body):
        self.event("ended", trial.key, **{"status": status, "reason": "", "metrics": {}, **body})

    def run(self, trial, rows=2):
        """A whole trial."""
        self.started(trial)
        for step in range(1, rows + 1):
            self.row(trial, step)
        self.ended(trial, step=rows, seconds=1.5, metrics={"val/recall_at_1": 50.0 + rows})


def history(client, run, name="val/recall_at_1"):
    """(step, timestamp, value) of a metric."""
    found = client.get_metric_history(run.info.run_id, name)
    return sorted((point.step, point.timestamp, point.value) for point in found)


def snapshot(seen):
    """All that a reader can see, for comparison."""
    return sorted(
        (
            run.info.run_id,
            run.info.status,
            run.info.start_time,
            run.info.end_time,
            run.data.params,
            run.data.tags,
            {name: history(seen.client, run, name) for name in run.data.metrics},
        )
        for run in seen.runs
    )


def leave(driver, trial, **files):
    """What a trial leaves in its folder to look at."""
    folder = trial_folder(driver.folder, trial.key) / "evidence"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
