"""Find the search spaces, protocols, recipes and papers that installed packages declare.

A package of declarations names itself in the entry-point group `tune_dml.space_packages`; `search_spaces` is ours. The
groups `tune_dml.spaces` and `tune_dml.protocols` add single objects.
"""

import importlib
import json
import pkgutil
import shlex
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.methods import load_entries, rule_of
from trainables.option_names import option_place, option_problem
from tune_dml.space import Knob, Paper, Protocol, Recipe, Space

RETRIEVAL = "retrieval"  # the default task
_T = TypeVar("_T", Space, Protocol)


@cache
def spaces() -> dict[str, Space]:
    """Return all spaces by name, in alphabetical order."""
    return dict(sorted(_named(Space, "tune_dml.spaces").items()))


@cache
def protocols() -> dict[str, Protocol]:
    """Return all protocols by name."""
    return _named(Protocol, "tune_dml.protocols")


@cache
def recipes() -> dict[str, Recipe]:
    """Return the recipes by loss; some losses have none."""
    return {loss: item for _, item in _declarations() if isinstance(item, Recipe) for loss in item.methods}


@cache
def papers() -> dict[str, Paper]:
    """Return all papers by key."""
    return {paper.key: paper for _, paper in _declarations() if isinstance(paper, Paper)}


def protocols_for(dataset: str, task: str) -> list[Protocol]:
    """Return the protocols of a data set for a task."""
    return [p for p in protocols().values() if (p.dataset, p.settings.get("task.name", RETRIEVAL)) == (dataset, task)]


def default_protocol(dataset: str, task: str = RETRIEVAL) -> Protocol | None:
    """Return the protocol of a data set for a task if the space names none; None if the data set has none."""
    candidates = protocols_for(dataset, task)
    return next((protocol for protocol in candidates if protocol.default), candidates[0] if candidates else None)


def protocol_of_loss(dataset: str, task: str, loss: str) -> Protocol | None:
    """Return the protocol whose methods include a loss, or else the data set's default.

    If several protocols include the loss, the one with the fewest methods is returned.
    """
    candidates = [protocol for protocol in protocols_for(dataset, task) if loss in protocol.methods]
    return min(candidates, key=lambda protocol: len(protocol.methods), default=default_protocol(dataset, task))


def find_protocol(name: str, location: str) -> Protocol:
    """Return a protocol by name. Raise ConfigError, with the nearest name, if there is none."""
    if name not in protocols():
        raise ConfigError(Problem(location, "unknown protocol", name, known=protocols(), kind="protocol"))
    return protocols()[name]


def find_space(space: object) -> Space:
    """Return a space by name, or a given one. Raise ConfigError for an unknown name, and for any other object."""
    if isinstance(space, str | Path):
        return _space_named(str(space))
    if isinstance(space, Space):
        return space
    rule = "must be the name of a search space, the path of a sweep file, or a tune_dml.space.Space"
    remedy = "Write it to a sweep file (YAML), and pass its path." if isinstance(space, dict) else ""
    raise ConfigError(option_problem("space", rule, type(space).__name__, remedy))


def _space_named(name: str) -> Space:
    if name in spaces():
        return spaces()[name]
    rule, remedy, known = "unknown search space", "A sweep file ends in .yaml or .yml.", list(spaces())
    if Path(name).is_dir() or name.lower().endswith((".csv", ".tsv", ".parquet")):
        remedy = f"To sweep your own pictures, write a sweep file first: `tune-dml init {shlex.quote(name)}`."
        raise ConfigError(option_problem("space", rule, name, remedy))
    if name.lower().endswith(".py"):
        remedy = "Run a Space of your own from Python, tune_dml.run_sweep(SPACE), or name it in an entry point."
        raise ConfigError(option_problem("space", rule, name, remedy))
    raise ConfigError(Problem(option_place("space"), rule, name, remedy, known=known, kind="space"))


