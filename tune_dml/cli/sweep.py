"""`tune-dml sweep`: run a study and write its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tune_dml.cli.options import ReportOptions, final_request, verb
from tune_dml.cli.screen import console_for, progress_bar
from tune_dml.planning.request import OwnCommand, Racing, Request, Resources, Session

if TYPE_CHECKING:
    from tune_dml.planning.checks.prepare import Check
    from tune_dml.sweep import Sweep

ORDER = 40
EXAMPLES = """
tune-dml sweep sec_rho --seeds 5 --name rho1
tune-dml sweep mine.yaml                              # `tune-dml init FOLDER` writes one
tune-dml sweep sec_eta --set training.steps=100 --set loss.name=triplet
tune-dml sweep train.yaml                             # trials run your own script: docs/programs.md
tune-dml sweep sec_rho --until-decided --max-seeds 30
"""


@verb
def sweep(
    request: Request, *, own: OwnCommand, racing: Racing, resources: Resources, session: Session, options: ReportOptions
) -> None:
    """Run a sweep, write its report and print the verdicts; on Ray Tune, with every trial in MLflow."""
    from tune_dml.cli.report import close

    outcome = run_with_progress(final_request(request, own), session, racing, resources, options)
    close(outcome, session, options)


def run_with_progress(
    request: Request, session: Session, racing: Racing, resources: Resources, options: ReportOptions, *checks: Check
) -> Sweep:
    """Run a request and show its progress, including the decoding of pictures."""
    from tune_dml import operations

    console = console_for(options.as_json)
    with progress_bar(console, "decoding") as data_progress:
        return operations.run(
            request,
            session,
            racing,
            resources=resources,
            console=console,
            data_progress=data_progress,
            other_checks=[options.problems, *checks],
        )
