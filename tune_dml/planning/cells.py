"""The cells of a space on a data set: the baseline, the grid, and points that a searcher proposes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainables.config import TrialConfig
from trainables.errors import ConfigError, Problem
from trainables.resolve import Layer, Layered, read_settings, resolve
from tune_dml.space import Grid, Knob, Space, Value


@dataclass(frozen=True)
class Cell:
    """One point of the space on one data set, without the seed. Stored by its fields."""

    index: int
    label: str
    knobs: Mapping[str, Value]
    settings: Mapping[str, Any]
    """The full resolved configuration, flat and dotted."""
    digest: str
    baseline: bool = False

    @classmethod
    def of(
        cls, index: int, label: str, knobs: Mapping[str, Value], config: TrialConfig, *, baseline: bool = False
    ) -> Cell:
        """The cell of a resolved configuration."""
        settings = {key: value for key, value in config.settings().items() if key != "seed"}
        cell = cls(index, label, dict(knobs), settings, config.digest(), baseline)
        vars(cell)["config"] = config.model_copy(
            update={"seed": 0}
        )  # resolved once: not to be read back from its settings
        return cell

    @cached_property
    def config(self) -> TrialConfig:
        """The resolved configuration, under seed 0.

        A cell that was read from a file makes it when first asked, from its settings: a report of a sweep needs none, and
        can be made where the methods of that sweep are no longer known.
        """
        return read_settings(self.settings)


def shared_settings(space: Space, layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """What all cells share, and where each setting comes from.

    Resolved with each knob at one of its values; the knobs are then taken out. Raises ConfigError with every problem.
    """
    searched = {knob.path: _a_value(knob) for knob in space.knobs}
    searched |= {tie.path: tie.value(searched) for tie in space.ties}
    resolved = resolve(*layers, Layer("knob", searched))
    settings = resolved.config.settings()
    if unnamed := [path for path in searched if path not in settings]:
        rule = "a searched setting goes by its shortest unambiguous name"
        remedy = "Leave out the field that names its method."
        raise ConfigError([Problem(f"{space.name}.{path}", rule, path, remedy) for path in unnamed])
    shared = {path: value for path, value in settings.items() if path not in searched and path != "seed"}
    return shared, {path: resolved.origins[path] for path in shared}


def _a_value(knob: Knob) -> Value:
    if isinstance(knob.domain, Grid):
        return knob.domain.values[0]
    return int(knob.domain.low) if knob.domain.integer else knob.domain.low


def baseline_cell(space: Space, layers: Sequence[Layer]) -> list[Cell]:
    """The cell that the knob is compared with, where the space has one. Raises ConfigError."""
    if space.baseline is None:
        return []
    config = resolve(*layers, Layer("baseline", space.baseline.settings)).config
    return [Cell.of(0, space.baseline.label, {}, config, baseline=True)]


def grid_cells(space: Space, shared: Mapping[str, Value], *, start: int) -> list[Cell]:
    """Every combination of the listed values, numbered from `start`; raises ConfigError with the problems of all of them."""
    cells: list[Cell] = []
    problems: list[Problem] = []
    base = Layered().over(Layer("plan", shared))
    grids = [knob.domain.values for knob in space.knobs if isinstance(knob.domain, Grid)]
    for point in itertools.product(*grids):
        knobs = {knob.path: value for knob, value in zip(space.knobs, point, strict=True)}
        try:
            cells.append(cell_at(start + len(cells), knobs, base, space))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return cells


def cell_at(index: int, knobs: Mapping[str, Value], shared: Layered, space: Space) -> Cell:
    """The cell at a point of the space, over what all cells share. Raises ConfigError where the point is not allowed."""
    ties = {tie.path: tie.value(knobs) for tie in space.ties}
    config = shared.over(Layer("knob", knobs), Layer("tie", ties)).resolve().config
    label = ", ".join(f"{knob.symbol or knob.path}={_short(knobs[knob.path])}" for knob in space.knobs)
    return Cell.of(index, label, knobs, config)


def without_repeats(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The first cell of each identity."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.digest, cell)
    return tuple(first.values())


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
