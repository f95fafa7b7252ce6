"""`tune-dml show`: describe a space, a method, a protocol, a data set or a sweep by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainables.errors import ConfigError, Problem
from tune_dml.cli import _complete
from tune_dml.cli._answers import age_of, answer_of, state_of, why_no_answer
from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import Lines, print_result, table
from tune_dml.record.ledger import is_running
from tune_dml.space import Grid, Knob, Protocol, Space
from tune_dml.text import value_text

if TYPE_CHECKING:
    from trainables.data.base import DataSet
    from tune_dml.cli._answers import SweepAnswer
    from tune_dml.record.results import Results

ORDER = 25
EXAMPLES = """
tune-dml show sec_rho                                 # a space: its knobs, values, arms, printed tables
tune-dml show triplet                                 # a loss: its formula and knobs
tune-dml show glyphs/triplet                          # a protocol: its settings, and where each comes from
tune-dml show cub200                                  # a data set: where to get it
tune-dml show rho1                                    # a sweep: its answer, and what to do next
"""
_Described = tuple[Any, Lines]  # data and text of an item
_KINDS = ("task", "loss", "regularizer", "backbone", "pooling", "head", "sampler", "optimizer", "lr_schedule")
_CHOSEN_BY = {
    **{kind: f"model.{kind}" for kind in ("backbone", "pooling", "head")},
    "sampler": "batch.sampler",
    "optimizer": "optim.name",
    "lr_schedule": "optim.lr_schedule",
}
"""Setting that chooses a method of a kind; `KIND.name` for other kinds."""


def _names(ctx: typer.Context) -> list[str]:
    return [name for name, _ in _items(_complete.storage_of(ctx))]


@verb
def show(
    name: Annotated[
        str, typer.Argument(metavar="SPACE|METHOD|PROTOCOL|DATASET|SWEEP", help="What to show.", autocompletion=_names)
    ],
    *,
    storage: Path,
    as_json: Json = False,
) -> None:
    """Describe a space, method, protocol, data set or sweep; the name selects it."""
    items = list(_items(storage.absolute()))
    described = [describe() for known, describe in items if known == name]
    if not described:
        rule = "unknown space, method, protocol, data set or sweep"
        raise ConfigError(Problem("NAME", rule, name, known=[known for known, _ in items]))
    data = [data for data, _ in described]
    lines = (line for _, text in described for line in ("", *text))
    print_result(data[0] if len(data) == 1 else data, islice(lines, 1, None), as_json)


def _items(storage: Path) -> Iterator[tuple[str, Callable[[], _Described]]]:
    """Yield the name of each item, and the function that describes it."""
    from trainables.data import DATASETS
    from trainables.registries import methods_of
    from tune_dml import catalogue
    from tune_dml.record.state import sweep_names

    yield from ((name, partial(_sweep, storage, name)) for name in sweep_names(storage))
    yield from ((name, partial(_space, space)) for name, space in catalogue.spaces().items())
    for kind in _KINDS:
        yield from ((name, partial(_method, kind, name, method)) for name, method in methods_of(kind).items())
    yield from ((name, partial(_protocol, protocol)) for name, protocol in catalogue.protocols().items())
    yield from ((name, partial(_dataset, name, dataset)) for name, dataset in DATASETS.items())


def _space(space: Space) -> _Described:
    from tune_dml import catalogue

    knobs = catalogue.tried_values(space, _domain_text)
    arms = [arm.name for arm in space.every_arm if arm.name]
    data = {
        "space": space.name,
        "title": space.title,
        "question": space.question,
        "citation": str(space.citation or ""),
        "knobs": knobs,
        "arms": arms,
        "baseline": space.baseline_name,
        "fixed": dict(space.fixed),
        "protocols": {protocol.dataset: protocol.name for protocol in space.protocols},
        "published": [f"{item.paper}, table {item.table}, {item.dataset}" for item in space.published],
        "notes": [*space.notes, *space.identities],
    }
    rows = [(path, domain, "tuned away" if space.is_nuisance(path) else "") for path, domain in knobs.items()]
    facts = {
        "Arms": ", ".join(arms),
        "Baseline": space.baseline_name or "",
        "Fixed": ", ".join(f"{path}={value}" for path, value in space.fixed.items()),
        "Printed": "; ".join(dict.fromkeys(f"{p.paper}, table {p.table} ({p.dataset})" for p in space.published)),
        "Protocols": ", ".join(protocol.name for protocol in space.protocols),
    }
    return data, [
        f"{space.name}: {space.title}",
        *filter(None, (space.question, str(space.citation or ""))),
        *([table("", ("knob", "values", ""), rows)] if rows else []),
        *(f"{title + ':':<11}{text}" for title, text in facts.items() if text),
        *(f"{'Note:':<11}{note}" for note in space.notes),
        f"{'Run it:':<11}tune-dml plan {space.name}; then tune-dml sweep {space.name}",
    ]


def _domain_text(knob: Knob) -> str:
    """Return `0.1, 0.5, 1`, or `0.001 to 0.1, log`."""
    if isinstance(knob.domain, Grid):
        return ", ".join(map(value_text, knob.domain.values))
    return f"{knob.domain.low:g} to {knob.domain.high:g}, {knob.domain.scale}"


def _method(kind: str, name: str, method: type) -> _Described:
    """Return data and text of a method; the knobs of a sampler are settings of the batch."""
    citation, setting = str(getattr(method, "citation", "")), _CHOSEN_BY.get(kind, f"{kind}.name")
    knobs = _knobs_of(method) if kind != "sampler" else []
    data = {"kind": kind, "name": name, "formula": (method.__doc__ or "").strip(), "citation": citation, "knobs": knobs}
    return data, [
        f"{kind} {name}: {inspect.cleandoc(method.__doc__ or '')}",
        *filter(None, [citation]),
        *_knob_table(setting.partition(".")[0], knobs),
        f"Choose it: --set {setting}={name}",
    ]


def _protocol(protocol: Protocol) -> _Described:
    """Return data and text of a protocol: its settings, and where each comes from."""
    sources = {path: protocol.sources.get(path, protocol.origin) for path in protocol.settings}
    data = {
        "protocol": protocol.name,
        "dataset": protocol.dataset,
        "note": protocol.note,
        "losses": [*protocol.methods],
        "settings": dict(protocol.settings),
        "sources": sources,
    }
    rows = [(path, value_text(value), sources[path]) for path, value in protocol.settings.items()]
    return data, [
        f"protocol {protocol.name}, of the data set {protocol.dataset}",
        *filter(None, [protocol.note]),
        table("", ("setting", "value", "source"), rows),
        *([f"{'Losses:':<11}{', '.join(protocol.methods)}"] if protocol.methods else []),
        f"{'Use it:':<11}tune-dml plan SPACE --dataset {protocol.dataset} --protocol {protocol.name}",
    ]


def _dataset(name: str, dataset: type[DataSet]) -> _Described:
    from tune_dml.cli.datasets import copy_commands, paragraph, row_of

    row, knobs = row_of(name, dataset), _knobs_of(dataset)
    copying = [copy_commands(name)] if dataset.needs_root else []
    return [{**row, "knobs": knobs}], [paragraph(row), *_knob_table("data", knobs), *copying]


def _knobs_of(method: type) -> list[dict[str, object]]:
    from trainables.methods import parameters_of

    return [
        {"name": k.name, "default": k.default, "required": k.required, "rule": k.rule, "meaning": k.description}
        for k in parameters_of(method)
    ]


def _knob_table(section: str, knobs: Sequence[Mapping[str, object]]) -> Lines:
    """Yield the table of a method's knobs, if it has any; `section` is their section of the configuration."""
    rows = []
    for knob in knobs:
        default = "null" if knob["default"] is None else knob["default"]  # as it is typed
        shown = "(required)" if knob["required"] else default
        rows.append((f"{section}.{knob['name']}", shown, knob["rule"], knob["meaning"]))
    if rows:
        yield table("", ("knob", "default", "rule", "meaning"), rows)


