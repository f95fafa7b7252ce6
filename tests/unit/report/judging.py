"""Sweeps and the statements of their reports."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.toys import ETA, RHO, STEEP, crossed, rho_space, write_sweep
from pages import Element, read

from tune_dml.record.results import Results, TrialResult
from tune_dml.report import ReportFiles, write_report
from tune_dml.report.analysis import Analysis
from tune_dml.report.questions import answers
from tune_dml.report.section import Section

FAILURES = {
    ("rho=0.9", 1): ("diverged", "loss is not finite at step 180"),
    ("rho=1", 0): ("failed", "out of memory: <b>CUDA</b>"),
    ("rho=1", 2): ("failed", "out of memory"),
}
TWO_KNOBS = rho_space(scientific=(RHO, ETA), published=())
GRID = crossed(list(STEEP), [0.0, 0.5, 1.0])
"""Values of both knobs of `TWO_KNOBS`."""


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
    def html(self) -> str:
        return self.files.html.read_text()

    @property
    def page(self) -> Element:
        return read(self.html)

    @property
    def text(self) -> str:
        return self.page.text


def report_of(results: Results, folder: Path, **options: Any) -> JudgedSweep:
    return JudgedSweep(results, write_report(results, folder / "report", **options))


def judged(folder: Path, *, margin: float | None = None, **options: Any) -> JudgedSweep:
    results = write_sweep(folder / "s", **{"histories": False, "evidence": False, **options})
    return report_of(results, folder, margin=margin)


def with_metrics(results: Results, metrics_of: Callable[[TrialResult], Mapping[str, float]]) -> Results:
    """Return the sweep as if each trial had ended with these metrics."""
    return replace(results, trials=tuple(replace(trial, metrics=metrics_of(trial)) for trial in results.trials))


def section_of(analysis: Analysis, name: str, *, traces: bool = False) -> Section | None:
    return next((section for section in answers(analysis, traces=traces) if section.name == name), None)


def diverged(*labels: str, seeds: int = 3) -> dict[tuple[str, int], tuple[str, str]]:
    return {(label, seed): ("diverged", "loss is nan") for label in labels for seed in range(seeds)}
