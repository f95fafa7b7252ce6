"""One toy sweep for all tests: a real plan, and a folder as a driver writes it, without training.

`plan_of` plans any knobs on the digits. `Driver` writes one event at a time; `write_sweep` a whole sweep with
known true means.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from trainables.context import SEALED
from trainables.files import write_whole
from tune_dml.planning.arms.settings import study_arm
from tune_dml.planning.plan import Plan, PlannedTrial, make_plan
from tune_dml.planning.study import Search, Study
from tune_dml.record.events import Event, read_event
from tune_dml.record.held_out.sealed import record_opening
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.results import Results, results_of
from tune_dml.record.state import read_state
from tune_dml.space import Baseline, Citation, CurveReference, Grid, Knob, Space, Value

METRIC = "val/recall_at_1"
RHO = Knob("regularizer.rho", Grid((0.01, 0.1, 0.5, 0.9, 1.0), scale="log"), symbol="rho")
MARGINS = Knob("loss.margin", Grid((0.1, 1.0)))
ETA = Knob("regularizer.eta", Grid((0.0, 0.5, 1.0), scale="log"), symbol="eta")
STEEP = {0.01: 74.6, 0.1: 72.0, 0.5: 68.5, 0.9: 68.3, 1.0: 67.9}
FLAT = {0.01: 68.0, 0.1: 68.1, 0.5: 68.05, 0.9: 67.95, 1.0: 68.0}
SETTINGS: dict[str, Value] = {
    **{"loss.name": "triplet", "regularizer.name": "sec", "regularizer.eta": 0.5, "optim.name": "sgd"},
    **{"training.steps": 400, "training.eval_every": 100},
}
PROVENANCE = {"git": {"commit": "0" * 40, "dirty": False}, "python": "3.11.7", "argv": ["tune-dml", "sweep", "sec_rho"]}


def space_of(*knobs: Knob, **fields: Any) -> Space:
    """Return a space of these knobs, without a citation."""
    needed = {"name": "toy", "title": "Toy", "question": "?", "citation": None, "scientific": knobs, "fixed": {}}
    return Space(**{**needed, **fields})


def rho_space(**changes: Any) -> Space:
    """Return the momentum study of the SEC supplement."""
    title, note = "Deep Metric Learning with Spherical Embedding", "One run per value; selected on the test classes."
    table = {"paper": "SEC-supplement", "table": "4", "dataset": "Cars196", "baseline_method": "Triplet", "note": note}
    published = CurveReference(methods=("Triplet+SEC-EMA", "Triplet+SEC"), hyperparameter="rho", **table)
    fields: dict[str, Any] = {
        "name": "sec_rho",
        "title": "SEC-EMA: momentum rho of the mean norm",
        "question": "Does the momentum of the running mean norm matter?",
        "citation": Citation("Zhang, Li, Zhang", title, "NeurIPS", 2020, "Table 4"),
        "baseline": Baseline("no SEC", {"regularizer.name": "none"}),
        "published": (published,),
        "notes": ("The best published value is the lowest tested.",),
        **changes,
    }
    return space_of(*fields.pop("scientific", (RHO,)), **fields)


def plan_of(*knobs: Knob, seeds: int | Sequence[int] = 2, **options: Any) -> Plan:
    """Return a plan of these knobs, or of `space`, on digits. `overrides`: user settings; others go to `Study`."""
    space, data_digest = options.pop("space", None) or space_of(*knobs), options.pop("data_digest", "d" * 64)
    dataset, settings = options.pop("dataset", "digits"), options.pop("overrides", {})
    protocol = next((protocol for protocol in space.protocols if protocol.dataset == dataset), None)
    name, every = options.pop("name", "toy"), tuple(range(seeds) if isinstance(seeds, int) else seeds)
    arms = tuple(study_arm(space, arm, protocol, dataset=dataset, settings=settings) for arm in space.every_arm)
    study = Study(name=name, space=space, dataset=dataset, seeds=every, settings=settings, arms=arms, **options)
    return make_plan(study, data_digest)


def event_of(kind: str, key: str = "", /, **body: Any) -> Event:
    return read_event({"kind": kind, "time": 0.0, "key": key, "body": json.loads(json.dumps(body, default=float))})


class Driver:
    def __init__(self, folder: Path, plan: Plan):
        self.folder, self.plan, self.trials = folder, plan, plan.trials()
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / "plan.json")

    def event(self, kind: str, key: str = "", /, **body: Any) -> None:
        with Ledger(self.folder) as ledger:
            ledger.write(event_of(kind, key, **body))

    def session(self) -> None:
        self.event("session", provenance=PROVENANCE)

    def started(self, trial: PlannedTrial) -> None:
        self.event("started", trial.key, host="node-1")

    def row(self, trial: PlannedTrial, step: int, **metrics: Any) -> None:
        with Ledger(self.folder) as ledger:
            ledger.report(trial.key, {"step": step, "time": 1.7e9 + step, METRIC: 50.0 + step, **metrics})

    def ended(self, trial: PlannedTrial, status: str = "finished", **body: Any) -> None:
        self.event("ended", trial.key, **{"status": status, "reason": "", "metrics": {}, **body})

    def run(self, *trials: PlannedTrial, rows: int = 2, first: int = 1, end: bool = True) -> None:
        """Write whole trials, or the rows from `first` on, with or without their ends."""
        for trial in trials:
            if first == 1:
                self.started(trial)
            for step in range(first, rows + 1):
                self.row(trial, step)
            if end:
                self.ended(trial, step=rows, seconds=1.5, metrics={METRIC: 50.0 + rows})

    def leave(self, trial: PlannedTrial, **files: str) -> None:
        """Write a trial's evidence: the text of evidence.json (`evidence`) and of sheet.jpg (`sheet`)."""
        folder = trial_folder(self.folder, trial.key) / "evidence"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / {"evidence": "evidence.json", "sheet": "sheet.jpg"}[name]).write_text(text)


