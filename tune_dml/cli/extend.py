"""`tune-dml extend`: add seeds, values, samples or arms to a sweep."""

from typing import Annotated

import typer

from tune_dml.cli import _complete
from tune_dml.cli.options import ReportOptions, SweepArgument, seeds_of, values_of, verb
from tune_dml.cli.resume import MovedPictures
from tune_dml.cli.screen import console_for
from tune_dml.planning.request import Session, margin_problems

ORDER = 60
EXAMPLES = """
tune-dml extend rho1 --seeds 5                        # five seeds in all
tune-dml extend rho1 --add regularizer.rho=0.3,0.7
"""


@verb
def extend(
    sweep_name: SweepArgument,
    *,
    seeds: Annotated[
        str | None, typer.Option(help="Total number of paired seeds (5), or the seeds to add (3,4).")
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V,V,...",
            help="Values to add to a listed knob; repeatable.",
            autocompletion=_complete.knobs_of_sweeps,
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="Arm of its space that was left out, or a sweep file that declares arms; repeatable."),
    ] = None,
    num_samples: Annotated[
        int, typer.Option(help="Number of further cells to propose, for every search but grid.")
    ] = 0,
    session: Session,
    data_root: MovedPictures = None,
    margin: float | None,
    options: ReportOptions,
) -> None:
    """Add seeds, values, samples or arms to a sweep; only the new trials run."""
    from tune_dml import operations
    from tune_dml.cli.report import close

    outcome = operations.extend(
        sweep_name,
        session,
        seeds=seeds_of(seeds) or (),
        values=values_of(add),
        num_samples=num_samples,
        arms=arm or (),
        data_root=data_root,
        console=console_for(options.as_json),
        other_checks=[options.problems, lambda: margin_problems(margin)],
    )
    close(outcome, session, options, margin)
