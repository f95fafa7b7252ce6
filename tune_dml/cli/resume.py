"""`tune-dml resume`: continue a sweep where it stopped."""

from pathlib import Path
from typing import Annotated

import typer

from tune_dml.cli.options import ReportOptions, SweepArgument, verb
from tune_dml.cli.screen import console_for
from tune_dml.planning.request import Session, margin_problems

ORDER = 50
EXAMPLES = """
tune-dml resume rho1                                  # runs the missing trials
tune-dml resume rho1 --data-root /new/CUB_200_2011    # the pictures have moved
tune-dml resume rho1 --retry-failed
tune-dml resume rho1 --retry-failed --micro-batch 30  # trials that ran out of memory: the same batches, 30 pictures at a time
"""
MovedPictures = Annotated[
    Path | None,
    typer.Option(help="New folder or table of the same pictures, if they have moved; stored with the sweep."),
]


@verb
def resume(
    sweep_name: SweepArgument,
    *,
    session: Session,
    retry_failed: Annotated[bool, typer.Option(help="Also run failed and diverged trials again.")] = False,
    micro_batch: int | None = None,
    data_root: MovedPictures = None,
    margin: float | None,
    options: ReportOptions,
) -> None:
    """Run the missing trials of a sweep; finished trials are kept, interrupted ones continue, MLflow is updated."""
    from tune_dml import operations
    from tune_dml.cli.report import close

    outcome = operations.resume(
        sweep_name,
        session,
        retry_failed=retry_failed,
        micro_batch=micro_batch,
        data_root=data_root,
        console=console_for(options.as_json),
        other_checks=[options.problems, lambda: margin_problems(margin)],
    )
    close(outcome, session, options, margin)