def write_results(folder: Path, plan: Plan, number_of: Callable[[PlannedTrial], float], **others: float) -> Results:
    """Write a sweep whose trials ended with this number, and with the same other metrics; read it back."""
    driver = Driver(folder, plan)
    driver.session()
    for trial in driver.trials:
        driver.started(trial)
        driver.ended(trial, step=1, seconds=1.0, metrics={plan.metric: number_of(trial), **others})
    return results_of(folder)


def write_sweep(
    folder: Path,
    *,
    space: Space | None = None,
    means: Mapping[tuple[Value, ...], float] | Mapping[Value, float] = STEEP,
    baseline: float | None = 60.8,
    seeds: Sequence[int] = (0, 1, 2),
    sd: float = 0.4,
    seed_sd: float = 1.0,
    failures: Mapping[tuple[str, int], tuple[str, str]] | None = None,
    missing: Sequence[tuple[str, int]] = (),
    cell_settings: Mapping[str, Value] | None = None,
    search: Search | None = None,
    dataset: str = "glyphs",
    histories: bool = True,
    evidence: bool = True,
    confirmed: Mapping[int, float] | None = None,
    older: bool = False,
) -> Results:
    """Write a sweep into `folder` and read it back.

    `means` maps a knob value (or a tuple of values in the order of the knobs) to a true mean; in a space with arms, a
    cell label. `failures` maps (cell label, seed) to (status, reason). `missing` has (cell label, seed) of trials that
    did not run. `histories` and `evidence` say whether trials write them. `confirmed` maps fresh seeds to the offset of
    their trials from the truth, for the best cell and the baseline. `older` writes test metrics to the ledger, as older
    versions did, not to sealed files.
    """
    plan, truth = _plan_and_truth(
        folder.name, space or rho_space(), means, baseline, tuple(seeds), cell_settings or {}, search, dataset
    )
    random = np.random.default_rng(7)
    shifts = {seed: seed_sd * random.normal() for seed in seeds}
    runs = {"parent": "f" * 32}
    driver = Driver(folder, plan)
    driver.session()
    with Ledger(folder) as ledger:
        ledger.write(event_of("note", text="1 trial was tried again after a lost worker"))
        if plan.search.num_samples:
            ledger.write(event_of("exhausted", samples=plan.search.num_samples))  # all its cells are in the plan
        for trial in plan.trials():
            number = truth[trial.cell.digest] + shifts[trial.seed] + sd * random.normal()
            if (trial.cell.label, trial.seed) in missing:
                continue
            runs[trial.key] = hashlib.md5(trial.key.encode(), usedforsecurity=False).hexdigest()
            ledger.write(event_of("started", trial.key, host="node-1"))
            status, reason = (failures or {}).get((trial.cell.label, trial.seed), ("finished", ""))
            if histories:
                for row in _history(trial, random, steps=400 if status == "finished" else 200):
                    ledger.report(trial.key, row)
            if evidence and status == "finished":
                leave_evidence(trial_folder(folder, trial.key), trial.seed, number)
            metrics = _metrics(number, random) if status == "finished" else {}
            seconds = 12.0 + trial.cell.index
            if metrics and not older:
                metrics = seal(folder, trial.key, metrics)
            end = 200 if status == "stopped" else 400
            body = {"status": status, "reason": reason, "metrics": metrics, "seconds": seconds, "step": end}
            ledger.write(event_of("ended", trial.key, **body, **({"at_rung": 51.0} if status == "stopped" else {})))
    (folder / "mlflow.json").write_text(json.dumps({"runs": runs}))
    if confirmed:
        _confirm(driver, truth, confirmed)
    return results_of(folder)


def bare_sweep(folder: Path, **options: Any) -> Results:
    """Write a sweep whose trials leave no histories and no evidence, and read it back."""
    return write_sweep(folder, histories=False, evidence=False, **options)


