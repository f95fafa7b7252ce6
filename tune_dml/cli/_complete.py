"""Shell completion: spaces, sweep files, sweeps, settings, knobs. Typer drops the names that do not begin as typed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainables.errors import ConfigError
from tune_dml.planning.request import Session

if TYPE_CHECKING:
    from tune_dml.space import Value


def storage_of(ctx: typer.Context) -> Path:
    """Return the storage that the command line names."""
    return Path(ctx.params.get("storage") or Session.storage)


def spaces(incomplete: str) -> list[str]:
    """Return the search spaces, and the sweep files of the typed folder."""
    from tune_dml import catalogue

    return [*catalogue.spaces(), *map(str, sorted(Path(incomplete).parent.glob("*.y*ml")))]


def sweeps(ctx: typer.Context) -> list[str]:
    """Return the stored sweeps."""
    from tune_dml.record.state import sweep_names

    return sweep_names(storage_of(ctx))


def settings(ctx: typer.Context) -> list[str]:
    """Return dotted settings, each with `=`, including the knobs of methods that --set chooses."""
    return [f"{name}=" for name in setting_names(ctx)]


def setting_names(ctx: typer.Context) -> list[str]:
    """Return dotted settings."""
    from trainables.config import SECTIONS
    from trainables.methods import knob_names
    from trainables.registries import methods_chosen

    given = dict(pair.split("=", 1) for pair in ctx.params.get("settings") or () if "=" in pair)
    names: dict[str, None] = {}
    for section, model in SECTIONS.items():
        chosen: dict[str, Value] = {k.partition(".")[2]: v for k, v in given.items() if k.startswith(f"{section}.")}
        knobs = [knob for method in methods_chosen(section, chosen).values() for knob in sorted(knob_names(method))]
        names |= dict.fromkeys(f"{section}.{name}" for name in [*model.own_fields(), *knobs])
    return list(names)


def knobs_of_sweeps(ctx: typer.Context) -> list[str]:
    """Return the knobs of the named sweep, or of every stored sweep if none is named yet."""
    from tune_dml.planning.plan import Plan

    knobs: dict[str, None] = {}
    named = ctx.params.get("sweep_name")
    for name in [named] if named else sweeps(ctx):
        with suppress(ConfigError, OSError, ValueError):  # the verb reports an unreadable plan
            plan = Plan.load(storage_of(ctx) / name / "plan.json")
            knobs |= dict.fromkeys(f"{knob.path}=" for knob in plan.space.knobs)
    return list(knobs)


def datasets() -> list[str]:
    """Return the names of data sets."""
    from trainables.data import DATASETS

    return list(DATASETS)


def protocols() -> list[str]:
    """Return the names of protocols."""
    from tune_dml import catalogue

    return list(catalogue.protocols())
