"""`tune-dml confirm`: measure the winner again."""

from __future__ import annotations

from typing import Annotated

import typer

from tune_dml.cli.options import Ending, SweepArgument, verb
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
    ending: Ending,
) -> None:
    """Measure the best cells and the baseline on fresh seeds; these did not choose the cells."""
    from tune_dml import operations
    from tune_dml.cli.report import close

    console = console_for(ending.as_json)
    done = operations.confirm(sweep_name, session, top=top, seeds=seeds, console=console)
    close(done, session, ending, again=f"confirm --top {top} --seeds {seeds}")
