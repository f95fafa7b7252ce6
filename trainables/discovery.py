"""Methods are found by being there: a class in the right folder, or an entry point of another package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib.metadata import entry_points
from typing import TypeVar

from trainables.errors import ConfigError, Problem

T = TypeVar("T")


def discover(package: str, base: type[T], group: str) -> dict[str, type[T]]:
    """Name -> class for every concrete subclass of `base` in a package's modules and in an entry-point group.

    A class takes part by having a class attribute `name` of its own. Two classes of one name are an error.
    """
    found: dict[str, type[T]] = {}
    path = importlib.import_module(package).__path__
    for info in sorted(pkgutil.iter_modules(path), key=lambda module: module.name):
        module = importlib.import_module(f"{package}.{info.name}")
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                _add(found, cls, base)
    for entry in entry_points(group=group):
        _add(found, entry.load(), base)
    return dict(sorted(found.items()))


def _add(found: dict[str, type[T]], cls: type, base: type[T]) -> None:
    name = cls.__dict__.get("name")
    if not (isinstance(name, str) and issubclass(cls, base) and not inspect.isabstract(cls)):
        return
    if found.get(name, cls) is not cls:
        other = found[name]
        raise ConfigError(
            Problem(
                f"{cls.__module__}.{cls.__qualname__}",
                f"a method's name must be unique, {other.__module__}.{other.__qualname__} has it already",
                name,
                "Rename one of them.",
            )
        )
    found[name] = cls
