"""Declare search spaces: knobs, arms, protocols and published curves; `planning.plan` turns a space into cells."""

# ruff: noqa: PLC0414 - spaces import the classes of `papers` from here
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from trainables.errors import Problem
from tune_dml.papers.paper import METHOD as METHOD
from tune_dml.papers.paper import Citation as Citation
from tune_dml.papers.paper import CurveReference as CurveReference
from tune_dml.papers.paper import Decision as Decision
from tune_dml.papers.paper import FidelitySheet as FidelitySheet
from tune_dml.papers.paper import Paper as Paper
from tune_dml.papers.paper import PaperTable as PaperTable
from tune_dml.papers.paper import Part as Part
from tune_dml.papers.paper import PrintedMethod as PrintedMethod
from tune_dml.papers.paper import Recipe as Recipe
from tune_dml.papers.paper import Selection as Selection
from tune_dml.papers.paper import Setting as Setting
from tune_dml.papers.paper import Settings
from tune_dml.papers.paper import SourcedSettings as SourcedSettings
from tune_dml.papers.paper import Value as Value
from tune_dml.programs.command import Program
from tune_dml.text import level_key

Number = float | int  # keeps the type of a number when a plan is read back
Origin = Literal["paper", "ours", "user"]
Scale = Literal["linear", "log", "category"]
SearchMethod = Literal["grid", "tpe", "gp", "cmaes", "nsga2", "random", "qmc"]
"""How cells are chosen: all of a grid, by an adaptive search (tpe to nsga2), or without feedback (random, qmc)."""

_REPEATED_KNOB = "a knob may be declared once"
_FIXED_KNOB = "a knob cannot be searched and fixed at once"
_FIXED_TIE = "a setting that follows a knob cannot be searched or fixed as well"


@dataclass(frozen=True)
class Grid:
    """A list of values, in the order of the axis."""

    values: tuple[Value, ...]
    scale: Scale = "linear"


@dataclass(frozen=True)
class Range:
    """A uniform range, low <= x <= high; whole numbers if `integer`."""

    low: Number
    high: Number
    integer: bool = False
    scale: Literal["linear", "log"] = "linear"


def LogRange(low: float, high: float) -> Range:  # noqa: N802 - reads as a type in a declaration
    """Return a range that is uniform in log x."""
    return Range(low, high, scale="log")


Domain = Grid | Range


@dataclass(frozen=True)
class Knob:
    """A searched parameter, named by its dotted configuration path."""

    path: str
    domain: Domain
    symbol: str = ""
    unit: str = ""
    origin: Origin = "paper"

    @property
    def label(self) -> str:
        """Axis title: symbol, path and unit."""
        unit = f" [{self.unit}]" if self.unit else ""
        return (f"{self.symbol} ({self.path})" if self.symbol not in {"", self.path} else self.path) + unit


@dataclass(frozen=True)
class Tie:
    """A setting that is `factor` times a knob (K = 2B) or, if `divided`, `factor` / knob, rounded (steps = N / B)."""

    path: str
    knob: str
    factor: Number
    divided: bool = False

    def value(self, knobs: Mapping[str, Value]) -> Value:
        """Return the setting at a point of the space, as int if it is whole."""
        value = float(knobs[self.knob])  # type: ignore[arg-type]
        value = round(self.factor / value) if self.divided else value * self.factor
        return int(value) if value == int(value) else value


@dataclass(frozen=True)
class Protocol:
    """Default settings that train and evaluate on a data set."""

    name: str
    dataset: str
    settings: Settings
    origin: Origin = "ours"
    note: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    default: bool = False
    """Whether spaces without a protocol use it for its data set."""
    methods: tuple[str, ...] = ()
    """Losses for which the source states it; empty for any loss."""
    still_gains: Mapping[str, float] = field(default_factory=dict)
    """Points of R@1 that a loss gains from twice the steps, for losses whose training has not converged."""

    @classmethod
    def from_paper(
        cls,
        name: str,
        dataset: str,
        *stated: SourcedSettings,
        note: str = "",
        default: bool = False,
        methods: tuple[str, ...] | None = None,
    ) -> Protocol:
        """Merge settings that a paper states into a protocol; later settings override earlier ones.

        `methods` defaults to the loss that the settings name. With empty `methods`, users must choose it by name.
        """
        settings = {path: value for part in stated for path, value in part.settings.items()}
        sources = {path: part.source for part in stated for path in part.settings}
        own = (str(settings["loss.name"]),) if "loss.name" in settings else ()
        return cls(name, dataset, settings, "paper", note, sources, default, own if methods is None else methods)

    @property
    def family(self) -> str:
        """First part of the name, shared by the protocols of one source: `sec` of `sec/cub200-ms`."""
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Arm:
    """A named method of a study, with the settings that distinguish it."""

    name: str
    settings: Settings = field(default_factory=dict)
    knobs: tuple[str, ...] | None = None
    """Paths of the space's knobs that the arm searches; None for all."""
    own_knobs: tuple[Knob, ...] = ()
    """Knobs of this arm only, or with other values than in the space."""
    ties: tuple[Tie, ...] = ()
    protocols: tuple[Protocol, ...] = ()
    """Protocols that replace those of the space, one per data set."""
    against: tuple[str, ...] = ()
    """Names of the arms over which its gain is measured; each gain is a declared contrast."""
    stated: tuple[SourcedSettings, ...] = ()
    """Settings for every data set; a protocol overrides them."""


