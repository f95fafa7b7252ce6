"""Make cells: an arm's shared settings with the knobs of a grid point or a proposed point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from trainables.config import Settings, TrialConfig, settings_digest
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.resolve import Layer, Layered, Resolved, read_settings, resolve
from tune_dml.programs.command import SETTING
from tune_dml.space import Grid, Knob, Protocol, SearchMethod, Space, Tie, Value

_Arm = TypeVar("_Arm", "StudyArm", "PlannedArm")
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Cell:
    """One point of one arm on one data set, without the seed. Stored as its fields."""

    index: int
    label: str
    knobs: Mapping[str, Value]
    settings: Settings
    """The full resolved configuration, flat and dotted."""
    digest: str
    baseline: bool = False
    """Whether the cell belongs to the baseline."""
    arm: str = ""
    """The name of its arm; empty if the space has no arms."""

    def __post_init__(self) -> None:
        if self.baseline and not self.arm:  # older files name the baseline by its label
            object.__setattr__(self, "arm", self.label)

    @classmethod
    def of(
        cls, index: int, label: str, knobs: Mapping[str, Value], config: TrialConfig, *, arm: str, baseline: bool
    ) -> Cell:
        """Return the cell of a resolved configuration."""
        settings = {key: value for key, value in config.settings().items() if key != "seed"}
        cell = cls(index, label, dict(knobs), settings, config.digest(), baseline, arm)
        vars(cell)["config"] = config.model_copy(update={"seed": 0})  # fills the cached property
        return cell

    @property
    def is_whole(self) -> bool:
        """Whether settings and knobs match the digest; they do not if the stored file was edited."""
        alike = all(self.settings.get(path, value) == value for path, value in self.knobs.items())
        try:
            return alike and settings_digest(self.settings) == self.digest
        except ValueError:  # NaN or Infinity, which no setting has
            return False

    def numbered(self, index: int) -> Cell:
        """Return this cell with another index."""
        cell = replace(self, index=index)
        if "config" in vars(self):
            vars(cell)["config"] = self.config
        return cell

    @cached_property
    def config(self) -> TrialConfig:
        """The resolved configuration, under seed 0.

        A stored cell reads it from its settings at first use: a report needs none, so the sweep's methods may be missing.
        """
        return read_settings(self.settings)


@dataclass(frozen=True)
class StudyArm:
    """An arm of a study on its data set, before its settings are resolved."""

    name: str
    knobs: tuple[Knob, ...]
    """Scientific first."""
    ties: tuple[Tie, ...]
    layers: tuple[Layer, ...]
    """Its settings by source; later ones win."""
    protocol: Protocol | None
    baseline: bool

    @cached_property
    def resolved(self) -> Resolved:
        """Its settings with each knob at its first value. Raises ConfigError with every problem."""
        return resolve(*self.layers, Layer("knob", _point(self.knobs, self.ties)))

    @property
    def settings(self) -> Settings:
        """Its settings with each knob at its first value. Raises ConfigError with every problem."""
        given = {path: value for layer in self.layers for path, value in layer.settings.items()}
        given |= _point(self.knobs, self.ties)
        return given if SETTING in given else self.resolved.config.settings()

    @property
    def origins(self) -> Mapping[str, str]:
        """The origin of each of these settings."""
        given = {path: layer.origin_of(path) for layer in self.layers for path in layer.settings}
        return given if SETTING in given else self.resolved.origins


@dataclass(frozen=True)
class PlannedArm:
    """An arm on a data set: the settings that its cells share, with their origins."""

    name: str
    base_settings: Settings
    """A cell's settings without its knobs and ties."""
    origins: Mapping[str, str]
    protocol: Protocol | None = None
    baseline: bool = False
    knobs: tuple[Knob, ...] = ()
    """Scientific first. A stored plan keeps knobs and ties in its space."""
    ties: tuple[Tie, ...] = ()

    def searching(self, space: Space) -> PlannedArm:
        """Return this arm with the knobs and ties that a space declares for it."""
        declared = space.arm(self.name)
        return replace(self, knobs=space.knobs_of(declared), ties=space.ties_of(declared))

    @cached_property
    def config(self) -> TrialConfig:
        """The configuration with each knob at its first value."""
        return self.tried[0]

    @cached_property
    def tried(self) -> tuple[TrialConfig, ...]:
        """Configurations to check before a search: each knob at its first value, then one knob at a time at its others.

        The values of a range are its ends. Raises ConfigError with every problem.
        """
        first = {knob.path: _values(knob)[0] for knob in self.knobs}
        others = [first | {knob.path: value} for knob in self.knobs for value in _values(knob)[1:]]
        if SETTING in self.base_settings:  # a program checks its parameters itself
            return ()
        base = Layered().over(Layer("plan", self.base_settings))
        configs, problems = [], dict[Problem, None]()
        for knobs in (first, *others):
            try:
                configs.append(base.over(Layer("knob", _with_ties(knobs, self.ties))).resolve().config)
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
        raise_if_any(problems)
        return tuple(configs)


