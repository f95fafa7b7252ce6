"""How a session ends: the report is written and attached, the results, verdicts and next commands are printed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune_dml.api import Sweep, write_report
from tune_dml.cli.view import table
from tune_dml.record.state import SweepState

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_dml.report import ReportFiles, SweepSummary


@dataclass(frozen=True)
class Written:
    """A report on disk and what it says."""

    sweep: Sweep
    summary: SweepSummary
    files: ReportFiles
    ui_command: str
    attached: str | None
    """Why the report is not in MLflow; None when it is."""

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        tracking = self.sweep.tracking
        return {
            "sweep": self.sweep.name,
            "exit_code": self.sweep.exit_code,
            "cells": [vars(row) for row in self.summary.rows],
            "verdicts": list(self.summary.verdicts),
            "counts": dict(self.summary.counts),
            "report": str(self.files.html),
            "files": [str(path) for path in self.files.paths],
            "mlflow": {
                "command": self.ui_command,
                "waiting": tracking.waiting if tracking else 0,
                "error": (tracking.error if tracking else None) or self.attached,
            },
            "findings": list(self.summary.findings),
            "next": list(self.summary.commands),
        }

    def text(self) -> Iterable[RenderableType]:
        """A small table, the verdicts, and where to look next."""
        summary = self.summary
        rows = (
            (
                row.label,
                f"{row.n}/{row.planned}",
                number(row.mean),
                interval(row.low, row.high),
                _signed(row.difference),
                interval(row.difference_low, row.difference_high),
            )
            for row in summary.rows
        )
        columns = ("cell", "seeds", summary.metric, "95% interval", "minus baseline", "95% simultaneous")
        yield table(self.sweep.name, columns, rows, right=columns[1:])
        for verdict in summary.verdicts:
            yield f"- {verdict}"
        for command in summary.commands:
            yield f"  next: {command}"
        yield ""
        yield from (f"Note:    {note}" for note in self.sweep.results.notes)
        if self.sweep.interrupted:
            yield f"Not complete. Continue with: tune-dml resume {self.sweep.name}"
        yield f"Report:  {self.files.html}"
        tracking = self.sweep.tracking
        if tracking is not None and tracking.error:
            waits = f"{tracking.waiting} trials wait in the ledger"
            yield f"MLflow:  away ({tracking.error}); {waits}: `tune-dml resume {self.sweep.name}` brings them over"
        elif self.attached:
            yield f"MLflow:  the report is not attached: {self.attached}"
        yield f"MLflow:  {self.ui_command}"


def publish(
    sweep: Sweep,
    output: Path | None,
    *,
    margin: float | None = None,
    unseal_test: bool = False,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> Written:
    """Write the report, attach it to the sweep's MLflow run, and read off the summary."""
    from tune_dml import tracking

    folder = (output or sweep.folder / "report").absolute()
    files = write_report(sweep, folder, margin=margin, unseal_test=unseal_test)
    plan = sweep.results.plan
    uri, _ = tracking.tracking_uri(tracking_uri)
    tracker = tracking.Tracker(SweepState(sweep.folder, plan), uri, tracking.experiment_name(experiment, plan))
    attached = tracker.attach([files.folder], "report")
    return Written(sweep, files.summary, files, tracker.ui_command(), attached)


def number(value: float | None) -> str:
    """Two decimals; nothing where there is no number."""
    return "" if value is None or math.isnan(value) else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:+.2f}"


def interval(low: float | None, high: float | None) -> str:
    """Both ends; nothing where there is no interval."""
    return "" if low is None or high is None or math.isnan(low) else f"{low:.2f} to {high:.2f}"
