"""`tune-dml export`: write a sweep's trials for other programs, as an Optuna study, CSV or Parquet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainables.errors import Problem, raise_if_any
from trainables.files import write_whole
from tune_dml.cli.options import Json, SweepArgument, absolute, verb
from tune_dml.cli.screen import print_result
from tune_dml.planning.request import folder_problems

if TYPE_CHECKING:
    from tune_dml.record.results import Results

ORDER = 95
EXAMPLES = """
tune-dml export optuna rho1 sqlite:///rho1.db         # optuna-dashboard sqlite:///rho1.db shows it
tune-dml export csv rho1 rho1.csv                     # a row for each trial
"""
BARE_SHOWS_HELP = True


@verb
def export(
    form: Annotated[Literal["optuna", "csv", "parquet"], typer.Argument(metavar="optuna|csv|parquet", help="Format.")],
    sweep_name: SweepArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="File, or Optuna storage such as sqlite:///x.db.")],
    *,
    storage: Path,
    as_json: Json = False,
) -> None:
    """Write a sweep's trials as an Optuna study or a table; test metrics only if the sweep has been opened."""
    from tune_dml.record.results import load_results

    results = load_results(storage, sweep_name)
    if form == "optuna":
        from tune_dml.record.study import study_of

        trials, following = len(study_of(results, to).trials), [f"  next: optuna-dashboard {to}"]
    else:
        path, following = absolute(Path(to)), []
        trials, to = _write_table(results, form, path), str(path)
    lines = [f"{sweep_name}: {trials} trials written to {to}", *following]
    print_result({"sweep": sweep_name, "form": form, "to": to, "trials": trials}, lines, as_json)


def _write_table(results: Results, form: str, path: Path) -> int:
    """Write a new file, and return its number of rows."""
    existing_file = [Problem("TO", "the file exists already", str(path), "Name another one.")] if path.exists() else []
    raise_if_any([*folder_problems("TO", path.parent), *existing_file])
    table = results.table()
    if form == "parquet":
        for name in table.select_dtypes(object):
            kinds = {type(value) for value in table[name].dropna()}
            if len(kinds) > 1 or int in kinds:  # Parquet has one type in a column, and no integers beyond 64 bits
                table[name] = table[name].map(str, na_action="ignore")
    write_whole(path, partial(table.to_csv if form == "csv" else table.to_parquet, index=False))
    return len(table)
