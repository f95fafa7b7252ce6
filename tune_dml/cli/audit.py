"""`tune-dml audit`: find the differing settings that keep a run from a protocol's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_dml.cli.options import ReportOptions, absolute, verb
from tune_dml.cli.screen import Lines, console_for, progress_bar, show, table
from tune_dml.planning.request import Resources, Session
from tune_dml.space import Value

if TYPE_CHECKING:
    from tune_dml.campaigns.audit import AuditResult
    from tune_dml.planning.audit import Audit
    from tune_dml.report.several.audit_page import AuditReport

ORDER = 67
EXAMPLES = """
tune-dml audit config.yaml --against glyphs/triplet --plan
tune-dml audit config.yaml --against glyphs/triplet
tune-dml audit rho1 --against 68.4
"""


@verb
def audit(
    run: Annotated[
        str,
        typer.Argument(
            metavar="SPACE|SWEEP|FILE.yaml", help="Your run: a space, a sweep, a sweep file or a file of settings."
        ),
    ],
    *,
    against: Annotated[
        str, typer.Option(metavar="PROTOCOL|NUMBER", help="The protocol, or the number that you cannot reach.")
    ],
    cell: Annotated[str | None, typer.Option(help="Cell of a sweep or space; its best or first by default.")] = None,
    dataset: str | None,
    data_root: Path | None,
    settings: Mapping[str, Value] | None,
    name: str | None,
    margin: Annotated[float, typer.Option(help="Smallest difference that matters, in units of the metric.")] = 1.0,
    plan: Annotated[bool, typer.Option("--plan", help="List the settings that differ; run nothing.")] = False,
    resources: Resources,
    session: Session,
    options: ReportOptions,
) -> None:
    """Find the settings that keep a run from a protocol's result; all differing settings are screened at once."""
    from tune_dml.campaigns.audit import AuditRequest, plan_audit, run_audit

    request = AuditRequest(run, against, dataset, absolute(data_root), settings, cell, name, margin)
    if plan:
        show(_AuditPlanView(plan_audit(request, session.sweeps, session.cache)), options.as_json)
        return
    console = console_for(options.as_json)
    with progress_bar(console, "decoding") as progress:
        result = run_audit(
            request, session, resources, console=console, data_progress=progress, other_checks=[options.problems]
        )
    show(_view_of(result, absolute(options.output)), options.as_json)
    raise typer.Exit(result.exit_code)


@dataclass(frozen=True)
class _AuditPlanView:
    """The settings that an audit would screen."""

    audit: Audit

    def data(self) -> dict[str, object]:
        return {
            "run": self.audit.run,
            "protocol": self.audit.protocol.name,
            "settings": [dict(zip(("name", "yours", "protocol"), row, strict=True)) for row in self._rows()],
            "ineffective": list(self.audit.differences.ineffective),
            "unscreened": list(self.audit.differences.unscreened),
            "data": list(self.audit.data),
            "trials": self.audit.trials,
        }

    def _rows(self) -> list[tuple[str, str, str]]:
        return [self.audit.describe(index) for index in range(len(self.audit.factors))]

    def text(self) -> Lines:
        title = f"{self.audit.run} differs from {self.audit.protocol.name}"
        yield table(title, ("setting", "yours", "protocol"), self._rows())
        yield from (f"Without effect: {path}" for path in self.audit.differences.ineffective)
        yield from (f"Not screened (other pictures): {path}" for path in self.audit.differences.unscreened)
        yield from (f"Data: {finding}." for finding in self.audit.data)
        yield f"An audit takes {self.audit.trials} trials."


def _view_of(result: AuditResult, folder: Path | None) -> _IncompleteAudit | _AuditView:
    from tune_dml.report.several.audit_page import AuditReport, write_audit

    if result.verdict is None or result.second is None or result.suspects is None:
        return _IncompleteAudit((result.second or result.first).name)
    report = AuditReport(
        result.audit, result.verdict, result.suspects, result.first.results, result.second.results, result.notes
    )
    return _AuditView(report, write_audit(report, folder or result.first.folder / "audit"))


@dataclass(frozen=True)
class _IncompleteAudit:
    """An audit that was interrupted."""

    sweep: str

    def data(self) -> dict[str, object]:
        return {"incomplete": self.sweep}

    def text(self) -> Lines:
        yield f"The sweep {self.sweep} is not complete. Run the same command again to continue."


@dataclass(frozen=True)
class _AuditView:
    """An audit on disk."""

    report: AuditReport
    files: tuple[Path, Path]

    def data(self) -> dict[str, object]:
        from tune_dml.report.several.audit_page import audit_data

        return {**audit_data(self.report), "report": str(self.files[0])}

    def text(self) -> Lines:
        from tune_dml.report.several.audit_page import audit_sentences

        metric, effects = self.report.metric, self.report.verdict.effects
        rows = [
            (*self.report.audit.describe(index), metric.signed(row.effect), metric.interval(row.low, row.high))
            for index, row in sorted(enumerate(effects), key=lambda item: -abs(item[1].effect))
        ]
        columns = ("setting", "yours", "protocol", f"effect on {metric.name}", "simultaneous interval")
        yield table(
            f"{self.report.audit.run} against {self.report.audit.protocol.name}", columns, rows, right=columns[3:]
        )
        yield from audit_sentences(self.report)
        yield from (f"Note:    {note}" for note in self.report.notes)
        yield f"Page:    {self.files[0]}"
