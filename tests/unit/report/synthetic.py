"""Sweeps that were never trained: a plan and a ledger with numbers from a known law, as the platform writes them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Search
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.results import Results, results_of
from tune_dml.space import Baseline, Citation, Grid, Knob, Published, Space, Value

RHO = Knob("regularizer.rho", Grid((0.01, 0.1, 0.5, 0.9, 1.0), scale="log"), symbol="rho")
ETA = Knob("regularizer.eta", Grid((0.0, 0.5, 1.0), scale="log"), symbol="eta")
RHO_PUBLISHED = Published(
    paper="SEC-supplement",
    table="4",
    dataset="Cars196",
    methods=("Triplet+SEC-EMA", "Triplet+SEC"),
    hyperparameter="rho",
    baseline_method="Triplet",
    note="One run per value; selected on the test classes.",
)
STEEP = {0.01: 74.6, 0.1: 72.0, 0.5: 68.5, 0.9: 68.3, 1.0: 67.9}
FLAT = {0.01: 68.0, 0.1: 68.1, 0.5: 68.05, 0.9: 67.95, 1.0: 68.0}
SETTINGS: dict[str, Value] = {
    "data.name": "glyphs",
    "data.split": "class_disjoint",
    "evaluation.epoch": "last",
    "loss.name": "triplet",
    "loss.margin": 1.0,
    "model.backbone": "small_conv",
    "model.embedding_dim": 64,
    "regularizer.name": "sec",
    "regularizer.eta": 0.5,
    "training.steps": 400,
}
PROVENANCE = {
    "git": {"commit": "0" * 40, "dirty": False},
    "python": "3.11.7",
    "argv": ["tune-dml", "sweep", "sec_rho"],
}


def rho_space(**changes: Any) -> Space:
    """The momentum study of the SEC supplement."""
    fields: dict[str, Any] = {
        "name": "sec_rho",
        "title": "SEC-EMA: momentum rho of the mean norm",
        "question": "Does the momentum of the running mean norm matter?",
        "citation": Citation(
            "Zhang, Li, Zhang", "Deep Metric Learning with Spherical Embedding", "NeurIPS", 2020, "Table 4"
        ),
        "scientific": (RHO,),
        "fixed": {"loss.name": "triplet"},
        "baseline": Baseline("no SEC", {"regularizer.name": "none"}),
        "published": (RHO_PUBLISHED,),
        "notes": ("The best published value is the lowest tested.",),
    }
    return Space(**{**fields, **changes})


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
) -> Results:
    """Write a sweep into `folder` and read it back.

    `means`: knob value (or tuple of values, in the order of the knobs) -> true mean. `failures`: (cell label, seed) -> (status,
    reason). `missing`: (cell label, seed) of trials that have not run. Without `histories` or `evidence` trials leave none.
    """
    space = space or rho_space()
    cells = [_baseline_cell(space)] if baseline is not None and space.baseline else []
    truth = {cell.digest: float(baseline or 0) for cell in cells}
    for point, mean in means.items():
        values = point if isinstance(point, tuple) else (point,)
        cell = _cell(len(cells), space, values, cell_settings or {})
        cells.append(cell)
        truth[cell.digest] = mean
    plan = Plan(
        name=folder.name,
        space=space,
        dataset=dataset,
        seeds=tuple(seeds),
        cells=tuple(cells),
        search=search or Search(),
        base_settings={**SETTINGS, **(cell_settings or {})},
        origins={"loss.name": "space sec_rho"},
        data_digest="d" * 64,
    )
    folder.mkdir(parents=True)
    plan.save(folder / "plan.json")
    random = np.random.default_rng(7)
    shifts = {seed: seed_sd * random.normal() for seed in seeds}
    runs = {"parent": "f" * 32}
    with Ledger(folder) as book:
        book.append("session", provenance=PROVENANCE)
        book.append("note", text="1 trial was tried again after a lost worker")
        for trial in plan.trials():
            number = truth[trial.cell.digest] + shifts[trial.seed] + sd * random.normal()
            if (trial.cell.label, trial.seed) in missing:
                continue
            runs[trial.key] = hashlib.md5(trial.key.encode(), usedforsecurity=False).hexdigest()
            book.append("started", trial.key, host="node-1")
            status, reason = (failures or {}).get((trial.cell.label, trial.seed), ("finished", ""))
            if histories:
                _history(book, trial.key, trial.cell, random, short=status != "finished")
            if evidence and status == "finished":
                leave_evidence(trial_folder(folder, trial.key), trial.seed, number)
            metrics = _metrics(number, random) if status == "finished" else {}
            seconds = 12.0 + trial.cell.index
            book.append("ended", trial.key, status=status, reason=reason, metrics=metrics, seconds=seconds, step=400)
    (folder / "mlflow.json").write_text(json.dumps({"runs": runs}))
    return results_of(folder)


def _metrics(number: float, random: np.random.Generator) -> dict[str, float]:
    test = number - 3 + 0.5 * random.normal()
    return {
        "val/recall_at_1": number,
        "val/map_at_r": number / 2,
        "val/norm_mean": 3.0,
        "train/loss": 0.1,
        "train/norm_variance": 0.04,
        "test/recall_at_1": test,
        "test/map_at_r": test / 2,
    }


def _history(book: Ledger, key: str, cell: Cell, random: np.random.Generator, *, short: bool) -> None:
    rho = next((value for value in cell.knobs.values() if isinstance(value, float)), None)
    level = 8.0 if rho is None else 6.0 - 2 * float(rho) ** 0.3
    for step in (100, 200) if short else (100, 200, 300, 400):
        share = step / 400
        row: dict[str, float] = {
            "step": step,
            "val/recall_at_1": 50 + 10 * share + random.normal(),
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
        book.report(key, row)


def leave_evidence(folder: Path, seed: int, number: float) -> None:
    """A histogram around the trial's metric, and a sheet of two queries with one right answer of four."""

    def tile(picture: int, right: bool | None) -> dict[str, Any]:
        similarity = None if right is None else 0.5
        return {"picture": picture, "name": f"bird <{picture % 7}>", "right": right, "similarity": similarity}

    first = 100 * seed
    rows = [
        [tile(first + 0, None), tile(first + 7, True), tile(first + 8, False)],
        [tile(first + 1, None), tile(first + 9, False), tile(first + 3, False)],
    ]
    norms = {
        "low": number / 10,
        "high": number / 10 + 2,
        "counts": [1, 4, 8, 3],
        "mean": number / 10 + 1,
        "variance": 0.25,
    }
    body = {"version": 1, "step": 400, "part": "validation pictures", "norms": norms}
    (folder / "evidence").mkdir(parents=True, exist_ok=True)
    sheet = {"titles": [[0, "query"]], "rows": rows}
    (folder / "evidence" / "evidence.json").write_text(json.dumps({**body, "sheet": sheet}))
    picture = Image.new("RGB", (488, 648), (seed, int(number), 200))
    picture.save(folder / "evidence" / "sheet.jpg")


def _cell(index: int, space: Space, values: tuple[Value, ...], settings: Mapping[str, Value]) -> Cell:
    knobs = {knob.path: value for knob, value in zip(space.knobs, values, strict=True)}
    label = ", ".join(
        f"{knob.symbol or knob.path}={f'{value:.4g}' if isinstance(value, float) else value}"
        for knob, value in zip(space.knobs, values, strict=True)
    )
    return Cell(index, label, knobs, {**SETTINGS, **settings, **knobs}, _digest([label, list(map(repr, values))]))


def _baseline_cell(space: Space) -> Cell:
    assert space.baseline is not None
    settings = {**SETTINGS, **space.baseline.settings}
    return Cell(0, space.baseline.label, {}, settings, _digest(["baseline"]), baseline=True)


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def crossed(first: Sequence[Value], second: Sequence[Value]) -> list[tuple[Value, Value]]:
    """The full grid of two knobs."""
    return list(itertools.product(first, second))
