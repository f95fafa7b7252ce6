"""Classes to declare a search space, which holds no code and reads no file; `planning.plan` turns it into cells."""

# ruff: noqa: PLC0414 - spaces import the classes of `papers` from here
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from trainables.errors import Problem, nearest
from tune_dml.papers.fidelity import Decision as Decision
from tune_dml.papers.fidelity import FidelitySheet as FidelitySheet
from tune_dml.papers.fidelity import Setting as Setting
from tune_dml.papers.paper import METHOD as METHOD
from tune_dml.papers.paper import Citation as Citation
from tune_dml.papers.paper import Paper as Paper
from tune_dml.papers.paper import PaperTable as PaperTable
from tune_dml.papers.paper import Part as Part
from tune_dml.papers.paper import PrintedMethod as PrintedMethod
from tune_dml.papers.paper import Published as Published
from tune_dml.papers.paper import Recipe as Recipe
from tune_dml.papers.paper import Selection as Selection
from tune_dml.papers.paper import Settings
from tune_dml.papers.paper import Stated as Stated
from tune_dml.papers.paper import Value as Value
from tune_dml.programs.command import Program

Number = float | int  # keeps the type of a number when a plan is read back
Origin = Literal["paper", "ours", "user"]
Scale = Literal["linear", "log", "category"]
SearchMethod = Literal["grid", "tpe", "gp", "cmaes", "nsga2", "random", "qmc"]
"""How cells are chosen: all of a grid, by an adaptive search (tpe to nsga2), or without feedback (random, qmc)."""


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
        """The axis title: symbol and path."""
        unit = f" [{self.unit}]" if self.unit else ""
        return (f"{self.symbol} ({self.path})" if self.symbol not in {"", self.path} else self.path) + unit


