"""`tune-dml report` and the end of a session: write and attach the report, print results, verdicts and next commands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from trainables.errors import raise_if_any
from trainables.option_names import unused_options
from tune_dml.cli._answers import SweepAnswer
from tune_dml.cli._imported_results import ImportOptions, ImportSource
from tune_dml.cli._race import race_data, race_lines
from tune_dml.cli.options import Json, Output, ReportOptions, absolute, verb
from tune_dml.cli.screen import COMPARISON_BARS, Lines, print_result, table
from tune_dml.planning.request import Session, folder_problems, margin_problems
from tune_dml.record.ledger import is_running
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.operations import Attachment
    from tune_dml.report import ReportFiles
    from tune_dml.sweep import Sweep

ORDER = 90
EXAMPLES = """
tune-dml report rho1
tune-dml report rho1 -o out --figures pdf
tune-dml report rho1 --check 'sensitive(regularizer.rho)'
"""
_FIGURE_FORMS: dict[str, tuple[Literal["pdf", "png"], ...]] = {
    "svg": (), "pdf": ("pdf",), "png": ("png",), "all": ("pdf", "png")
}  # fmt: skip

_PaperSd = Annotated[
    float | None, typer.Option(help="Run-to-run standard deviation of the papers' results; ours by default.")
]
_Conditions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="Exit 3 unless it is true: 'sensitive(regularizer.rho)', 'not at_edge and not failed'; repeatable.",
    ),
]


@verb
def report(
    sweep_names: Annotated[
        list[str] | None,
        typer.Argument(metavar="SWEEP...", help="Name of a sweep; several sweeps of one space make a study."),
    ] = None,
    output: Output = None,
    *,
    source: ImportSource,
    options: ImportOptions,
    storage: Path,
    margin: float | None,
    paper_sd: _PaperSd = None,
    unseal_test: Annotated[bool, typer.Option(help="Open the test metrics first, as `tune-dml open` does.")] = False,
    check: _Conditions = None,
    figures: Annotated[
        Literal["svg", "pdf", "png", "all"], typer.Option(help="Formats of the figures beside SVG.")
    ] = "svg",
    tracking_uri: str | None,
    experiment: str | None,
    as_json: Json = False,
) -> None:
    """Write the sensitivity report of a sweep; also of several sweeps as one study, or of another program's results.

    It contains HTML, CSV, LaTeX and JSON. The report of a sweep is attached to its MLflow run.
    """
    from tune_dml.api import load_sweep
    from tune_dml.operations import open_test
    from tune_dml.report.export import checks
    from tune_dml.sweep import Sweep

    names, conditions = sweep_names or [], check or []
    session = Session(storage, tracking_uri=tracking_uri, experiment=experiment)
    problems = [*margin_problems(margin, paper_sd), *folder_problems("-o", absolute(output))]
    problems += [*checks.condition_problems(conditions), *source.problems(names, options)]
    of_sweep: dict[str, object] = {"unseal_test": unseal_test, "tracking_uri": tracking_uri}
    if len(names) > 1:
        of_one = {"check": conditions, "paper_sd": paper_sd, "figures": figures != "svg" and figures}
        given = of_sweep | of_one | {"experiment": experiment}
        problems += unused_options(given, "it applies to one sweep, and several are named")
    elif source.sources:
        problems += unused_options(of_sweep, "it applies to a sweep, not to results of another program")
    raise_if_any(problems)
    if len(names) > 1:
        _report_study(names, storage, absolute(output), margin, as_json)
        return
    if unseal_test and names:
        open_test(names[0], session)
    imported = Sweep(source.read(options, margin, experiment, absolute(output))) if source.sources else None
    loaded = imported or load_sweep(names[0], storage=storage)
    forms = _FIGURE_FORMS[figures]
    _show_and_exit(_publish(loaded, session, output, margin, paper_sd=paper_sd, forms=forms), conditions, as_json)


def _report_study(
    names: Sequence[str], storage: Path, folder: Path | None, margin: float | None, as_json: bool
) -> None:
    """Write and print the report of several sweeps of one space; record a look at each."""
    from tune_dml.record.results import load_results_and_look
    from tune_dml.report.several.study import analyse_study
    from tune_dml.report.several.study_page import study_data, study_sentences, write_study

    study = analyse_study([load_results_and_look(storage.absolute(), name, "report") for name in names], margin)
    page = write_study(study, folder or storage.absolute() / f"study-{'-'.join(names)}")[0]
    lines = [*(f"- {sentence}" for sentence in study_sentences(study)), f"Report:  {page}"]
    print_result({**study_data(study), "report": str(page)}, lines, as_json)


def _show_and_exit(written: _ReportView, conditions: Sequence[str], as_json: bool) -> NoReturn:
    """Show a report, check its conditions, and exit with 3 if one of them does not hold."""
    from tune_dml.report.export import checks

    verdicts = json.loads(written.files.verdicts.read_text(encoding="utf-8"))
    raise_if_any(checks.argument_problems(conditions, verdicts))
    judged = replace(written, unmet=checks.unmet(conditions, verdicts))
    print_result(judged.data() if as_json else None, judged.text(), as_json)
    raise typer.Exit(3 if judged.unmet else 0)


def close(
    sweep: Sweep, session: Session, options: ReportOptions, margin: float | None = None, again: str = "resume"
) -> None:
    """Write and show the report of a session, then exit with its code; `margin` defaults to the planned one.

    `again` is the verb that continues an interrupted session.
    """
    from tune_dml.record.origin.several_jobs import continues_in_next_job

    if sweep.interrupted and continues_in_next_job():  # a report would count as a look
        raise typer.Exit(sweep.exit_code)
    try:
        written = _publish(sweep, session, options.output, margin, again=again)
        print_result(written.data() if options.as_json else None, written.text(), options.as_json)
    except KeyboardInterrupt:
        from tune_dml.record.origin.commands import command, interruption_message

        next_command = command(sweep.results, again if sweep.interrupted else "report")
        typer.echo(interruption_message(next_command), err=True)
        raise
    raise typer.Exit(sweep.exit_code)


def _publish(
    sweep: Sweep,
    session: Session,
    output: Path | None,
    margin: float | None,
    *,
    paper_sd: float | None = None,
    again: str = "resume",
    forms: Sequence[Literal["pdf", "png"]] = (),
) -> _ReportView:
    """Write the report. The view attaches it to the sweep's MLflow run, unless another program ran the trials."""
    from tune_dml.operations import publish_report
    from tune_dml.report import write_report
    from tune_dml.report.naming import slug

    if sweep.state is None:
        folder = absolute(output) or Path.cwd() / f"{slug(sweep.name)}-report"
        return _ReportView(sweep, write_report(sweep.results, folder, paper_sd=paper_sd, forms=forms))
    folder = absolute(output) or sweep.folder / "report"
    files, attach = publish_report(sweep, session, folder, margin=margin, paper_sd=paper_sd, forms=forms)
    return _ReportView(sweep, files, attach, again)