def _sweep(storage: Path, name: str) -> _Described:
    from tune_dml.record.results import load_results

    results = load_results(storage, name)
    answer = answer_of(results)
    report = results.folder / "report" / "report.html"
    data = {
        "sweep": results.name,
        "space": results.plan.space.name,
        "dataset": results.plan.dataset,
        "state": state_of(results),
        "answer": answer.sentences if answer else [],
        "facts": answer.facts if answer else {},
        "next": answer.step[0] if answer and answer.step else None,
        "folder": str(results.folder),
        "report": str(report) if report.exists() else None,
    }
    return data, _sweep_text(results, answer, report)


def _sweep_text(results: Results, answer: SweepAnswer | None, report: Path) -> Lines:
    from tune_dml.record.origin.commands import command

    yield f"{results.name}: {results.plan.space.title}, on {results.plan.dataset}"
    yield f"State:   {state_of(results)}; last change: {age_of(results)}"
    if answer is None:
        yield why_no_answer(results) or f"No trial has a number yet. Follow it: {command(results, 'status')}"
        return
    yield from answer.lines(running=is_running(results.folder))
    yield from (f"{name + ':':<20} {text}" for name, text in answer.facts.items())
    yield f"Report:  {report if report.exists() else command(results, 'report')}"
    yield f"Folder:  {results.folder}"