def Baseline(name: str, settings: Settings) -> Arm:  # noqa: N802 - reads as a type in a declaration
    """Declare the arm that the others are compared with; it has no knobs."""
    return Arm(name, settings, knobs=())


@dataclass(frozen=True)
class Space:
    """A declared search: knobs, fixed settings, arms, citation and published numbers."""

    name: str
    title: str
    question: str
    citation: Citation | None = None
    """The paper of the study; None for a study of ours."""
    scientific: tuple[Knob, ...] = ()
    fixed: Settings = field(default_factory=dict)
    protocols: tuple[Protocol, ...] = ()
    nuisance: tuple[Knob, ...] = ()
    ties: tuple[Tie, ...] = ()
    baseline: Arm | str | None = None
    """The arm that the others are compared with, or its name among `arms`."""
    published: tuple[CurveReference, ...] = ()
    default_dataset: str = "glyphs"
    metric: str = "val/recall_at_1"
    goal: Literal["maximize", "minimize"] = "maximize"
    margin: Number = 1.0
    """Equivalence margin: smallest difference that matters, in units of the metric."""
    identities: tuple[str, ...] = ()
    """Identities between cells, by their numbers in docs/specification.md."""
    notes: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()
    """The compared methods, crossed with the knobs; a space without arms has one unnamed arm."""
    gain_differences: tuple[tuple[str, str], ...] = ()
    """Pairs of arms with one `against` each, whose gains are compared."""
    stated: tuple[SourcedSettings, ...] = ()
    """Settings for every data set; a protocol overrides them."""
    positive_pairs: int | None = None
    """Positive pairs of the batches for which `loss.k` is printed; K scales with the pairs of other batches."""
    differs: str = ""
    """Reason why the arms differ in protocol, pair term or reduction; empty if they must not differ."""
    program: Program | None = None
    """The user's own training script; None if tune_dml trains the trials."""
    origin: str = field(default="", compare=False)
    """Path of the sweep file that declares the space; empty for a space declared in Python."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """All searched knobs, scientific first, each path once."""
        declared = {knob.path: knob for knob in (*self.scientific, *self.nuisance)}
        for arm in self.every_arm:
            for knob in arm.own_knobs:
                declared.setdefault(knob.path, knob)
        return tuple(declared.values())

    @property
    def every_arm(self) -> tuple[Arm, ...]:
        """The arms, preceded by a baseline that is not among them."""
        own = (self.baseline,) if isinstance(self.baseline, Arm) else ()
        return (*own, *(self.arms or (Arm(""),)))

    @property
    def baseline_name(self) -> str | None:
        """Name of the baseline; None without one."""
        return self.baseline.name if isinstance(self.baseline, Arm) else self.baseline

    def contrasts_among(self, names: Set[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return the declared gains (arm, reference) among these arms, and the pairs of arms whose gains are compared."""
        gains = [(arm.name, name) for arm in self.every_arm for name in arm.against if {arm.name, name} <= names]
        arms_with_gain = {arm for arm, _ in gains}
        return gains, [pair for pair in self.gain_differences if set(pair) <= arms_with_gain]

    def arm(self, name: str) -> Arm:
        """Return an arm by name. Raise KeyError if there is none."""
        return {arm.name: arm for arm in self.every_arm}[name]

    def knobs_of(self, arm: Arm) -> tuple[Knob, ...]:
        """Return the knobs of an arm, scientific first."""
        own = {knob.path: knob for knob in arm.own_knobs}
        shared = [knob for knob in (*self.scientific, *self.nuisance) if arm.knobs is None or knob.path in arm.knobs]
        knobs = [own.pop(knob.path, knob) for knob in shared] + list(own.values())
        return tuple(sorted(knobs, key=lambda knob: self.is_nuisance(knob.path)))

    def scientific_of(self, arm: Arm) -> tuple[Knob, ...]:
        """Return an arm's scientific knobs; all of its knobs if it has none and the space has no arms."""
        knobs = self.knobs_of(arm)
        scientific = tuple(knob for knob in knobs if not self.is_nuisance(knob.path))
        return scientific if scientific or self.arms else knobs

    def is_nuisance(self, path: str) -> bool:
        """Return whether a knob is a nuisance knob."""
        return any(knob.path == path for knob in self.nuisance)

    def ties_of(self, arm: Arm) -> tuple[Tie, ...]:
        """Return the ties of an arm: its own, and those of the space that follow one of its knobs."""
        paths = {knob.path for knob in self.knobs_of(arm)}
        return (*(tie for tie in self.ties if tie.knob in paths), *arm.ties)

    def location(self, key: str = "", *, arm: str = "", knob: str = "") -> str:
        """Return the location that a problem names: `sec_rho.loss.margin`, or a key of the sweep file."""
        if not self.origin:
            return ".".join(filter(None, (self.name, arm, knob, key)))
        is_scientific = knob in {knob.path for knob in self.scientific}
        parents = ("arms", arm) if arm else ("parameters",) if is_scientific else ()
        keys = ".".join(filter(None, (*parents, knob, key)))
        return f"{self.origin}, {keys}" if keys else self.origin

    def map_arms(self, change: Callable[[Arm], Arm]) -> Space:
        """Return the space with each arm changed, the baseline among them."""
        baseline = change(self.baseline) if isinstance(self.baseline, Arm) else self.baseline
        return replace(self, arms=tuple(map(change, self.arms)), baseline=baseline)

    def map_knobs(self, change: Callable[[Knob], Knob]) -> Space:
        """Return the space with each knob changed, also those of single arms."""
        space = self.map_arms(lambda arm: replace(arm, own_knobs=tuple(map(change, arm.own_knobs))))
        scientific, nuisance = tuple(map(change, self.scientific)), tuple(map(change, self.nuisance))
        return replace(space, scientific=scientific, nuisance=nuisance)

    def problems(self) -> list[Problem]:
        """Return the problems of the declaration."""
        return list(dict.fromkeys(_problems_of_space(self)))


