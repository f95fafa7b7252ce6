"""`tune-dml confirm`: measure the winner again."""

from typing import Annotated

import typer

from tune_dml.cli.options import ReportOptions, SweepArgument, verb
from tune_dml.cli.screen import console_for
from tune_dml.planning.request import Session

ORDER = 65
EXAMPLES = """
tune-dml confirm rho1 --top 3 --seeds 5
"""


@verb
def confirm(
    sweep_name: SweepArgument,
    *,
    top: Annotated[int, typer.Option(help="Number of best cells, by validation.")] = 3,
    seeds: Annotated[int, typer.Option(help="Total number of fresh seeds of each cell.")] = 5,
    session: Session,
    options: ReportOptions,
) -> None:
    """Measure the best cells and the baseline on fresh seeds; the selection has not used these seeds."""
    from tune_dml import operations
    from tune_dml.cli.report import close

    console = console_for(options.as_json)
    outcome = operations.confirm(sweep_name, session, top=top, seeds=seeds, console=console)
    close(outcome, session, options, again=f"confirm --top {top} --seeds {seeds}")
