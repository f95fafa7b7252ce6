"""Find the search spaces, protocols, recipes and papers that installed packages declare.

A package of declarations names itself in the entry-point group `tune_dml.space_packages`; `search_spaces` is ours. The
groups `tune_dml.spaces` and `tune_dml.protocols` add single objects.
"""

import importlib
import pkgutil
import shlex
from functools import cache
from pathlib import Path
from typing import TypeVar

from trainables.errors import ConfigError, Problem, nearest
from trainables.methods import load_entries
from trainables.option_names import option_problem
from tune_dml.space import Paper, Protocol, Recipe, Space

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
    return {loss: item for item in _declarations() if isinstance(item, Recipe) for loss in item.methods}


@cache
def papers() -> dict[str, Paper]:
    """Return all papers by key."""
    return {paper.key: paper for paper in _declarations() if isinstance(paper, Paper)}


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
        remedy = nearest(name, list(protocols()), what="protocol")
        raise ConfigError(Problem(location, "unknown protocol", name, remedy))
    return protocols()[name]


def find_space(name: str) -> Space:
    """Return a space by name. Raise ConfigError, with the nearest name, if there is none."""
    if name not in spaces():
        remedy = nearest(name, list(spaces()), what="space") + " A sweep file ends in .yaml or .yml."
        if Path(name).is_dir() or name.lower().endswith((".csv", ".tsv", ".parquet")):
            remedy = f"To sweep your own pictures, write a sweep file first: `tune-dml init {shlex.quote(name)}`."
        raise ConfigError(option_problem("space", "unknown search space", name, remedy))
    return spaces()[name]


def _named(kind: type[_T], group: str) -> dict[str, _T]:
    """Return the declarations of a kind by name, and those that other packages add by a group of entry points.

    Raises ConfigError for another object, and for two declarations of one name: one would replace the other.
    """
    items = [("a space package", item) for item in _declarations() if isinstance(item, kind)]
    named: dict[str, _T] = {}
    for place, item in items + load_entries(group):
        if not isinstance(item, kind):
            rule = f"must name a {kind.__name__} of tune_dml.space"
            raise ConfigError(Problem(place, rule, str(item), "Fix the package that names it."))
        if named.setdefault(item.name, item) != item:
            rule = f"a {kind.__name__.lower()}'s name must be unique"
            raise ConfigError(Problem(place, rule, item.name, "Rename one of them."))
    return named


def _declarations() -> list[object]:
    """Import the modules of every package of search spaces, and return what they declare."""
    packages = [package for _, package in load_entries("tune_dml.space_packages")]
    if not packages:
        rule = "a package of search spaces must be installed"
        raise ConfigError(Problem("tune_dml.space_packages", rule, None, "Install the project: pip install -e ."))
    names = [
        info.name
        for package in packages
        for info in pkgutil.walk_packages(getattr(package, "__path__", ()), prefix=f"{package.__name__}.")
    ] + [package.__name__ for package in packages]
    # Folders first: protocols then come in the order of their own files, not of the spaces that import them.
    modules = [importlib.import_module(name) for name in sorted(names, key=lambda name: (-name.count("."), name))]
    return [
        item
        for module in modules
        for value in vars(module).values()
        for item in (value if isinstance(value, tuple) else (value,))
        if isinstance(item, Space | Protocol | Recipe | Paper)
    ]
