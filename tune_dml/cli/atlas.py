"""`tune-dml atlas`: vary every knob of every loss on data sets; write one page and one table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from trainables.errors import Problem, raise_if_any
from trainables.option_names import unused_options
from tune_dml.cli.options import ReportOptions, absolute, verb
from tune_dml.cli.screen import print_result, table
from tune_dml.cli.sweep import run_with_progress
from tune_dml.planning.request import Racing, Resources, Session, margin_problems
from tune_dml.space import Value

ORDER = 68
EXAMPLES = """
tune-dml atlas glyphs --loss triplet --loss npair
tune-dml atlas glyphs features=glyphs.features --set training.steps=100
tune-dml atlas --table atlas.parquet -o out           # the page of a stored table
"""


@verb
def atlas(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATASET[=DIR]...]", help="Data sets, with the folder of their files."),
    ] = None,
    *,
    loss: Annotated[list[str] | None, typer.Option(help="Only these losses; repeatable.")] = None,
    seeds: Any = 5,
    settings: Mapping[str, Value] | None,
    name: Annotated[str, typer.Option(help="Name of the atlas; its sweeps are NAME-DATASET.")] = "atlas",
    margin: float = 1.0,
    stored: Annotated[Path | None, typer.Option("--table", help="Judge a stored table; run nothing.")] = None,
    resources: Resources,
    session: Session,
    options: ReportOptions,
) -> None:
    """Vary every numeric knob of every loss around its default; judge all of them at one error level."""
    problems = [*margin_problems(margin), *options.problems()]
    if (stored is None) == (not datasets):
        problems.append(Problem("DATASET", "name data sets, or pass --table", None, "Example: tune-dml atlas glyphs."))
    if stored is not None:
        problems += unused_options({"loss": loss, "settings": settings}, "a stored table has its own trials")
    raise_if_any(problems)
    folder = absolute(options.output) or session.sweeps / name
    if stored is not None:
        from tune_dml.replay import read_table

        _show_judged(read_table(absolute(stored)), margin, folder, None, options.as_json)
        return
    from tune_dml.campaigns.atlas import atlas_requests, atlas_table

    requests = atlas_requests(datasets or (), loss or (), seeds=seeds or 5, settings=settings, name=name)
    sweeps = {}
    for key, request in requests.items():
        sweeps[key] = run_with_progress(request, session, Racing(), resources, options)
        if sweeps[key].interrupted:
            break
    _show_judged(atlas_table(sweeps), margin, folder, folder / "atlas.parquet", options.as_json)
    # a diverged trial is a result of an atlas
    raise typer.Exit(130 if any(sweep.results.is_incomplete for sweep in sweeps.values()) else 0)


def _show_judged(rows: Any, margin: float, folder: Path, table_path: Path | None, as_json: bool) -> None:
    """Judge a table, write its page, store the table if a path is given, and print the verdicts."""
    from tune_dml.record.atlas import judge_knobs, write_table
    from tune_dml.report.several.atlas_page import atlas_data, atlas_sentences, write_atlas

    knobs = judge_knobs(rows, margin)
    if table_path is not None:
        write_table(rows, table_path)
    page = write_atlas(knobs, margin, folder)[0]
    columns = ("data", "loss", "knob", "verdict", "gain of best", "loss of worst")
    cells = (
        (knob.dataset, knob.loss, knob.knob, verdict.word, f"{verdict.tunability.value:z.2f}",
         f"{verdict.mistunability.value:z.2f}")
        for knob in knobs
        for verdict in [knob.verdict]
    )  # fmt: skip
    lines = [
        table("", columns, cells, right=columns[4:]),
        *atlas_sentences(knobs, margin),
        f"Page:    {page}",
        *([f"Table:   {table_path}"] if table_path else []),
    ]
    stored = {"report": str(page), "table": str(table_path) if table_path else None}
    print_result({**atlas_data(knobs, margin), **stored}, lines, as_json)
