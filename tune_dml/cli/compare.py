"""`tune-dml compare`: what differs between sweeps first, then mean and interval over seeds of every cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_dml.cli.options import Json, Margin, verb
from tune_dml.cli.screen import COMPARISON_BARS, intervals, number, show, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_dml.record.results import Results
    from tune_dml.report import SweepSummary

ORDER = 80
EXAMPLES = """
tune-dml compare rho1 rho2
"""


@verb
def compare(
    sweep_names: Annotated[list[str], typer.Argument(metavar="SWEEP...", help="One or more sweeps.")],
    *,
    storage: Path,
    margin: Margin = None,
    as_json: Json = False,
) -> None:
    """Sweeps side by side: what differs first, then mean and interval over seeds of every cell."""
    from tune_dml.api import load_sweep

    loaded = [load_sweep(name, storage=storage).results for name in sweep_names]
    show(side_by_side(loaded, margin), as_json)


@dataclass(frozen=True)
class Budget:
    """What a sweep has spent: methods are compared fairly only at equal budgets."""

    cells: int
    trials: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Several sweeps side by side."""

    results: tuple[Results, ...]
    summaries: tuple[SweepSummary, ...]
    differences: dict[str, tuple[object, ...]]
    """Settings that are not the same in all sweeps, and their value in each; `(searched)` for a knob."""

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Of each sweep."""
        return tuple(
            Budget(len(item.cells), item.count("finished"), sum(trial.seconds for trial in item.trials))
            for item in self.results
        )

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "sweeps": [item.name for item in self.results],
            "differences": {key: list(values) for key, values in self.differences.items()},
            "budgets": [vars(budget) for budget in self.budgets],
            "cells": [
                {"sweep": item.name, **vars(row)}
                for item, summary in zip(self.results, self.summaries, strict=True)
                for row in summary.rows
            ],
            "verdicts": {
                item.name: list(summary.verdicts) for item, summary in zip(self.results, self.summaries, strict=True)
            },
        }

    def text(self) -> Iterable[RenderableType]:
        """Three tables and the verdicts."""
        names = [item.name for item in self.results]
        if len(names) > 1:
            differing = [(key, *values) for key, values in self.differences.items()]
            if differing:
                yield table("What differs", ("setting", *names), differing)
            else:
                yield "The sweeps share every setting."
        budgets = [(n, b.cells, b.trials, f"{b.seconds:.0f} s") for n, b in zip(names, self.budgets, strict=True)]
        columns = ("sweep", "cells", "finished trials", "training time")
        yield table("Budget", columns, budgets, right=columns[1:])
        if len({(budget.cells, budget.trials) for budget in self.budgets}) > 1:
            yield "The budgets differ: a larger one finds a better best cell by chance alone."
        label = self.summaries[0].metric
        rows = [
            (item.name, row) for item, summary in zip(self.results, self.summaries, strict=True) for row in summary.rows
        ]
        bars = intervals([(row.low, row.high) for _, row in rows])
        cells = [(name, row.label, row.n, number(row.mean), bar) for (name, row), bar in zip(rows, bars, strict=True)]
        yield table(
            "Cells",
            ("sweep", "cell", "seeds", label, "comparison bar"),
            cells,
            right=("seeds", label, "comparison bar"),
        )
        yield f"{COMPARISON_BARS} Bars of two sweeps are not compared."
        for item, summary in zip(self.results, self.summaries, strict=True):
            for verdict in summary.verdicts:
                yield f"- {item.name}: {verdict}"


def side_by_side(results: Sequence[Results], margin: float | None = None) -> Comparison:
    """Compare sweeps; a setting that one sweep searches differs from one that another fixes."""
    from tune_dml import report

    paths = sorted({path for item in results for path in _settings(item)})
    rows = {path: tuple(_settings(item).get(path, "-") for item in results) for path in paths}
    differences = {path: values for path, values in rows.items() if len({str(value) for value in values}) > 1}
    summaries = tuple(report.summary(item, margin=margin) for item in results)
    return Comparison(tuple(results), summaries, differences)


def _settings(results: Results) -> dict[str, object]:
    plan = results.plan
    shared: dict[str, object] = {
        "metric": plan.metric,
        "seeds": len(plan.seeds),
        "data": plan.data_digest[:12],
    }
    shared.update(plan.base_settings)
    shared.update({knob.path: "(searched)" for knob in plan.space.knobs})
    return shared
