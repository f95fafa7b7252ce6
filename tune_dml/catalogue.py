"""Find search spaces, protocols, recipes and papers in the modules of every package that declares some.

A package declares them by an entry point of the group `tune_dml.space_packages` (`search_spaces` is ours). The groups
`tune_dml.spaces` and `tune_dml.protocols` add single objects.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from trainables.errors import ConfigError, Problem, nearest
from trainables.methods import load_entries
from trainables.option_names import option_problem
from tune_dml.space import Paper, Protocol, Recipe, Space

RETRIEVAL = "retrieval"  # the default task


@cache
def spaces() -> dict[str, Space]:
    """Return name -> space: every module-level space, and those of the entry-point group `tune_dml.spaces`."""
    ours = [space for space in _declared() if isinstance(space, Space)]
    theirs = [space for _, space in load_entries("tune_dml.spaces")]
    return {space.name: space for space in sorted([*ours, *theirs], key=lambda space: space.name)}


@cache
def protocols() -> dict[str, Protocol]:
    """Return name -> protocol."""
    ours = [item for item in _declared() if isinstance(item, Protocol)]
    theirs = [protocol for _, protocol in load_entries("tune_dml.protocols")]
    return {protocol.name: protocol for protocol in [*ours, *theirs]}


@cache
def recipes() -> dict[str, Recipe]:
    """Return loss -> recipe, for the losses that have one."""
    return {loss: item for item in _declared() if isinstance(item, Recipe) for loss in item.methods}


@cache
def papers() -> dict[str, Paper]:
    """Return key -> paper."""
    return {paper.key: paper for paper in _declared() if isinstance(paper, Paper)}


def protocols_for(dataset: str, task: str) -> list[Protocol]:
    """Return the protocols of a data set for a task."""
    of_dataset = [protocol for protocol in protocols().values() if protocol.dataset == dataset]
    return [protocol for protocol in of_dataset if protocol.settings.get("task.name", RETRIEVAL) == task]


def default_protocol(dataset: str, task: str = RETRIEVAL) -> Protocol | None:
    """Return the protocol of a data set for a task that applies if a space names none."""
    known = protocols_for(dataset, task)
    return next((protocol for protocol in known if protocol.default), known[0] if known else None)


def protocol_of_loss(dataset: str, task: str, loss: str) -> Protocol | None:
    """Return the protocol printed for a loss (of several, that for the fewest losses), or the data set's default."""
    fitting = [protocol for protocol in protocols_for(dataset, task) if loss in protocol.methods]
    return min(fitting, key=lambda one: len(one.methods), default=default_protocol(dataset, task))


def named_protocol(name: str, place: str) -> Protocol:
    """Return the protocol of a name. Raise ConfigError with the nearest name if it is unknown."""
    if name not in protocols():
        raise ConfigError(Problem(place, "unknown protocol", name, nearest(name, list(protocols()), what="protocol")))
    return protocols()[name]


def find_space(name: str) -> Space:
    """Return the space of a name. Raise ConfigError with the nearest name if it is unknown."""
    if name not in spaces():
        remedy = nearest(name, list(spaces()), what="space") + " A sweep file ends in .yaml or .yml."
        if Path(name).is_dir():
            remedy = f"To sweep a folder of pictures, write a sweep file first: `tune-dml init {name}`."
        raise ConfigError(option_problem("space", "unknown search space", name, remedy))
    return spaces()[name]


def _declared() -> list[object]:
    packages = [package for _, package in load_entries("tune_dml.space_packages")]
    if not packages:
        rule = "a package of search spaces must be installed"
        raise ConfigError(Problem("tune_dml.space_packages", rule, None, "Install the project: pip install -e ."))
    names = [
        info.name
        for package in packages
        for info in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
    ]
    # Folders first: protocols then come in the order of their own files, not of the spaces that import them.
    modules = [importlib.import_module(name) for name in sorted(names, key=lambda name: (-name.count("."), name))]
    return [
        item
        for module in modules
        for value in vars(module).values()
        for item in (value if isinstance(value, tuple) else (value,))
        if isinstance(item, Space | Protocol | Recipe | Paper)
    ]