@dataclass(frozen=True)
class _ReportView:
    sweep: Sweep
    files: ReportFiles
    attach: Callable[[], Attachment] | None = None  # uploads it to MLflow; None for results of another program
    again: str = ""  # the command that continues an interrupted session
    unmet: Sequence[str] = ()  # conditions of --check that do not hold

    def data(self) -> dict[str, object]:
        from tune_dml.report.naming import metric_of

        summary, tracking, plan = self.files.summary, self.sweep.tracking, self.sweep.results.plan
        attachment = self.attach and self.attach()
        return {
            "sweep": self.sweep.name,
            "exit_code": self.sweep.exit_code,
            "metric": metric_of(self.sweep.results).description(plan.space.goal),
            "cells": [vars(row) for row in summary.rows],
            "verdicts": list(summary.verdicts),
            "counts": dict(summary.counts),
            "race": race_data(self.sweep.results),
            "report": str(self.files.html),
            "files": [str(path) for path in self.files.paths],
            "mlflow": attachment
            and {
                "command": attachment.ui_command,
                "link": attachment.link,
                "waiting": tracking.waiting if tracking else 0,
                "error": (tracking.error if tracking else None) or attachment.refusal,
            },
            "answer": list(summary.answer.sentences),
            "findings": list(summary.findings),
            "unmet": list(self.unmet),
            "next": list(summary.commands),
        }

    def text(self) -> Lines:
        from tune_dml.record.origin.commands import CONTINUE_WITH, command
        from tune_dml.report.naming import metric_of

        summary, metric = self.files.summary, metric_of(self.sweep.results)
        rows = (
            (
                row.label,
                f"{row.n}/{row.planned}",
                metric.number(row.mean),
                metric.interval(row.low, row.high),
                "" if math.isnan(row.difference) else metric.signed(row.difference),
                metric.interval(*metric.change_ends(row.difference_low, row.difference_high)),
            )
            for row in summary.rows
        )
        columns = ("cell", "seeds", summary.metric, "comparison bar", "minus baseline", "simultaneous interval")
        compared = any(not math.isnan(row.difference) for row in summary.rows)  # a baseline has a number
        shown = columns if compared else columns[:4]
        yield table(self.sweep.name, shown, (row[: len(shown)] for row in rows), right=shown[1:])
        if any(not math.isnan(row.low) for row in summary.rows):
            yield COMPARISON_BARS
        yield from (f"- {verdict}" for verdict in summary.verdicts)
        yield from (f"Note:    {note}" for note in self.sweep.results.notes)
        yield from race_lines(self.sweep.results)
        yield from (f"Unmet:   {condition}" for condition in self.unmet)
        yield ""
        running = self.attach is not None and is_running(self.sweep.folder)  # in another process
        yield from SweepAnswer.of(summary).lines(running=running)
        if running:
            yield f"The sweep is running. Follow it with: {command(self.sweep.results, 'status')}"
        elif self.sweep.interrupted and self.attach:
            yield f"Not complete. {CONTINUE_WITH}{command(self.sweep.results, self.again)}"
        yield f"Report:  {self.files.html}"
        if self.attach is None:
            return
        attachment, tracking = self.attach(), self.sweep.tracking  # may take minutes, so all else is printed before
        if tracking is not None and tracking.error:
            waits = f"{counted(tracking.waiting, 'trial')} {'waits' if tracking.waiting == 1 else 'wait'} in the ledger"
            again = command(self.sweep.results, "sync")
            yield f"MLflow:  not up to date ({tracking.error}); {waits}. Write them later: `{again}`"
        elif attachment.refusal:
            yield f"MLflow:  the report is not attached: {attachment.refusal}"
        yield f"MLflow:  {attachment.ui_command}"
        if attachment.link:
            yield f"         {attachment.link}"
