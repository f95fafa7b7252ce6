"""`tune-dml show`: describe a space, a method, a protocol, a data set or a sweep by its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_dml.cli import _complete
from tune_dml.cli._sweep_status_text import age_of, answer_of, state_of, why_no_answer
from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import Lines, View, table
from tune_dml.cli.screen import show as show_view
from tune_dml.space import Knob, Protocol, Space

if TYPE_CHECKING:
    from trainables.data.base import DataSet
    from tune_dml.record.results import Results

ORDER = 25
EXAMPLES = """
tune-dml show sec_rho                                 # a space: its knobs, values, arms, printed tables
tune-dml show triplet                                 # a loss: its formula and knobs
tune-dml show glyphs/triplet                          # a protocol: its settings, and where each comes from
tune-dml show cub200                                  # a data set: where to get it
tune-dml show rho1                                    # a sweep: its answer, and what to do next
"""
_KINDS = ("task", "loss", "regularizer", "backbone", "pooling", "head", "sampler", "optimizer", "lr_schedule")
_CHOSEN_BY = {
    **{kind: f"model.{kind}" for kind in ("backbone", "pooling", "head")},
    "sampler": "batch.sampler",
    "optimizer": "optim.name",
    "lr_schedule": "optim.lr_schedule",
}
"""Setting that chooses a method of a kind; `KIND.name` for other kinds."""


@verb
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SPACE|METHOD|PROTOCOL|DATASET|SWEEP", help="What to show.", autocompletion=_complete.subjects
        ),
    ],
    *,
    storage: Path,
    as_json: Json = False,
) -> None:
    """Describe a space, method, protocol, data set or sweep; the name selects it."""
    from trainables.errors import ConfigError, Problem, nearest

    views = list(_views_named(name, storage.absolute()))
    if not views:
        remedy = nearest(name, _all_names(storage.absolute()))
        raise ConfigError(Problem("NAME", "unknown space, method, protocol, data set or sweep", name, remedy))
    show_view(views[0] if len(views) == 1 else _ViewGroup(tuple(views)), as_json)


def _views_named(name: str, storage: Path) -> Iterator[View]:
    """Yield a view of each item with this name."""
    from trainables.data import DATASETS
    from trainables.registries import methods_of
    from tune_dml import catalogue
    from tune_dml.record.results import load_results
    from tune_dml.record.state import sweep_names

    if name in sweep_names(storage):
        yield _SweepView(load_results(storage, name))
    if name in catalogue.spaces():
        yield _SpaceView(catalogue.spaces()[name])
    yield from (_MethodView(kind, name, methods_of(kind)[name]) for kind in _KINDS if name in methods_of(kind))
    if name in catalogue.protocols():
        yield _ProtocolView(catalogue.protocols()[name])
    if name in DATASETS:
        yield _DataSetView(name, DATASETS[name])


def _all_names(storage: Path) -> list[str]:
    from trainables.data import DATASETS
    from trainables.registries import methods_of
    from tune_dml import catalogue
    from tune_dml.record.state import sweep_names

    methods = [name for kind in _KINDS for name in methods_of(kind)]
    return [*sweep_names(storage), *catalogue.spaces(), *methods, *catalogue.protocols(), *DATASETS]


@dataclass(frozen=True)
class _ViewGroup:
    """All items with the same name."""

    views: tuple[View, ...]

    def data(self) -> Any:
        return [view.data() for view in self.views]

    def text(self) -> Lines:
        for index, view in enumerate(self.views):
            if index:
                yield ""
            yield from view.text()


@dataclass(frozen=True)
class _SpaceView:
    """A search space."""

    space: Space

    def data(self) -> dict[str, object]:
        space = self.space
        return {
            "space": space.name,
            "title": space.title,
            "question": space.question,
            "citation": str(space.citation or ""),
            "knobs": {knob.path: _domain_text(knob) for knob in space.knobs},
            "arms": [arm.name for arm in space.every_arm if arm.name],
            "baseline": space.baseline_name,
            "fixed": dict(space.fixed),
            "protocols": {protocol.dataset: protocol.name for protocol in space.protocols},
            "published": [f"{item.paper}, table {item.table}, {item.dataset}" for item in space.published],
            "notes": [*space.notes, *space.identities],
        }

    def text(self) -> Lines:
        space = self.space
        yield f"{space.name}: {space.title}"
        yield from filter(None, (space.question, str(space.citation or "")))
        rows = [
            (knob.path, _domain_text(knob), "tuned away" if space.is_nuisance(knob.path) else "")
            for knob in space.knobs
        ]
        if rows:
            yield table("", ("knob", "values", ""), rows)
        arms = [arm.name for arm in space.every_arm if arm.name]
        lines = {
            "Arms": ", ".join(arms),
            "Baseline": space.baseline_name or "",
            "Fixed": ", ".join(f"{path}={value}" for path, value in space.fixed.items()),
            "Printed": "; ".join(dict.fromkeys(f"{p.paper}, table {p.table} ({p.dataset})" for p in space.published)),
            "Protocols": ", ".join(protocol.name for protocol in space.protocols),
        }
        yield from (f"{title + ':':<11}{text}" for title, text in lines.items() if text)
        yield from (f"{'Note:':<11}{note}" for note in space.notes)
        yield f"{'Run it:':<11}tune-dml plan {space.name}; then tune-dml sweep {space.name}"


def _domain_text(knob: Knob) -> str:
    """Return `0.1, 0.5, 1`, or `0.001 to 0.1, log`."""
    from tune_dml.space import Grid
    from tune_dml.text import value_text

    if isinstance(knob.domain, Grid):
        return ", ".join(map(value_text, knob.domain.values))
    return f"{knob.domain.low:g} to {knob.domain.high:g}, {knob.domain.scale}"


@dataclass(frozen=True)
class _MethodView:
    """A method, such as a loss, a backbone or a schedule."""

    kind: str
    name: str
    method: type

    def data(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "name": self.name,
            "formula": (self.method.__doc__ or "").strip(),
            "citation": getattr(self.method, "citation", ""),
            "knobs": [] if self.kind == "sampler" else _knobs_of(self.method),  # its knobs are settings of the batch
        }

    def text(self) -> Lines:
        import inspect

        setting = _CHOSEN_BY.get(self.kind, f"{self.kind}.name")
        yield f"{self.kind} {self.name}: {inspect.getdoc(self.method) or ''}"
        yield from filter(None, [str(getattr(self.method, "citation", ""))])
        if self.kind != "sampler":
            yield from _knob_table(setting.partition(".")[0], self.method)
        yield f"Choose it: --set {setting}={self.name}"


@dataclass(frozen=True)
class _ProtocolView:
    """A protocol: its settings, and where each comes from."""

    protocol: Protocol

    def data(self) -> dict[str, object]:
        protocol = self.protocol
        return {
            "protocol": protocol.name,
            "dataset": protocol.dataset,
            "note": protocol.note,
            "losses": [*protocol.methods],
            "settings": dict(protocol.settings),
            "sources": {path: self._source(path) for path in protocol.settings},
        }

    def _source(self, path: str) -> str:
        return self.protocol.sources.get(path, self.protocol.origin)

    def text(self) -> Lines:
        from tune_dml.text import value_text

        protocol = self.protocol
        yield f"protocol {protocol.name}, of the data set {protocol.dataset}"
        yield from filter(None, (protocol.note,))
        rows = [(path, value_text(value), self._source(path)) for path, value in protocol.settings.items()]
        yield table("", ("setting", "value", "source"), rows)
        if protocol.methods:
            yield f"{'Losses:':<11}{', '.join(protocol.methods)}"
        yield f"{'Use it:':<11}tune-dml plan SPACE --dataset {protocol.dataset} --protocol {protocol.name}"


@dataclass(frozen=True)
class _DataSetView:
    """A data set; it may need files on the user's disk."""

    name: str
    dataset: type[DataSet]

    def data(self) -> list[dict[str, object]]:
        from tune_dml.cli.datasets import row_of

        return [{**row_of(self.name, self.dataset), "knobs": _knobs_of(self.dataset)}]

    def text(self) -> Lines:
        from tune_dml.cli.datasets import copy_commands, paragraph, row_of

        yield paragraph(row_of(self.name, self.dataset))
        yield from _knob_table("data", self.dataset)
        if self.dataset.needs_root:
            yield copy_commands(self.name)