def _problems_of_space(space: Space) -> Iterator[Problem]:
    paths = [knob.path for knob in (*space.scientific, *space.nuisance)]
    for path in _repeated(paths):
        yield Problem(space.location(knob=path), _REPEATED_KNOB, None, "Remove one of them.")
    for path in sorted(set(paths) & set(space.fixed)):
        yield Problem(space.location(knob=path), _FIXED_KNOB, None, "Remove it from `fixed`.")
    if not space.knobs and not space.arms:
        yield Problem(space.location(), "a space needs at least one knob", None, "Add one to `parameters`.")
    if not 0 < space.margin < math.inf:
        rule = "the margin, the smallest difference that matters, must be greater than 0"
        yield Problem(space.location("margin"), rule, space.margin, "Example: 1.0 for one percentage point.")
    for knob in (*space.scientific, *space.nuisance):
        yield from _domain_problems(space.location(knob=knob.path), knob.domain)
    every_path = [knob.path for knob in space.knobs]
    for tie in space.ties:
        location = space.location(knob=tie.path)
        if tie.knob not in every_path:
            remedy = f"Its knobs are {', '.join(every_path)}."
            yield Problem(location, "a tie must follow a knob of the space", tie.knob, remedy)
        if tie.path in {*every_path, *space.fixed}:
            yield Problem(location, _FIXED_TIE, None, "Remove the tie, or the other declaration.")
    names = [arm.name for arm in space.every_arm]
    for name in _repeated(names):
        rule = "the arms of a space must have different names"
        yield Problem(space.location("arms"), rule, name, "Rename one of them.")
    if space.baseline_name is not None and space.baseline_name not in names:
        rule = "the baseline must be one of the arms"
        yield Problem(space.location("baseline"), rule, space.baseline_name, known=names, kind="arm")
    for arm in space.every_arm:
        yield from _problems_of_arm(space, arm)
        yield from _tie_problems(space, arm)
    yield from _contrast_problems(space, names)


