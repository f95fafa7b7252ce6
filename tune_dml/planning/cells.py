"""The cells of a space on a data set: each arm with what its cells share, its grid, and points that a searcher proposes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainables.config import TrialConfig
from trainables.errors import ConfigError, Problem
from trainables.resolve import Layer, Layered, read_settings, resolve
from tune_dml.space import Grid, Knob, Protocol, Space, Tie, Value


@dataclass(frozen=True)
class Cell:
    """One point of one arm on one data set, without the seed. Stored by its fields."""

    index: int
    label: str
    knobs: Mapping[str, Value]
    settings: Mapping[str, Any]
    """The full resolved configuration, flat and dotted."""
    digest: str
    baseline: bool = False
    """Of the arm that the others are compared with."""
    arm: str = ""
    """The name of its arm; empty for that of a space without arms."""

    def __post_init__(self) -> None:
        if self.baseline and not self.arm:  # as stored before there were arms: a baseline was known by its label
            object.__setattr__(self, "arm", self.label)

    @classmethod
    def of(
        cls, index: int, label: str, knobs: Mapping[str, Value], config: TrialConfig, *, arm: str, baseline: bool
    ) -> Cell:
        """The cell of a resolved configuration."""
        settings = {key: value for key, value in config.settings().items() if key != "seed"}
        cell = cls(index, label, dict(knobs), settings, config.digest(), baseline, arm)
        vars(cell)["config"] = config.model_copy(
            update={"seed": 0}
        )  # resolved once: not to be read back from its settings
        return cell

    def numbered(self, index: int) -> Cell:
        """The same cell at another place."""
        cell = replace(self, index=index)
        if "config" in vars(self):
            vars(cell)["config"] = self.config
        return cell

    @cached_property
    def config(self) -> TrialConfig:
        """The resolved configuration, under seed 0.

        A cell that was read from a file makes it when first asked, from its settings: a report of a sweep needs none, and
        can be made where the methods of that sweep are no longer known.
        """
        return read_settings(self.settings)


@dataclass(frozen=True)
class StudyArm:
    """An arm of a study on its data set: everything is decided, nothing resolved."""

    name: str
    knobs: tuple[Knob, ...]
    """Scientific first."""
    ties: tuple[Tie, ...]
    layers: tuple[Layer, ...]
    """Its settings by source, the later one wins."""
    protocol: Protocol | None
    baseline: bool

    def point(self) -> dict[str, Value]:
        """Each knob at one of its values, and what follows from them."""
        return _point(self.knobs, self.ties)


@dataclass(frozen=True)
class PlannedArm:
    """An arm on a data set: what its cells share, and where each setting comes from."""

    name: str
    base_settings: Mapping[str, Any]
    """A cell is these settings with its knobs and ties laid over them."""
    origins: Mapping[str, str]
    protocol: Protocol | None = None
    baseline: bool = False
    knobs: tuple[Knob, ...] = ()
    """Scientific first. A stored plan has them, and ties, in its space."""
    ties: tuple[Tie, ...] = ()

    def searching(self, space: Space) -> PlannedArm:
        """This arm with the knobs and ties that a space declares for it."""
        declared = space.arm(self.name)
        return replace(self, knobs=space.knobs_of(declared), ties=space.ties_of(declared))

    @cached_property
    def config(self) -> TrialConfig:
        """The configuration with each knob at one of its values."""
        return resolve(Layer("plan", self.base_settings), Layer("knob", _point(self.knobs, self.ties))).config


def resolve_arm(arm: StudyArm, space: str) -> PlannedArm:
    """Resolve what an arm's cells share; raises ConfigError with every problem.

    Resolved with each knob at one of its values; the knobs are then taken out.
    """
    searched = arm.point()
    resolved = resolve(*arm.layers, Layer("knob", searched))
    settings = resolved.config.settings()
    if unnamed := [path for path in searched if path not in settings]:
        rule = "a searched setting goes by its shortest unambiguous name"
        remedy = "Leave out the field that names its method."
        raise ConfigError([Problem(f"{space}.{path}", rule, path, remedy) for path in unnamed])
    shared = {path: value for path, value in settings.items() if path not in searched and path != "seed"}
    origins = {path: resolved.origins[path] for path in shared}
    return PlannedArm(arm.name, shared, origins, arm.protocol, arm.baseline, arm.knobs, arm.ties)


def _point(knobs: Sequence[Knob], ties: Sequence[Tie]) -> dict[str, Value]:
    point = {knob.path: _a_value(knob) for knob in knobs}
    return point | {tie.path: tie.value(point) for tie in ties}


def _a_value(knob: Knob) -> Value:
    if isinstance(knob.domain, Grid):
        return knob.domain.values[0]
    return int(knob.domain.low) if knob.domain.integer else knob.domain.low


def grid_cells(arm: PlannedArm) -> list[Cell]:
    """Every combination of an arm's listed values, one cell where it has no knobs, numbered from 0.

    Raises ConfigError with the problems of all of them.
    """
    cells: list[Cell] = []
    problems: list[Problem] = []
    base = Layered().over(Layer("plan", arm.base_settings))
    listed = [(knob.path, knob.domain.values) for knob in arm.knobs if isinstance(knob.domain, Grid)]
    for point in itertools.product(*(values for _, values in listed)):
        knobs = {path: value for (path, _), value in zip(listed, point, strict=True)}
        try:
            cells.append(cell_at(len(cells), knobs, base, arm))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return cells


def cell_at(index: int, knobs: Mapping[str, Value], shared: Layered, arm: PlannedArm) -> Cell:
    """The cell at a point of an arm, over what its cells share. Raises ConfigError where the point is not allowed."""
    ties = {tie.path: tie.value(knobs) for tie in arm.ties}
    config = shared.over(Layer("knob", knobs), Layer("tie", ties)).resolve().config
    return Cell.of(index, _label(arm, knobs), knobs, config, arm=arm.name, baseline=arm.baseline)


def _label(arm: PlannedArm, knobs: Mapping[str, Value]) -> str:
    """The arm's name, where it has one, and the value of each knob."""
    values = (f"{knob.symbol or knob.path}={_short(knobs[knob.path])}" for knob in arm.knobs)
    point = ", ".join(values)
    return ": ".join(part for part in (arm.name, point) if part)


def without_repeats(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The first cell of each identity."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.digest, cell)
    return tuple(first.values())


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
