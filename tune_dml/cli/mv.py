"""`tune-dml mv`: rename a sweep."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.cli.options import Json, SweepArgument, raise_if_link, verb
from tune_dml.cli.screen import print_result

ORDER = 72
EXAMPLES = """
tune-dml mv rho1 momentum
"""


@verb
def mv(
    sweep_name: SweepArgument,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    *,
    storage: Path,
    as_json: Json = False,
) -> None:
    """Give a sweep another name; every trial keeps its identity. Refused while it runs, or if the name is in use."""
    from tune_dml.planning.rules import name_rule_problems
    from tune_dml.record.ledger import Ledger
    from tune_dml.record.origin.commands import command
    from tune_dml.record.results import results_of
    from tune_dml.record.state import load_state
    from tune_dml.running.slurm.jobs import raise_if_jobs_are_open

    raise_if_link(storage.absolute() / sweep_name, "mv")
    state = load_state(storage.absolute(), sweep_name)
    raise_if_any(name_rule_problems("NEW", new_name, "Example: rho1."))
    target = state.folder.with_name(new_name)
    if target.exists():
        raise ConfigError(Problem("NEW", "the name is in use", new_name, "Choose another one."))
    raise_if_jobs_are_open(state.folder)
    with Ledger(state.folder):  # refused while another process runs it
        replace(state.stored_plan, name=new_name).save(state.folder / "plan.json")  # fails on a full disk
        state.folder.rename(target)
    text = f"{sweep_name} is {new_name} now: {target}."
    if state.sessions and (target / "mlflow.json").exists():
        renamed = command(results_of(target), "sync")
        text += f" Its runs in MLflow get the new name with its next session, or by `{renamed}`."
    print_result({"sweep": new_name, "folder": str(target)}, [text], as_json, wrap=False)
