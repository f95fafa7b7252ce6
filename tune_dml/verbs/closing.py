"""How a session ends: the report is written and attached, the results, verdicts and next commands are printed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune_dml.api import Sweep, write_report
from tune_dml.verbs.view import table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tune_dml.report import ReportFiles, SweepSummary

__all__ = ["Written", "close", "publish"]


@dataclass(frozen=True)
class Written:
    """A report on disk and what it says."""

    sweep: Sweep
    summary: SweepSummary
    files: ReportFiles
    ui_command: str
    attached: str | None
    """Why the report is not in MLflow; None when it is."""

    @property
    def findings(self) -> list[str]:
        """What `--check` complains about: failed trials, and an optimum at the edge of the range."""
        results = self.sweep.results
        broken = results.count("failed") + results.count("diverged")
        found = [f"{broken} trials failed or diverged"] if broken else []
        return found + list(self.summary.edges)

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
            "files": {name: str(path) for name, path in vars(self.files).items()},
            "mlflow": {
                "command": self.ui_command,
                "waiting": tracking.waiting if tracking else 0,
                "error": (tracking.error if tracking else None) or self.attached,
            },
            "findings": self.findings,
        }

    def text(self) -> Iterable[RenderableType]:
        """A small table, the verdicts, and where to look next."""
        summary = self.summary
        rows = (
            (r.label, r.n, number(r.mean), interval(r.low, r.high), _signed(r.difference))
            for r in summary.rows
        )
        columns = ("cell", "seeds", summary.metric_label, "95% interval", "against baseline")
        yield table(self.sweep.name, columns, rows, right=columns[1:])
        for verdict in summary.verdicts:
            yield f"- {verdict}"
        yield ""
        yield from self.sweep.results.notes
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
    from tune_dml import report, tracking

    folder = (output or sweep.folder / "report").absolute()
    files = write_report(sweep, folder, margin=margin, unseal_test=unseal_test)
    plan = sweep.results.plan
    uri, _ = tracking.tracking_uri(tracking_uri)
    tracker = tracking.Tracker(sweep.folder, plan, uri, tracking.experiment_name(experiment, plan))
    attached = tracker.attach(list(vars(files).values()), "report")
    return Written(sweep, report.summary(sweep.results, margin=margin), files, tracker.ui_command(), attached)


def close(
    sweep: Sweep,
    console: Console,
    *,
    margin: float | None,
    output: Path | None,
    as_json: bool,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> int:
    """Publish a session's report and print it; returns the exit code."""
    written = publish(sweep, output, margin=margin, tracking_uri=tracking_uri, experiment=experiment)
    if as_json:
        sys.stdout.write(json.dumps(written.data(), indent=1, default=str) + "\n")
    else:
        for part in written.text():
            console.print(part)
    return sweep.exit_code


def number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:+.2f}"


def interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None or math.isnan(low) else f"{low:.2f} to {high:.2f}"
