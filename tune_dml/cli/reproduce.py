"""`tune-dml reproduce PAPER TABLE`: run the sweep behind a published table, and write the table with our results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainables.errors import Problem
from tune_dml.cli.options import ReportOptions, absolute, verb
from tune_dml.cli.screen import print_result
from tune_dml.cli.sweep import run_with_progress
from tune_dml.planning.request import Racing, Request, Resources, Session

if TYPE_CHECKING:
    from tune_dml.planning.reproduction import PrintedTable
    from tune_dml.report.published.reproduction import ReproducedNumber

ORDER = 45


@verb
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="sec-supplement, sec-rebuttal, dro or mpa.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Its number, as in the file of printed numbers.")],
    *,
    asked: Annotated[Request, "dataset", "data_root", "seeds", "settings", "arms", "tune", "name"],
    resources: Resources,
    session: Session,
    report: ReportOptions,
) -> None:
    """Run the sweep behind a published table; write that table with our results beside it."""
    from tune_dml.planning.reproduction import printed_table
    from tune_dml.record.origin.commands import command
    from tune_dml.report.published.reproduction import reproduce as compare
    from tune_dml.report.published.reproduction import write_reproduction

    printed = printed_table(paper, table, asked.dataset)
    arms, name = asked.arms or printed.arms or None, asked.name or _name(printed)
    request = replace(asked, space=printed.space, dataset=printed.trained_on, arms=arms, name=name)
    sweep = run_with_progress(
        request, session, Racing(), resources, report, lambda: _data_problems(printed, request.data_root)
    )
    again = "Interrupted. To continue, give the same command again."
    try:
        rows = compare(sweep.results, printed)
        files = write_reproduction(rows, printed, absolute(report.output) or sweep.folder / "reproduction")
    except KeyboardInterrupt:
        typer.echo(again, err=True)
        raise
    data = {
        "table": printed.name,
        "sweep": sweep.name,
        "exit_code": sweep.exit_code,
        "rows": [vars(row) for row in rows],
        "files": [str(path) for path in files],
    }
    then = again if sweep.interrupted else f"Report:  {command(sweep.results, 'report')}"
    lines = [*_summary(printed, rows), *(f"Table:   {path}" for path in files), then]
    print_result(data, lines, report.as_json)
    raise typer.Exit(sweep.exit_code)


def _summary(printed: PrintedTable, rows: Sequence[ReproducedNumber]) -> Iterator[str]:
    measured = [row for row in rows if row.seeds]
    comparable = sum(not row.why_not for row in measured)
    yield f"{printed.name}: {len(rows)} printed numbers, {len(measured)} measured, {comparable} comparable."
    reasons = list(dict.fromkeys(reason for row in measured for reason in row.why_not))
    yield from (f"- {reason}" for reason in reasons[:8])
    if len(reasons) > 8:
        yield f"- and {len(reasons) - 8} more reasons, in the table"


def _name(printed: PrintedTable) -> str:
    """Return the default name of the sweep: `sec-supplement-5-cub200`."""
    words = f"{printed.table.source} {printed.table.number} {printed.trained_on}".lower().split()
    return "-".join(words)


def _data_problems(printed: PrintedTable, root: str | Path | None) -> list[Problem]:
    """Return how to get the table's data if they are not on disk."""
    from trainables.data import DATASETS

    if root is not None or not DATASETS[printed.trained_on].needs_root:
        return []
    rule = f"{printed.name} was measured on pictures that must be on disk"
    source = DATASETS[printed.trained_on].source
    remedy = (
        f"Get {source}, put it into a folder as docs/data.md says, check it with `tune-dml datasets verify "
        f"{printed.trained_on} --root DIR`, and pass --data-root DIR; or try the study with --dataset glyphs."
    )
    return [Problem("data of the table", rule, printed.trained_on, remedy)]
