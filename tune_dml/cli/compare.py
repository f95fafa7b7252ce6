"""`tune-dml compare`: list settings that differ between sweeps, and paired differences if data and seeds match."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from tune_dml.cli._imported_results import ImportOptions
from tune_dml.cli.options import Json, absolute, verb
from tune_dml.cli.screen import Lines, print_result, table
from tune_dml.planning.request import folder_problems, margin_problems

if TYPE_CHECKING:
    from tune_dml.record.results import Results
    from tune_dml.report.several.comparison import SweepComparison

ORDER = 80
EXAMPLES = """
tune-dml compare rho1 rho2
tune-dml compare rho1 /shared/sweeps/rho1 -o out    # the MLflow servers may differ
tune-dml compare heads full --rank                  # do heads order a knob's values as full training does?
tune-dml compare sqlite:///x.db#mine http://host:5000#theirs --metric val_acc --margin 0.01
"""


@verb
def compare(
    sweep_names: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP...", help="Two or more: names, folders elsewhere, MLflow experiments as URI#EXPERIMENT."
        ),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the page and JSON.")] = None,
    *,
    options: ImportOptions,
    same_data: Annotated[
        bool, typer.Option(help="MLflow experiments that log no data set were trained on the data of the others.")
    ] = False,
    rank: Annotated[
        bool, typer.Option("--rank", help="Kendall's tau per knob: does the first sweep order values like the others?")
    ] = False,
    storage: Path,
    margin: float | None,
    as_json: Json = False,
) -> None:
    """Compare sweeps: list the settings that differ, then paired differences to the first one."""
    from tune_dml.report.several.comparison import assume_same_data, compare_sweeps
    from tune_dml.report.several.comparison_page import comparison_data, rank_rows, write_comparison

    folder = absolute(output)
    problems = [*margin_problems(margin), *folder_problems("-o", folder)]
    has_experiment = any(map(_split_experiment, sweep_names))
    if len(sweep_names) < 2 and not has_experiment:
        problems.append(Problem("SWEEP...", "a comparison needs at least two sweeps", None, "Name another one."))
    repeated = [word for word, count in Counter(sweep_names).items() if count > 1]
    problems += [Problem("SWEEP...", "the sweeps must differ", word, "Name another one.") for word in repeated]
    problems += [] if has_experiment else options.unused_problems({"--same-data": same_data})
    raise_if_any(problems)
    results = _with_unique_names([_load(word, storage, options, margin) for word in sweep_names], sweep_names, storage)
    comparison = compare_sweeps(assume_same_data(results) if same_data else results, margin)
    page = write_comparison(comparison, folder)[0] if folder else None
    if rank:
        if not (rows := rank_rows(comparison)):
            rule = "needs a knob with three values that have a result on every seed in both sweeps"
            raise ConfigError(Problem("--rank", rule, None, "Finish the sweeps, or compare them without --rank."))
        title = f"Order of values: {comparison.names[0]} against others, Kendall's tau and its bounds"
        print_result(rows, [table(title, list(rows[0]), (row.values() for row in rows))], as_json)
        return
    data = {**comparison_data(comparison), "page": str(page) if page else None}
    print_result(data, _text(comparison, page), as_json)
    raise typer.Exit(1 if comparison.refusals else 0)


def _split_experiment(word: str) -> tuple[str, str] | None:
    """Return store and experiment of `sqlite:///x.db#mine`; None for a sweep."""
    uri, sharp, name = word.partition("#")
    return (uri, name) if sharp and "://" in uri else None


def _load(word: str, storage: Path, options: ImportOptions, margin: float | None) -> Results:
    """Load a sweep by name or folder, or the runs of an MLflow experiment."""
    from tune_dml.record.results import load_results_and_look

    if experiment := _split_experiment(word):
        from tune_dml.record.imported import results_of_rows
        from tune_dml.tracking.experiments import read_mlflow

        request = options.request(experiment[1], margin)
        data = read_mlflow(experiment[0], experiment[1] or None, request, word=word)
        return results_of_rows(data, request, Path.cwd() / "elsewhere" / request.name, keeps_seeds=True)
    path = expand_home(word)
    folder, name = (path.parent if len(path.parts) > 1 else storage, path.name)
    return load_results_and_look(folder.absolute(), name, "compare")


def _with_unique_names(sweeps: list[Results], words: list[str], storage: Path) -> list[Results]:
    """Return the sweeps with unique names: the folder or store is added to names that occur twice."""
    names = [results.name for results in sweeps]
    return [
        replace(results, plan=replace(results.plan, name=_full_name(results, word, storage)))
        if names.count(results.name) > 1
        else results
        for results, word in zip(sweeps, words, strict=True)
    ]


def _full_name(results: Results, word: str, storage: Path) -> str:
    from tune_dml.record.origin.provenance import mask

    if results.imported is not None:
        return mask(word)
    folder = results.folder.parent
    return results.name if folder == storage.absolute() else f"{folder.name}/{results.name}"


def _text(comparison: SweepComparison, page: Path | None) -> Lines:
    from tune_dml.report.several.comparison_page import comparison_sentences

    names = comparison.names
    rows = [(path, *values) for path, values in comparison.differences.items()]
    if len(names) > 1:
        yield table("What differs", ("setting", *names), rows) if rows else "The sweeps share every setting."
    budgets = [(n, b.cells, b.trials, f"{b.seconds:.0f} s") for n, b in zip(names, comparison.budgets, strict=True)]
    columns: tuple[str, ...] = ("sweep", "cells", "finished trials", "training time")
    yield table("Budget", columns, budgets, right=columns[1:])
    if not comparison.equal_budgets:
        yield "The budgets differ: with a larger one the best cell is better by chance alone."
    metric = comparison.sweeps[0].metric
    if comparison.paired:
        paired = [
            (row.sweep, row.point, row.seeds, metric.signed(row.difference), metric.interval(row.low, row.high), row.verdict)
            for row in comparison.paired
        ]  # fmt: skip
        columns = ("sweep", "at", "seeds", f"minus {names[0]}", "simultaneous interval", "verdict")
        yield table(f"Paired differences, {metric.axis}", columns, paired, right=columns[2:4])
    else:
        yield from _cell_tables(comparison)
    yield from comparison_sentences(comparison)
    if page is not None:
        yield f"Page:    {page}"


def _cell_tables(comparison: SweepComparison) -> Lines:
    for name, sweep in zip(comparison.names, comparison.sweeps, strict=True):
        cells = [
            (cell.label, len(cell.values), sweep.metric.number(cell.mean), sweep.metric.interval(*sweep.bar(cell)))
            for cell in sweep.cells
        ]
        columns = ("cell", "seeds", sweep.metric.axis, "comparison bar")
        yield table(f"Cells of {name} on {sweep.results.plan.dataset}", columns, cells, right=columns[1:3])
