"""Make cells: an arm's shared settings with the knobs of a grid point or a proposed point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from trainables.config import Settings, TrialConfig, settings_digest
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.resolve import Layer, LayerStack, ResolvedConfig, read_settings, resolve
from tune_dml.programs.command import SETTING
from tune_dml.space import Grid, Knob, Protocol, SearchMethod, Space, Tie, Value
from tune_dml.text import is_number, value_text

_Arm = TypeVar("_Arm", "StudyArm", "PlannedArm")
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Cell:
    """One point of one arm on one data set, without the seed. Stored as its fields."""

    index: int
    label: str
    knobs: Mapping[str, Value]
    settings: Settings  # the full resolved configuration, flat and dotted
    digest: str
    baseline: bool = False
    arm: str = ""  # the name of its arm; empty if the space has no arms

    @property
    def is_whole(self) -> bool:
        """Whether settings and knobs match the digest; False means that the stored file was edited."""
        alike = all(self.settings.get(path, value) == value for path, value in self.knobs.items())
        try:
            return alike and settings_digest(self.settings) == self.digest
        except ValueError:  # NaN or Infinity, which is no valid setting
            return False

    def with_index(self, index: int) -> Cell:
        """Return this cell with another index."""
        cell = replace(self, index=index)
        if "config" in vars(self):
            vars(cell)["config"] = self.config
        return cell

    @cached_property
    def config(self) -> TrialConfig:
        """The resolved configuration, with seed 0.

        A stored cell resolves it at first use, so that a report needs no packages of the sweep's methods.
        """
        return read_settings(self.settings)


def with_own_label(cell: Cell, taken: set[str]) -> Cell:
    """Return the cell; its label gets a number if rounding made it equal to one in `taken`, to which it is added."""
    if cell.label in taken:
        cell = replace(cell, label=f"{cell.label} (#{cell.index + 1})")
    taken.add(cell.label)
    return cell


@dataclass(frozen=True)
class StudyArm:
    """An arm of a space on a data set, before its settings are resolved."""

    name: str
    space: Space
    layers: tuple[Layer, ...]  # the arm's settings by source; later layers win
    protocol: Protocol | None

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """The arm's knobs, scientific ones first."""
        return self.space.knobs_of(self.space.arm(self.name))

    @cached_property
    def ties(self) -> tuple[Tie, ...]:
        """The arm's ties."""
        return self.space.ties_of(self.space.arm(self.name))

    @property
    def baseline(self) -> bool:
        """Whether the other arms are compared with this one."""
        return self.name == self.space.baseline_name

    @cached_property
    def resolved(self) -> ResolvedConfig:
        """The arm's settings with each knob at its first value. Raises ConfigError with every problem."""
        return resolve(*self.layers, Layer("knob", _point(self.knobs, self.ties)))

    @property
    def settings(self) -> Settings:
        """The arm's settings with each knob at its first value. Raises ConfigError with every problem."""
        settings = {path: value for layer in self.layers for path, value in layer.settings.items()}
        settings |= _point(self.knobs, self.ties)
        return settings if SETTING in settings else self.resolved.config.settings()

    @property
    def origins(self) -> Mapping[str, str]:
        """The origin of each setting."""
        origins = {path: layer.origin_of(path) for layer in self.layers for path in layer.settings}
        return origins if SETTING in origins else self.resolved.origins


@dataclass(frozen=True)
class PlannedArm:
    """An arm on a data set: the settings that its cells share, with their origins."""

    name: str
    base_settings: Settings  # a cell's settings without its knobs and ties
    origins: Mapping[str, str]
    protocol: Protocol | None = None
    baseline: bool = False
    knobs: tuple[Knob, ...] = ()
    """The arm's knobs, scientific ones first. A stored plan keeps knobs and ties in its space."""
    ties: tuple[Tie, ...] = ()

    def with_knobs_of(self, space: Space) -> PlannedArm:
        """Return this arm with the knobs and ties that a space declares for it."""
        declared = space.arm(self.name)
        return replace(self, knobs=space.knobs_of(declared), ties=space.ties_of(declared))

    @cached_property
    def config(self) -> TrialConfig:
        """The configuration with each knob at its first value."""
        return self.trial_configs[0]

    @cached_property
    def trial_configs(self) -> tuple[TrialConfig, ...]:
        """Configurations to check before a search: each knob at its first value, then each change of a single knob.

        A range has two values, its ends. Raises ConfigError with every problem.
        """
        first = {knob.path: _values(knob)[0] for knob in self.knobs}
        variations = [first | {knob.path: value} for knob in self.knobs for value in _values(knob)[1:]]
        if SETTING in self.base_settings:  # a program checks its parameters itself
            return ()
        base = LayerStack().with_layers(Layer("plan", self.base_settings))
        configs, problems = [], dict[Problem, None]()
        for knobs in (first, *variations):
            try:
                configs.append(base.with_layers(Layer("knob", knobs | _tied(knobs, self.ties))).resolve().config)
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
        raise_if_any(problems)
        return tuple(configs)


def is_searched(arm: StudyArm | PlannedArm) -> bool:
    """Return whether an adaptive search proposes points in an arm: it has knobs and is not the baseline."""
    return bool(arm.knobs) and not arm.baseline


def plan_arms(arms: Sequence[StudyArm]) -> tuple[list[PlannedArm], list[Problem]]:
    """Resolve the settings that the cells of each arm share; return the problems with their arms."""
    return _for_each_arm(arms, lambda arm: [_plan_arm(arm)])


