"""`tune-dml compare`: what differs between sweeps first, then paired differences where data and seeds match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainables.errors import raise_if_any
from tune_dml.cli.options import Json, Margin, absolute, verb
from tune_dml.cli.screen import show, table
from tune_dml.planning.request import folder_problems, margin_problems

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_dml.record.results import Results
    from tune_dml.report.compared import Comparison

ORDER = 80
EXAMPLES = """
tune-dml compare rho1 rho2
tune-dml compare rho1 /shared/sweeps/rho1 -o out    # whichever MLflow server each was logged to
"""


@verb
def compare(
    sweep_names: Annotated[
        list[str], typer.Argument(metavar="SWEEP...", help="Two or more sweeps: names, or folders elsewhere.")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the page and JSON.")] = None,
    *,
    storage: Path,
    margin: Margin = None,
    as_json: Json = False,
) -> None:
    """Sweeps side by side: what differs first, then paired differences to the first one; exit 3 where one is refused."""
    from tune_dml.report.compared import compare_sweeps, write_comparison

    folder = absolute(output)
    raise_if_any([*margin_problems(margin), *folder_problems("-o", folder)])
    found = compare_sweeps(_loaded(sweep_names, storage), margin)
    page = write_comparison(found, folder)[0] if folder else None
    show(_Shown(found, page), as_json)
    raise typer.Exit(3 if found.refusals else 0)


def _loaded(names: list[str], storage: Path) -> list[Results]:
    """By name in the storage, or by folder wherever it is; those of one name are told apart by the folders they lie in."""
    from tune_dml.record.results import load_results

    paths = [Path(name).expanduser() for name in names]
    places = [(path.parent if len(path.parts) > 1 else storage, path.name) for path in paths]
    found = [load_results(folder.absolute(), name) for folder, name in places]
    called = [results.name for results in found]
    return [
        results
        if called.count(results.name) < 2 or results.folder.parent == storage.absolute()
        else replace(results, plan=replace(results.plan, name=f"{results.folder.parent.name}/{results.name}"))
        for results in found
    ]


@dataclass(frozen=True)
class _Shown:
    """A comparison on the screen."""

    comparison: Comparison
    page: Path | None

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        from tune_dml.report.compared.page import comparison_data

        return {**comparison_data(self.comparison), "page": str(self.page) if self.page else None}

    def text(self) -> Iterable[RenderableType]:
        """What differs, the budgets, the paired differences, what they say; each sweep's cells where nothing is paired."""
        from tune_dml.report.compared.page import sentences

        found, names = self.comparison, self.comparison.names
        rows = [(path, *values) for path, values in found.differences.items()]
        if len(names) > 1:
            yield table("What differs", ("setting", *names), rows) if rows else "The sweeps share every setting."
        budgets = [(n, b.cells, b.trials, f"{b.seconds:.0f} s") for n, b in zip(names, found.budgets, strict=True)]
        columns: tuple[str, ...] = ("sweep", "cells", "finished trials", "training time")
        yield table("Budget", columns, budgets, right=columns[1:])
        if not found.equal_budgets:
            yield "The budgets differ: a larger one finds a better best cell by chance alone."
        metric = found.sweeps[0].metric
        if found.paired:
            paired = [
                (row.sweep, row.point, row.seeds, metric.signed(row.difference), metric.interval(row.low, row.high), row.verdict)
                for row in found.paired
            ]  # fmt: skip
            columns = ("sweep", "at", "seeds", f"minus {names[0]}", "simultaneous interval", "verdict")
            yield table(f"Paired differences, {metric.axis}", columns, paired, right=columns[2:4])
        else:
            yield from self._cells()
        yield from sentences(found)
        if self.page is not None:
            yield f"Page:    {self.page}"

    def _cells(self) -> Iterable[RenderableType]:
        """A table a sweep: sweeps that do not compare never stand in one."""
        for name, sweep in zip(self.comparison.names, self.comparison.sweeps, strict=True):
            cells = [
                (cell.label, len(cell.values), sweep.metric.number(cell.mean), sweep.metric.interval(*sweep.bar(cell)))
                for cell in sweep.cells
            ]
            columns = ("cell", "seeds", sweep.metric.axis, "comparison bar")
            yield table(f"Cells of {name} on {sweep.results.plan.dataset}", columns, cells, right=columns[1:3])