def seal(folder: Path, key: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Seal a trial's test metrics, as its worker does; return the others."""
    sealed = {name: value for name, value in metrics.items() if name.startswith("test/")}
    write_whole(trial_folder(folder, key) / SEALED, json.dumps(sealed), private=True)
    return {name: value for name, value in metrics.items() if name not in sealed}


def opened(results: Results) -> Results:
    """Return the sweep with its test metrics opened."""
    record_opening(read_state(results.folder), "rho=0.01")
    return results_of(results.folder)


def _confirm(driver: Driver, truth: Mapping[str, float], offsets: Mapping[int, float]) -> None:
    best = max((cell for cell in driver.plan.cells if not cell.baseline), key=lambda cell: truth[cell.digest])
    cells = [cell for cell in driver.plan.cells if cell.baseline] + [best]
    driver.event("confirm", cells=[cell.digest for cell in cells], seeds=list(offsets))
    for seed, offset in offsets.items():
        for cell in cells:
            trial = driver.plan.trial(cell, seed)
            driver.started(trial)
            driver.ended(trial, step=400, seconds=1.0, metrics={METRIC: truth[cell.digest] + offset * (1 + cell.index)})


def _plan_and_truth(
    name: str,
    space: Space,
    means: Mapping[Any, float],
    baseline: float | None,
    seeds: tuple[int, ...],
    cell_settings: Mapping[str, Value],
    search: Search | None,
    dataset: str,
) -> tuple[Plan, dict[str, float]]:
    """Return a plan of the baseline and the points with a mean, and the true means by cell digest."""
    searched = {knob.path for knob in space.knobs}
    settings = {**SETTINGS, **space.fixed, **cell_settings}
    fixed = {path: value for path, value in settings.items() if path not in searched}
    listed = all(isinstance(knob.domain, Grid) for knob in space.knobs)
    planned = search or (Search() if listed else Search("random", num_samples=len(means)))
    plan = plan_of(space=replace(space, fixed=fixed), name=name, dataset=dataset, seeds=seeds, search=planned)
    cells = [cell for cell in plan.cells if cell.baseline and baseline is not None]
    if space.arms:  # then `means` go by the labels of the cells
        return plan, {cell.digest: means[cell.label] for cell in plan.cells}
    truth = {cell.digest: float(baseline or 0) for cell in cells}
    for point, mean in means.items():
        values = point if isinstance(point, tuple) else (point,)
        cells.append(plan.cell(len(cells), {knob.path: value for knob, value in zip(space.knobs, values, strict=True)}))
        truth[cells[-1].digest] = mean
    return replace(plan, cells=tuple(cells), search=search or Search()), truth


def _metrics(number: float, random: np.random.Generator) -> dict[str, float]:
    test = number - 3 + 0.5 * random.normal()
    return {
        **{METRIC: number, "val/map_at_r": number / 2, "val/norm_mean": 3.0},
        **{"train/loss": 0.1, "train/norm_variance": 0.04, "test/recall_at_1": test, "test/map_at_r": test / 2},
    }


def _history(trial: PlannedTrial, random: np.random.Generator, *, steps: int) -> list[dict[str, float]]:
    rho = next((value for value in trial.cell.knobs.values() if isinstance(value, float)), None)
    level = 8.0 if rho is None else 6.0 - 2 * float(rho) ** 0.3
    rows = []
    for step in range(100, steps + 1, 100):
        share = step / 400
        row: dict[str, float] = {
            "step": step,
            METRIC: 50 + 10 * share + random.normal(),
            "train/loss": 1 - share,
            "train/norm_mean": 8.7 + (level - 8.7) * share + 0.05 * random.normal(),
            "train/norm_variance": (5.5 if rho is None else 5 * (1 - share) + 0.05) * (1 + 0.05 * random.normal()),
            "test/recall_at_1": 40.0,
        }
        if step % 200 == 0:
            row["train/direction_mean"] = 1 - 0.5 * share
            row["train/direction_variance"] = (0.08 if rho is None else 0.02 + 0.01 * rho) * (1.2 - share)
        if rho is not None:
            row["train/mu"] = row["train/norm_mean"] + 0.1 * random.normal()
        rows.append(row)
    return rows


def leave_evidence(folder: Path, seed: int, number: float) -> None:
    """Write a histogram around the trial's metric, and a sheet of two queries with one correct answer of four."""

    def tile(picture: int, right: bool | None) -> dict[str, Any]:
        similarity = None if right is None else 0.5
        return {"picture": picture, "name": f"bird <{picture % 7}>", "right": right, "similarity": similarity}

    first = 100 * seed
    verdicts = {0: None, 7: True, 8: False}, {1: None, 9: False, 3: False}
    rows = [[tile(first + picture, right) for picture, right in row.items()] for row in verdicts]
    low = number / 10
    norms = {"low": low, "high": low + 2, "counts": [1, 4, 8, 3], "mean": low + 1, "variance": 0.25}
    body = {"version": 1, "step": 400, "part": "validation pictures", "norms": norms}
    (folder / "evidence").mkdir(parents=True, exist_ok=True)
    sheet = {"titles": [[0, "query"]], "rows": rows}
    (folder / "evidence" / "evidence.json").write_text(json.dumps({**body, "sheet": sheet}))
    picture = Image.new("RGB", (488, 648), (seed, int(number), 200))
    picture.save(folder / "evidence" / "sheet.jpg")


def crossed(first: Sequence[Value], second: Sequence[Value]) -> list[tuple[Value, Value]]:
    return list(itertools.product(first, second))
