"""Sweeps and the statements of their reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.toys import write_sweep
from pages import read

from tune_dml.record.results import Results
from tune_dml.report import ReportFiles, write_report


@dataclass(frozen=True)
class JudgedSweep:
    """A sweep and the statements of its report."""

    results: Results
    files: ReportFiles

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.files.verdicts.read_text()))

    @property
    def knob(self) -> dict[str, Any]:
        return dict(self.data["knobs"][0])

    @property
    def text(self) -> str:
        return read(self.files.html.read_text()).text


def judged(folder: Path, *, margin: float | None = None, **options: Any) -> JudgedSweep:
    results = write_sweep(folder / "s", **{"histories": False, "evidence": False, **options})
    return JudgedSweep(results, write_report(results, folder / "report", margin=margin))


def diverged(*labels: str, seeds: int = 3) -> dict[tuple[str, int], tuple[str, str]]:
    return {(label, seed): ("diverged", "loss is nan") for label in labels for seed in range(seeds)}