def tried_values(space: Space, text: Callable[[Knob], str]) -> dict[str, str]:
    """Return the values of each searched setting as text; values that arms do not share are joined by `or`."""
    found: dict[str, dict[str, None]] = {knob.path: {} for knob in space.knobs}
    for knob in (knob for arm in space.every_arm for knob in space.knobs_of(arm)):
        found[knob.path][text(knob)] = None
    return {path: " or ".join(values) for path, values in found.items()}


def space_type_problems(space: Space) -> list[Problem]:
    """Return a problem for each field of a space, a knob or an arm with a value of a wrong type.

    Values of a grid are left out, because their settings decide the type.
    """
    from pydantic import TypeAdapter, ValidationError  # loads slowly

    try:
        TypeAdapter(Space).validate_json(json.dumps(asdict(space), default=repr), strict=True)
    except ValidationError as error:
        found = [_type_problem(space, item["loc"], item) for item in error.errors() if "values" not in item["loc"][:-1]]
        return list({problem.place: problem for problem in reversed(found) if problem}.values())[::-1]
    return []


def _type_problem(space: Space, location: tuple[str | int, ...], error: Any) -> Problem | None:
    """Return the problem of one error of pydantic; None if it is about another class than that of the value."""
    value: Any = space
    path: list[str] = []
    for step in location:
        if isinstance(step, str) and not hasattr(value, step):  # a class or a type among those that are allowed
            if hasattr(value, "__dataclass_fields__") and step != type(value).__name__:
                return None
            continue
        value = value[step] if isinstance(step, int) else getattr(value, step)
        path.append(str(step))
    rule = f"must be a {error['ctx']['class_name']}" if error["type"] == "dataclass_type" else rule_of(error)
    plain = isinstance(value, int | float | str | None)
    return Problem(space.location(".".join(path)), rule, value if plain else repr(value))


def _named(kind: type[_T], group: str) -> dict[str, _T]:
    """Return the declarations of a kind by name, and those that other packages add by a group of entry points.

    Raises ConfigError for another object, and for two declarations of one name: one would replace the other.
    """
    items = [(module, item) for module, item in _declarations() if isinstance(item, kind)]
    named: dict[str, _T] = {}
    places: dict[str, str] = {}
    for place, item in items + load_entries(group):
        if not isinstance(item, kind):
            rule = f"must name a {kind.__name__} of tune_dml.space"
            raise ConfigError(Problem(place, rule, str(item), "Fix the package that names it."))
        if named.setdefault(item.name, item) != item:
            rule = f"a {kind.__name__.lower()}'s name must be unique, {places[item.name]} has it already"
            raise ConfigError(Problem(place, rule, item.name, "Rename one of them."))
        places.setdefault(item.name, place)
    return named


def _declarations() -> list[tuple[str, object]]:
    """Import the modules of every package of search spaces, and return (module, object) for what they declare.

    Raises ConfigError for modules that cannot be imported.
    """
    packages = [package for _, package in load_entries("tune_dml.space_packages")]
    if not packages:
        rule = "a package of search spaces must be installed"
        raise ConfigError(Problem("tune_dml.space_packages", rule, None, "Install the project: pip install -e ."))
    names = [
        info.name
        for package in packages
        for info in pkgutil.walk_packages(getattr(package, "__path__", ()), prefix=f"{package.__name__}.")
    ] + [package.__name__ for package in packages]
    modules, problems = [], []
    # Folders first: protocols then come in the order of their own files, not of the spaces that import them.
    for name in sorted(names, key=lambda name: (-name.count("."), name)):
        try:
            modules.append(importlib.import_module(name))
        except (Exception, SystemExit) as error:  # a module of another package may raise anything
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.name == "<module>"]
            got = f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")
            problems.append(
                Problem(f"space module {name}", "must be importable", got, "Fix it, or uninstall its package.")
            )
    raise_if_any(problems)
    return [
        (f"space module {module.__name__}", item)
        for module in modules
        for value in vars(module).values()
        for item in (value if isinstance(value, tuple) else (value,))
        if isinstance(item, Space | Protocol | Recipe | Paper)
    ]
