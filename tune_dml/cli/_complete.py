"""Shell completion: spaces, sweep files, sweeps, settings, knobs, data sets, protocols, methods."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tune_dml.planning.request import Session

if TYPE_CHECKING:
    from tune_dml.space import Value


def spaces(incomplete: str) -> list[str]:
    """Return the search spaces, and the sweep files of the working directory."""
    from tune_dml import catalogue

    files = map(str, sorted(Path(incomplete).parent.glob("*.y*ml")))
    return _with_prefix(incomplete, [*catalogue.spaces(), *files])


def sweeps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the sweeps in the storage that the command line names."""
    from tune_dml.record.state import sweep_names

    return _with_prefix(incomplete, sweep_names(Path(ctx.params.get("storage") or Session.storage)))


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return dotted settings, each with `=`, including the knobs of methods that --set chooses."""
    from trainables.config import SECTIONS
    from trainables.methods import knob_names
    from trainables.registries import methods_chosen

    given = dict(pair.split("=", 1) for pair in ctx.params.get("settings") or () if "=" in pair)
    names: dict[str, None] = {}
    for section, model in SECTIONS.items():
        chosen: dict[str, Value] = {k.partition(".")[2]: v for k, v in given.items() if k.startswith(f"{section}.")}
        knobs = [knob for method in methods_chosen(section, chosen).values() for knob in sorted(knob_names(method))]
        names |= dict.fromkeys(f"{section}.{name}=" for name in [*model.own_fields(), *knobs])
    return _with_prefix(incomplete, names)


def setting_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return dotted settings."""
    return [name.removesuffix("=") for name in settings(ctx, incomplete)]


def knobs_of_sweeps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the knobs of the named sweep, or of every stored sweep if none is named yet."""
    from tune_dml.planning.plan import Plan
    from tune_dml.record.state import sweep_names

    storage = Path(ctx.params.get("storage") or Session.storage)
    names = [name] if (name := ctx.params.get("sweep_name")) else sweep_names(storage)
    paths = [path for name in names if (path := storage / name / "plan.json").exists()]
    knobs = dict.fromkeys(f"{knob.path}=" for path in paths for knob in Plan.load(path).space.knobs)
    return _with_prefix(incomplete, knobs)


def datasets(incomplete: str) -> list[str]:
    """Return the names of data sets."""
    from trainables.data import DATASETS

    return _with_prefix(incomplete, DATASETS)


def protocols(incomplete: str) -> list[str]:
    """Return the names of protocols."""
    from tune_dml import catalogue

    return _with_prefix(incomplete, catalogue.protocols())


def subjects(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return every name that `show` accepts."""
    from trainables.registries import methods_of

    methods = [*methods_of("loss"), *methods_of("regularizer")]
    names = [*methods, *protocols(incomplete), *datasets(incomplete)]
    return [*spaces(incomplete), *_with_prefix(incomplete, names), *sweeps(ctx, incomplete)]


def _with_prefix(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