def _contrast_problems(space: Space, names: Sequence[str]) -> Iterator[Problem]:
    for arm in space.every_arm:
        location = space.location("against", arm=arm.name)
        allowed = [name for name in names if name != arm.name]
        for name in arm.against:
            if name not in allowed:
                rule = "`against` must name other arms of the space"
                yield Problem(location, rule, name, known=allowed, kind="arm")
        for name in _repeated(arm.against):
            yield Problem(location, "`against` must name each arm once", name, "Remove the repeat.")
    location = space.location("gain_differences")
    allowed = [arm.name for arm in space.every_arm if len(arm.against) == 1]
    for pair in space.gain_differences:
        for name in pair:
            if name not in allowed:
                rule = "`gain_differences` must name arms with exactly one `against`"
                remedy = "" if allowed else "Declare `against` in two arms."
                yield Problem(location, rule, name, remedy, known=allowed or None, kind="arm")
        if pair[0] == pair[1]:
            yield Problem(location, "a gain cannot be compared with itself", pair[0], "Name another arm.")


def _problems_of_arm(space: Space, arm: Arm) -> Iterator[Problem]:
    declared = [knob.path for knob in (*space.scientific, *space.nuisance)]
    knobs = {knob.path: knob for knob in space.knobs_of(arm)}
    for path in arm.knobs or ():
        if path not in declared:
            rule, location = "`knobs` of an arm must be knobs of its space", space.location(arm=arm.name, knob=path)
            yield Problem(location, rule, path, known=declared, kind="knob", dotted=True)
    for symbol in _repeated([knob.symbol for knob in knobs.values() if knob.symbol]):
        paths = ", ".join(path for path, knob in knobs.items() if knob.symbol == symbol)
        rule = f"two knobs of one arm have the symbol {symbol!r}; the report could not tell them apart"
        yield Problem(space.location("symbol"), rule, paths, "Give one of them another symbol.")
    for path in _repeated([knob.path for knob in arm.own_knobs]):
        yield Problem(space.location(arm=arm.name, knob=path), _REPEATED_KNOB, None, "Remove one of them.")
    for path in sorted(knobs.keys() & arm.settings.keys()):
        remedy = "Remove the setting, or remove the knob from the arm's `knobs`."
        rule = "an arm cannot both search and set a knob"
        yield Problem(space.location(arm=arm.name, knob=path), rule, arm.settings[path], remedy)
    for knob in arm.own_knobs:
        location = space.location(arm=arm.name, knob=knob.path)
        yield from _domain_problems(location, knob.domain)
        if knob.path in space.fixed:
            yield Problem(location, _FIXED_KNOB, None, "Remove it from `fixed`.")


def _tie_problems(space: Space, arm: Arm) -> Iterator[Problem]:
    paths, ties = {knob.path for knob in space.knobs_of(arm)}, space.ties_of(arm)
    for tie in arm.ties:
        if tie.knob not in paths:
            remedy = f"Its knobs are {', '.join(sorted(paths))}." if paths else "It has no knobs: remove the tie."
            location = space.location(arm=arm.name, knob=tie.path)
            yield Problem(location, "a tie must follow a knob of the arm", tie.knob, remedy)
    taken = {*paths, *arm.settings, *(space.fixed if arm.ties else ())}
    for tie in ties:
        if (tie in arm.ties or tie.path in arm.settings) and tie.path in taken:
            location = space.location(arm=arm.name, knob=tie.path)
            yield Problem(location, _FIXED_TIE, None, "Remove the tie, or the other declaration.")
    for path in _repeated([tie.path for tie in ties]):
        location = space.location(arm=arm.name, knob=path)
        yield Problem(location, "a setting can follow only one knob", None, "Remove one of the ties.")


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _domain_problems(location: str, domain: Domain) -> Iterator[Problem]:
    if isinstance(domain, Grid):
        if not domain.values:
            yield Problem(location, "a grid needs at least one value", None, "List its values.")
        elif len(set(map(level_key, domain.values))) < len(domain.values):
            yield Problem(location, "the values of a grid must differ", list(domain.values), "Remove the repeats.")
        return
    if not domain.low < domain.high:
        yield Problem(location, "`min < max` must hold", (domain.low, domain.high), "Swap or widen them.")
    if domain.scale == "log" and domain.low <= 0:
        yield Problem(location, "a log-uniform range must be positive", domain.low, "Raise min above 0.")
