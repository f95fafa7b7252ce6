"""Run commands that train nothing without importing torch, which takes a second.

A plan reads only the names, knobs and rules of methods, so placeholders stand in for torch while their modules are imported.
A function that calls torch nevertheless raises `_TorchNeeded`, and the command starts again with torch.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_VERBS = ("plan", "submit", "show", "methods", "spaces")
_WITH_TORCH = "TUNE_DML_WITH_TORCH"  # environment variable of a command that starts again with torch


class _TorchNeeded(BaseException):
    """A function called torch. Not an Exception, so that no package mistakes it for a missing torch."""


class _Base:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _TorchNeeded(type(self).__name__)


class _Placeholder:
    """Stands for a class, function or constant of torch while modules are imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Placeholder()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED:  # in a function
            raise _TorchNeeded
        return args[0] if args and callable(args[0]) else self  # a decorator, or its arguments

    def __getitem__(self, _: object) -> _Placeholder:
        return self

    def __or__(self, _: object) -> _Placeholder:  # of types: `Tensor | None`
        return self

    __ror__ = __or__

    def __instancecheck__(self, _: object) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (_Base,)


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(_Placeholder(), name)


class _Finder(MetaPathFinder, Loader):
    """Finds placeholders for torch and its modules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes appear when they are read."""


@contextmanager
def without_torch(words: Sequence[str]) -> Iterator[None]:
    """Serve placeholders instead of torch while a command runs that should not need it.

    Methods of other packages may compute with torch when they are imported, so torch is imported if there are any.

    Args:
        words: the command, its verb first.
    """
    if not (words and words[0] in _VERBS) or "--probe" in words or _WITH_TORCH in os.environ:
        yield
        return
    from trainables.methods import packages_add_methods  # loads pydantic, which the other verbs do not need

    if packages_add_methods():
        yield
        return
    sys.meta_path.insert(0, _Finder())
    try:
        yield
    except _TorchNeeded:
        environment = {**os.environ, _WITH_TORCH: "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - without a shell
