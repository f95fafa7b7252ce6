"""`tune-dml open`: show the test metrics of a sweep, and record who opened them."""

from typing import Annotated

import typer

from tune_dml.cli.options import Json, Stores, SweepArgument, Yes, confirm_or_abort, verb
from tune_dml.cli.screen import console_for, print_result, progress_bar

ORDER = 85
EXAMPLES = """
tune-dml open rho1 --selection "our table 2"           # asks first
tune-dml open rho1 --yes
"""


@verb
def open(
    sweep_name: SweepArgument,
    *,
    selection: Annotated[str, typer.Option(metavar="TEXT", help="Purpose of the selection; recorded.")] = "",
    yes: Yes = False,
    session: Stores,
    as_json: Json = False,
) -> None:
    """Open the test metrics of a sweep and write them to MLflow; asks first, and records user, time and selected cell."""
    from tune_dml.operations import open_test
    from tune_dml.record.origin.commands import command
    from tune_dml.record.state import load_state

    if not load_state(session.sweeps, sweep_name).opened:
        confirm_or_abort(f"Open the test metrics of {sweep_name}? This is recorded and cannot be undone.", yes)
    with progress_bar(console_for(as_json), "testing heads") as progress:
        opened = open_test(sweep_name, session, selection=selection, progress=progress)
    opening, tracking = opened.results.opening, opened.tracking  # MLflow is called only for the first opening
    error = tracking.error if tracking else None
    assert opening is not None  # noqa: S101 - the sweep is open now
    recorded = {"time": opening.time, **opening.body()}
    data = {"sweep": sweep_name, "already": tracking is None, **recorded, "mlflow_error": error}
    lines = [f"{sweep_name}: the test metrics are open already, {opening}. Nothing has changed."]
    if tracking is not None:
        lines = [f"{sweep_name}: the test metrics were {opening}. Tables, reports and MLflow show them from now on."]
        if error:
            lines += [f"MLflow:  not up to date ({error}). Write them later: `{command(opened.results, 'sync')}`"]
        lines += [f"  next: {command(opened.results, 'report')}"]
    print_result(data, lines, as_json)