def plan_cells(arms: Sequence[PlannedArm], method: SearchMethod) -> tuple[tuple[Cell, ...], list[Problem]]:
    """Return the distinct cells that need no searcher: the grids of all arms, or of the arms without a search.

    Return the problems with their arms, too, also those of points that a search may propose.
    """

    def known_cells(arm: PlannedArm) -> list[Cell]:
        if method == "grid" or not is_searched(arm):
            return _grid_cells(arm)
        _ = arm.trial_configs  # raises for invalid values
        return []

    cells, problems = _for_each_arm(arms, known_cells)
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.digest, cell)
    return tuple(cell.with_index(number) for number, cell in enumerate(first.values())), problems


def _for_each_arm(arms: Sequence[_Arm], make: Callable[[_Arm], Sequence[_Item]]) -> tuple[list[_Item], list[Problem]]:
    """Concatenate the results of `make` for all arms; return its problems with their arms."""
    items: list[_Item] = []
    found: dict[tuple[str, ...], tuple[Problem, list[str]]] = {}
    for arm in arms:
        try:
            items += make(arm)
        except ConfigError as error:
            for problem in error.problems:
                key = problem.place, problem.rule, repr(problem.value)
                earlier: list[str] = found[key][1] if key in found else []
                found[key] = problem, [*earlier, arm.name]  # the last arm's remedy, as a baseline has few settings
    return items, [
        problem if len(names) == len(arms) > 1 else replace(problem, place=_with_arms(problem.place, names))
        for problem, names in found.values()
    ]


def _with_arms(place: str, names: Sequence[str]) -> str:
    """Return the place of a problem with its arms, unless it names them."""
    named = [name for name in names if name and f"(arm {name})" not in place]
    return f"{place} of {', '.join(named)}" if named else place


def _plan_arm(arm: StudyArm) -> PlannedArm:
    """Resolve an arm with each knob at its first value; return its settings without those of knobs and ties."""
    settings, origins = arm.settings, arm.origins
    searched = [*(knob.path for knob in arm.knobs), *(tie.path for tie in arm.ties)]
    if unnamed := [path for path in searched if path not in settings]:
        rule = "a searched setting must have its shortest unambiguous name"
        remedy = "Leave out the field that names its method."
        raise ConfigError(Problem(f"{arm.space.name}.{path}", rule, path, remedy) for path in unnamed)
    shared = {path: value for path, value in settings.items() if path not in searched and path != "seed"}
    sources = {path: origins[path] for path in shared}
    return PlannedArm(arm.name, shared, sources, arm.protocol, arm.baseline, arm.knobs, arm.ties)


def _point(knobs: Sequence[Knob], ties: Sequence[Tie]) -> dict[str, Value]:
    point = {knob.path: value for knob in knobs for value in _values(knob)[:1]}
    return point | _tied(point, ties)


def _tied(point: Mapping[str, Value], ties: Sequence[Tie]) -> dict[str, Value]:
    """Return the settings that follow the knobs of a point. Raise ConfigError for a knob that is no number."""
    settings = {}
    for tie in ties:
        value = point.get(tie.knob, 1)  # the space reports a tie without a knob
        if not is_number(value):
            raise ConfigError(Problem(tie.path, f"follows {tie.knob}, whose values must be numbers", value))
        settings[tie.path] = tie.value({tie.knob: value})
    return settings


def _values(knob: Knob) -> tuple[Value, ...]:
    """Return the listed values, or the ends of the range."""
    if isinstance(knob.domain, Grid):
        return knob.domain.values
    ends = (knob.domain.low, knob.domain.high)
    return tuple(map(int, ends)) if knob.domain.integer else ends


def _grid_cells(arm: PlannedArm) -> list[Cell]:
    """Return a cell for each combination of an arm's listed values. Raise ConfigError with the problems of all cells."""
    cells: list[Cell] = []
    problems: list[Problem] = []
    base = LayerStack().with_layers(Layer("plan", arm.base_settings))
    listed = [(knob.path, knob.domain.values) for knob in arm.knobs if isinstance(knob.domain, Grid)]
    for point in itertools.product(*(values for _, values in listed)):
        knobs = {path: value for (path, _), value in zip(listed, point, strict=True)}
        try:
            cells.append(cell_at(len(cells), knobs, base, arm))
        except ConfigError as error:
            problems += error.problems
    raise_if_any(dict.fromkeys(problems))
    return cells


def cell_at(index: int, knobs: Mapping[str, Value], shared: LayerStack, arm: PlannedArm) -> Cell:
    """Return the cell at a point of an arm. Raise ConfigError if the point is invalid."""
    label = _label(arm, knobs)
    if SETTING in arm.base_settings:
        own = {**arm.base_settings, **knobs}
        return Cell(index, label, dict(knobs), own, settings_digest(own), arm.baseline, arm.name)
    layers = Layer("knob", knobs), Layer("tie", _tied(knobs, arm.ties))
    config = shared.with_layers(*layers).resolve().config
    settings = {path: value for path, value in config.settings().items() if path != "seed"}
    cell = Cell(index, label, dict(knobs), settings, config.digest(), arm.baseline, arm.name)
    vars(cell)["config"] = config.model_copy(update={"seed": 0})  # fills the cached property
    return cell


def _label(arm: PlannedArm, knobs: Mapping[str, Value]) -> str:
    """Return the arm's name, if any, and the value of each knob."""
    values = ((knob.symbol or knob.path, knobs[knob.path]) for knob in arm.knobs)
    point = ", ".join(f"{name}={value_text(value)}" for name, value in values)
    return ": ".join(part for part in (arm.name, point) if part)
