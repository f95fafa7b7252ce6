"""`tune-dml export`: write a sweep's trials for other programs, as an Optuna study, CSV or Parquet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainables.errors import Problem, raise_if_any
from tune_dml.cli.options import Json, SweepArgument, absolute, verb
from tune_dml.cli.screen import Lines, show
from tune_dml.planning.request import folder_problems

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

        number = len(study_of(results, to).trials)
        show(_ExportView(sweep_name, form, to, number), as_json)
        return
    path = absolute(Path(to)) or Path(to)
    existing_file = [Problem("TO", "the file exists already", str(path), "Name another one.")] if path.exists() else []
    raise_if_any([*folder_problems("TO", path.parent), *existing_file])
    table = results.table()
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)
    show(_ExportView(sweep_name, form, str(path), len(table)), as_json)


@dataclass(frozen=True)
class _ExportView:
    """The written study or table."""

    sweep: str
    form: str
    to: str
    trials: int

    def data(self) -> dict[str, object]:
        return asdict(self)

    def text(self) -> Lines:
        yield f"{self.sweep}: {self.trials} trials written to {self.to}"
        if self.form == "optuna":
            yield f"  next: optuna-dashboard {self.to}"