def _knobs_of(method: type) -> list[dict[str, object]]:
    from trainables.methods import parameters_of

    return [
        {"name": k.name, "default": k.default, "required": k.required, "rule": k.rule, "meaning": k.description}
        for k in parameters_of(method)
    ]


def _knob_table(section: str, method: type) -> Lines:
    """Yield the table of a method's knobs; `section` is their section of the configuration."""
    from trainables.methods import parameters_of
    from tune_dml.text import value_text

    rows = [
        (
            f"{section}.{k.name}",
            "(required)" if k.required else value_text(None) if k.default is None else k.default,
            k.rule,
            k.description,
        )
        for k in parameters_of(method)
    ]
    if rows:
        yield table("", ("knob", "default", "rule", "meaning"), rows)


@dataclass(frozen=True)
class _SweepView:
    """A sweep: its state and its answer."""

    results: Results

    def data(self) -> dict[str, object]:
        results, answer = self.results, answer_of(self.results)
        return {
            "sweep": results.name,
            "space": results.plan.space.name,
            "dataset": results.plan.dataset,
            "state": state_of(results),
            "answer": answer.sentences if answer else [],
            "facts": answer.facts if answer else {},
            "next": answer.step[0] if answer and answer.step else None,
            "folder": str(results.folder),
            "report": str(self._report) if self._report.exists() else None,
        }

    @property
    def _report(self) -> Path:
        return self.results.folder / "report" / "report.html"

    def text(self) -> Lines:
        from tune_dml.record.ledger import is_running
        from tune_dml.record.origin.commands import command

        results, answer = self.results, answer_of(self.results)
        yield f"{results.name}: {results.plan.space.title}, on {results.plan.dataset}"
        yield f"State:   {state_of(results)}; last change: {age_of(results)}"
        if answer is None:
            yield why_no_answer(results) or f"No trial has a number yet. Follow it: {command(results, 'status')}"
            return
        yield from answer.lines(running=is_running(results.folder))
        yield from (f"{name + ':':<20} {text}" for name, text in answer.facts.items())
        yield f"Report:  {self._report if self._report.exists() else command(results, 'report')}"
        yield f"Folder:  {results.folder}"
