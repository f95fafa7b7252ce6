"""`tune-dml audit`: find the differing settings that keep a run from a protocol's result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_dml.cli.options import ReportOptions, absolute, verb
from tune_dml.cli.screen import print_result, table
from tune_dml.cli.sweep import run_with_progress
from tune_dml.planning.request import Racing, Request, Resources, Session

if TYPE_CHECKING:
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
    asked: Annotated[Request, "dataset", "data_root", "settings", "name"],
    margin: float = 1.0,
    plan: Annotated[bool, typer.Option("--plan", help="List the settings that differ; run nothing.")] = False,
    resources: Resources,
    session: Session,
    options: ReportOptions,
) -> None:
    """Find the settings that keep a run from a protocol's result; all differing settings are screened at once."""
    from tune_dml.campaigns.audit import plan_audit, run_audit

    request = replace(asked, space=run, name=None, margin=margin)
    planned = plan_audit(request, against, session.sweeps, cell=cell, cache_dir=session.cache)
    if plan:
        _show_plan(planned, options.as_json)
        return
    sweeps, report = run_audit(
        planned, lambda stage: run_with_progress(stage, session, Racing(), resources, options), asked.name
    )
    if report is None:
        sweep = sweeps[-1].name
        line = f"The sweep {sweep} is not complete. Run the same command again to continue."
        print_result({"incomplete": sweep}, [line], options.as_json)
    else:
        _show_verdict(report, absolute(options.output) or sweeps[0].folder / "audit", options.as_json)
    raise typer.Exit(max(sweep.exit_code for sweep in sweeps))


def _show_plan(audit: Audit, as_json: bool) -> None:
    columns, rows = ("setting", "yours", "protocol"), [audit.describe(index) for index in range(len(audit.factors))]
    differences = audit.differences
    data = {
        "run": audit.run,
        "protocol": audit.protocol.name,
        "settings": [dict(zip(("name", *columns[1:]), row, strict=True)) for row in rows],
        "ineffective": list(differences.ineffective),
        "unscreened": list(differences.unscreened),
        "data": list(audit.data),
        "trials": audit.trials,
    }
    lines = [
        table(f"{audit.run} differs from {audit.protocol.name}", columns, rows),
        *(f"Without effect: {path}" for path in differences.ineffective),
        *(f"Not screened (other pictures): {path}" for path in differences.unscreened),
        *(f"Data: {finding}." for finding in audit.data),
        f"An audit takes {audit.trials} trials.",
    ]
    print_result(data, lines, as_json)


def _show_verdict(report: AuditReport, folder: Path, as_json: bool) -> None:
    """Write the page of a complete audit, and print its verdict."""
    from tune_dml.report.several.audit_page import audit_data, audit_sentences, write_audit

    audit, page = report.audit, write_audit(report, folder)[0]
    rows = [
        (*audit.describe(index), report.metric.signed(row.effect), report.metric.interval(row.low, row.high))
        for index, row in sorted(enumerate(report.verdict.effects), key=lambda item: -abs(item[1].effect))
    ]
    columns = ("setting", "yours", "protocol", f"effect on {report.metric.name}", "simultaneous interval")
    lines = [
        table(f"{audit.run} against {audit.protocol.name}", columns, rows, right=columns[3:]),
        *audit_sentences(report),
        *(f"Note:    {note}" for note in report.notes),
        f"Page:    {page}",
    ]
    print_result({**audit_data(report), "report": str(page)}, lines, as_json)