def is_searched(arm: StudyArm | PlannedArm) -> bool:
    """Whether an adaptive search proposes points in an arm: it has knobs and is not the baseline."""
    return bool(arm.knobs) and not arm.baseline


def planned_arms(arms: Sequence[StudyArm], space: str) -> tuple[PlannedArm, ...]:
    """Resolve the settings that each arm's cells share. Raise ConfigError with every problem and its arms."""
    return _of_each(arms, lambda arm: [_planned(arm, space)])


def planned_cells(arms: Sequence[PlannedArm], method: SearchMethod) -> tuple[Cell, ...]:
    """Return the cells that need no searcher, each once: the grids of all arms, or of the arms without a search.

    Raises:
        ConfigError: Lists every problem with its arms, also of points that a search may propose.
    """

    def known(arm: PlannedArm) -> list[Cell]:
        if method == "grid" or not is_searched(arm):
            return _grid_cells(arm)
        _ = arm.tried  # raises for invalid values
        return []

    first: dict[str, Cell] = {}
    for cell in _of_each(arms, known):
        first.setdefault(cell.digest, cell)
    return tuple(cell.numbered(number) for number, cell in enumerate(first.values()))


def _of_each(arms: Sequence[_Arm], make: Callable[[_Arm], Sequence[_Made]]) -> tuple[_Made, ...]:
    """Concatenate what `make` returns for each arm. Raise ConfigError with every problem, and its arms unless all have it."""
    made: list[_Made] = []
    wrong: dict[tuple[str, ...], Problem] = {}
    names: dict[tuple[str, ...], list[str]] = {}
    for arm in arms:
        try:
            made += make(arm)
        except ConfigError as error:
            for problem in error.problems:
                same = problem.place, problem.rule, repr(problem.value)
                wrong[same] = problem
                names.setdefault(same, []).append(arm.name)
    if wrong:
        raise ConfigError(
            problem
            if len(names[same]) == len(arms) > 1
            else replace(problem, place=f"{problem.place}{_of_arms(problem.place, names[same])}")
            for same, problem in wrong.items()
        )
    return tuple(made)


def _of_arms(place: str, names: Sequence[str]) -> str:
    """Return the arms of a problem as text, unless its place names them."""
    named = [name for name in names if name and f"(arm {name})" not in place]
    return f" of {', '.join(named)}" if named else ""


def _planned(arm: StudyArm, space: str) -> PlannedArm:
    """Resolve an arm with each knob at its first value; return it without its knobs and ties."""
    settings, origins = arm.settings, arm.origins
    searched = [*(knob.path for knob in arm.knobs), *(tie.path for tie in arm.ties)]
    if unnamed := [path for path in searched if path not in settings]:
        rule = "a searched setting must have its shortest unambiguous name"
        remedy = "Leave out the field that names its method."
        raise ConfigError(Problem(f"{space}.{path}", rule, path, remedy) for path in unnamed)
    shared = {path: value for path, value in settings.items() if path not in searched and path != "seed"}
    sources = {path: origins[path] for path in shared}
    return PlannedArm(arm.name, shared, sources, arm.protocol, arm.baseline, arm.knobs, arm.ties)


def _point(knobs: Sequence[Knob], ties: Sequence[Tie]) -> dict[str, Value]:
    return _with_ties({knob.path: _values(knob)[0] for knob in knobs}, ties)


def _with_ties(point: Mapping[str, Value], ties: Sequence[Tie]) -> dict[str, Value]:
    return {**point, **{tie.path: tie.value(point) for tie in ties}}


def _values(knob: Knob) -> tuple[Value, ...]:
    """Return the listed values, or the ends of the range."""
    if isinstance(knob.domain, Grid):
        return knob.domain.values
    ends = (knob.domain.low, knob.domain.high)
    return tuple(map(int, ends)) if knob.domain.integer else ends


def _grid_cells(arm: PlannedArm) -> list[Cell]:
    """Return a cell for each combination of an arm's listed values; one cell if it has no knobs.

    Raises ConfigError with the problems of all cells.
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
    """Return the cell at a point of an arm. Raise ConfigError if the point is invalid."""
    ties = {tie.path: tie.value(knobs) for tie in arm.ties}
    if SETTING in arm.base_settings:
        settings = {**arm.base_settings, **knobs, **ties}
        digest = settings_digest(settings)
        return Cell(index, _label(arm, knobs), dict(knobs), settings, digest, arm.baseline, arm.name)
    config = shared.over(Layer("knob", knobs), Layer("tie", ties)).resolve().config
    return Cell.of(index, _label(arm, knobs), knobs, config, arm=arm.name, baseline=arm.baseline)


def _label(arm: PlannedArm, knobs: Mapping[str, Value]) -> str:
    """Return the arm's name, if any, and the value of each knob."""
    values = ((knob.symbol or knob.path, knobs[knob.path]) for knob in arm.knobs)
    point = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values
    )
    return ": ".join(part for part in (arm.name, point) if part)