@dataclass(frozen=True)
class Tie:
    """A setting that is `factor` times a knob, such as K = 2B; `divided`: `factor` over it, rounded (steps = N / B)."""

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
    """Source of each setting."""
    default: bool = False
    """Whether spaces without a protocol use it for its data set."""
    methods: tuple[str, ...] = ()
    """The losses that it is printed for; empty for any loss."""
    still_gains: Mapping[str, float] = field(default_factory=dict)  # loss -> gain in points of R@1 from twice the steps

    @classmethod
    def cited(
        cls,
        name: str,
        dataset: str,
        *stated: Stated,
        note: str = "",
        default: bool = False,
        methods: tuple[str, ...] | None = None,
    ) -> Protocol:
        """Merge statements of a paper into a protocol; later ones win.

        `methods` defaults to the loss that it sets. A protocol without methods is used only when chosen by name.
        """
        settings = {path: value for part in stated for path, value in part.settings.items()}
        sources = {path: part.source for part in stated for path in part.settings}
        own = (str(settings["loss.name"]),) if "loss.name" in settings else ()
        return cls(name, dataset, settings, "paper", note, sources, default, own if methods is None else methods)

    @property
    def family(self) -> str:
        """The source shared with other protocols: `sec` of `sec/cub200-ms`."""
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Arm:
    """A named method of a study, with the settings that distinguish it."""

    name: str
    settings: Settings = field(default_factory=dict)
    knobs: tuple[str, ...] | None = None
    """Paths of the space's knobs that it has; None for all."""
    own_knobs: tuple[Knob, ...] = ()
    """Knobs of this arm only, or with other values than in the space."""
    ties: tuple[Tie, ...] = ()
    protocols: tuple[Protocol, ...] = ()
    """Protocols that replace those of the space, one per data set."""
    against: tuple[str, ...] = ()
    """Arms that it is compared with; each gain is a declared contrast."""
    stated: tuple[Stated, ...] = ()
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
    citation: Citation | None
    scientific: tuple[Knob, ...]
    fixed: Settings
    protocols: tuple[Protocol, ...] = ()
    nuisance: tuple[Knob, ...] = ()
    ties: tuple[Tie, ...] = ()
    baseline: Arm | str | None = None
    """The arm that the others are compared with, or its name among `arms`."""
    published: tuple[Published, ...] = ()
    default_dataset: str = "glyphs"
    metric: str = "val/recall_at_1"
    goal: Literal["maximize", "minimize"] = "maximize"
    margin: Number = 1.0
    """Equivalence margin: smallest difference that matters, in units of the metric."""
    identities: tuple[str, ...] = ()
    """Identities between cells, by their numbers in docs/specification.md."""
    notes: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()
    """The compared methods, crossed with the knobs; without any, the space is one unnamed arm."""
    gain_differences: tuple[tuple[str, str], ...] = ()
    """Pairs of arms with one `against` each, whose gains are compared."""
    stated: tuple[Stated, ...] = ()
    """Settings for every data set; a protocol overrides them."""
    positive_pairs: int | None = None
    """Positive pairs of the batches for which `loss.k` is printed; K scales with the pairs of other batches."""
    differs: str = ""
    """Why its arms may differ in protocol, pair term or reduction; if empty they must not."""
    program: Program | None = None
    """The user's own script, which trains each trial; None for trials of this program."""
    origin: str = field(default="", compare=False)
    """The sweep file that declares it; empty otherwise."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """All searched knobs, scientific first, each path once."""
        declared = {knob.path: knob for knob in self.scientific + self.nuisance}
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
        gains = [(arm.name, other) for arm in self.every_arm for other in arm.against if {arm.name, other} <= names]
        gaining = {arm for arm, _ in gains}
        return gains, [pair for pair in self.gain_differences if set(pair) <= gaining]

    def arm(self, name: str) -> Arm:
        """Return the arm of a name. Raise KeyError if there is none."""
        return {arm.name: arm for arm in self.every_arm}[name]

    def knobs_of(self, arm: Arm) -> tuple[Knob, ...]:
        """Return the knobs of an arm, scientific first."""
        own = {knob.path: knob for knob in arm.own_knobs}
        shared = [knob for knob in self.scientific + self.nuisance if arm.knobs is None or knob.path in arm.knobs]
        knobs = [own.pop(knob.path, knob) for knob in shared] + list(own.values())
        return tuple(sorted(knobs, key=lambda knob: self.is_nuisance(knob.path)))

    def scientific_of(self, arm: Arm) -> tuple[Knob, ...]:
        """Return an arm's scientific knobs; all of its knobs if it has none and the space has no arms."""
        knobs = self.knobs_of(arm)
        about = tuple(knob for knob in knobs if not self.is_nuisance(knob.path))
        return about if about or self.arms else knobs

    def is_nuisance(self, path: str) -> bool:
        """Return whether a knob is a nuisance knob."""
        return any(knob.path == path for knob in self.nuisance)

    def ties_of(self, arm: Arm) -> tuple[Tie, ...]:
        """Return the ties of an arm: its own, and those of the space whose knob it has."""
        paths = {knob.path for knob in self.knobs_of(arm)}
        return (*(tie for tie in self.ties if tie.knob in paths), *arm.ties)

    def place(self, key: str = "", *, arm: str = "", knob: str = "") -> str:
        """Return where a problem of this space is found: `sec_rho.loss.margin`, or a key of the sweep file."""
        if not self.origin:
            return ".".join(filter(None, (self.name, arm, knob, key)))
        searched = knob in {knob.path for knob in self.scientific}
        above = ("arms", arm) if arm else ("parameters",) if searched else ()
        keys = ".".join(filter(None, (*above, knob, key)))
        return f"{self.origin}, {keys}" if keys else self.origin

    def problems(self) -> list[Problem]:
        """Return the problems of the declaration."""
        problems = []
        paths = [knob.path for knob in self.scientific + self.nuisance]
        for path in _repeated(paths):
            problems.append(Problem(self.place(knob=path), "a knob may be declared once", None, "Remove one of them."))
        for path in sorted(set(paths) & set(self.fixed)):
            rule = "a knob cannot be searched and fixed at once"
            problems.append(Problem(self.place(knob=path), rule, None, "Remove it from `fixed`."))
        if not self.knobs and not self.arms:
            problems.append(Problem(self.place(), "a space needs at least one knob", None, "Add one to `parameters`."))
        if not 0 < self.margin < math.inf:
            rule = "the margin must be greater than 0: below it, differences do not matter"
            problems.append(Problem(self.place("margin"), rule, self.margin, "Example: 1.0 for one percentage point."))
        for knob in self.scientific + self.nuisance:
            problems += _domain_problems(self.place(knob=knob.path), knob.domain)
        every_path = [knob.path for knob in self.knobs]
        for tie in self.ties:
            location = self.place(knob=tie.path)
            if tie.knob not in every_path:
                rule = "a setting can follow a knob of the space"
                problems.append(Problem(location, rule, tie.knob, f"Its knobs are {', '.join(every_path)}."))
            if tie.path in {*every_path, *self.fixed}:
                rule = "a setting that follows a knob cannot be searched or fixed as well"
                problems.append(Problem(location, rule, None, "Remove it there."))
        return problems + self._arm_problems()

    def _arm_problems(self) -> list[Problem]:
        names = [arm.name for arm in self.every_arm]
        problems = [
            Problem(self.place("arms"), "two arms of a space have one name", name, "Rename one of them.")
            for name in _repeated(names)
        ]
        if self.baseline_name is not None and self.baseline_name not in names:
            rule, remedy = "the baseline must be one of the arms", nearest(self.baseline_name, names, what="arm")
            problems.append(Problem(self.place("baseline"), rule, self.baseline_name, remedy))
        for arm in self.every_arm:
            problems += _problems_of_arm(self, arm)
        return list(dict.fromkeys(problems + _contrast_problems(self)))


def _contrast_problems(space: Space) -> list[Problem]:
    names = [arm.name for arm in space.every_arm]
    problems = []
    for arm in space.every_arm:
        location = space.place("against", arm=arm.name)
        others = [name for name in names if name != arm.name]
        rule = "an arm gains over another arm of its space"
        problems += [
            Problem(location, rule, other, nearest(other, others, what="arm"))
            for other in arm.against
            if other not in others
        ]
        for other in _repeated(arm.against):
            problems.append(Problem(location, "an arm is compared with another one once", other, "Remove the repeat."))
    location = space.place("gain_differences")
    gaining = [arm.name for arm in space.every_arm if len(arm.against) == 1]
    for pair in space.gain_differences:
        for name in pair:
            if name not in gaining:
                rule = "a gain is that of an arm with one `against`"
                remedy = nearest(name, gaining, what="arm") if gaining else "Declare `against` in two arms."
                problems.append(Problem(location, rule, name, remedy))
        if pair[0] == pair[1]:
            problems.append(Problem(location, "two gains that are compared differ", pair[0], "Name another arm."))
    return problems


def _problems_of_arm(space: Space, arm: Arm) -> list[Problem]:
    declared = [knob.path for knob in space.scientific + space.nuisance]
    knobs = {knob.path: knob for knob in space.knobs_of(arm)}
    problems = [
        Problem(
            space.place(arm=arm.name, knob=path),
            "an arm can have a knob of its space",
            path,
            nearest(path, declared, what="knob", dotted=True),
        )
        for path in arm.knobs or ()
        if path not in declared
    ]
    symbols = [knob.symbol for knob in knobs.values() if knob.symbol]
    for symbol in _repeated(symbols):
        paths = ", ".join(path for path, knob in knobs.items() if knob.symbol == symbol)
        rule = f"two knobs of one arm have the symbol {symbol!r}, which names them in every sentence"
        problems.append(Problem(space.place("symbol"), rule, paths, "Give one of them another symbol."))
    for path in _repeated([knob.path for knob in arm.own_knobs]):
        problems.append(
            Problem(space.place(arm=arm.name, knob=path), "a knob may be declared once", None, "Remove one of them.")
        )
    for path in sorted(knobs.keys() & arm.settings.keys()):
        rule = "a knob of an arm cannot be set in it as well"
        remedy = "Remove the setting, or leave the knob out of the arm's `knobs`."
        problems.append(Problem(space.place(arm=arm.name, knob=path), rule, arm.settings[path], remedy))
    for knob in arm.own_knobs:
        problems += _domain_problems(space.place(arm=arm.name, knob=knob.path), knob.domain)
        if knob.path in space.fixed:
            rule = "a knob cannot be searched and fixed at once"
            problems.append(Problem(space.place(arm=arm.name, knob=knob.path), rule, None, "Remove it there."))
    return problems + _tie_problems(space, arm, knobs.keys())


def _tie_problems(space: Space, arm: Arm, paths: Set[str]) -> list[Problem]:
    problems = []
    ties = space.ties_of(arm)
    for tie in arm.ties:
        if tie.knob not in paths:
            rule = "a setting can follow a knob that the arm has"
            remedy = f"Its knobs are {', '.join(sorted(paths))}." if paths else "It has no knobs: remove the tie."
            problems.append(Problem(space.place(arm=arm.name, knob=tie.path), rule, tie.knob, remedy))
    set_here = {*paths, *arm.settings, *(space.fixed if arm.ties else ())}
    for tie in ties:
        if (tie in arm.ties or tie.path in arm.settings) and tie.path in set_here:
            rule = "a setting that follows a knob cannot be searched or fixed as well"
            problems.append(Problem(space.place(arm=arm.name, knob=tie.path), rule, None, "Remove it there."))
    for path in _repeated([tie.path for tie in ties]):
        rule = "a setting can follow one knob"
        problems.append(Problem(space.place(arm=arm.name, knob=path), rule, None, "Remove one of the ties."))
    return problems


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _domain_problems(location: str, domain: Domain) -> list[Problem]:
    if isinstance(domain, Grid):
        if not domain.values:
            return [Problem(location, "a grid needs at least one value", None, "List its values.")]
        if len(set(map(repr, domain.values))) < len(domain.values):
            return [Problem(location, "the values of a grid must differ", list(domain.values), "Remove the repeats.")]
        return []
    problems = []
    if not domain.low < domain.high:
        problems.append(Problem(location, "`min < max` must hold", (domain.low, domain.high), "Swap or widen them."))
    if domain.scale == "log" and domain.low <= 0:
        problems.append(Problem(location, "a log-uniform range must be positive", domain.low, "Raise min above 0."))
    return problems
