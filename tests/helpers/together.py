"""Run many small cases as one test that names every failing case."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np


def failing(cases: Mapping[str, Callable[[], object]]) -> list[str]:
    """Return the names of the cases that raise an error, and print the errors for pytest to show.

    A test of its own for each would take longer than most of the cases.
    """
    names = []
    for name, case in cases.items():
        try:
            case()
        except Exception as error:  # an assertion or any other error
            error.add_note(f"in the case: {name}")
            traceback.print_exception(error)
            names.append(name)
    return names


def for_each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Parametrize a function as one test, for fast cases that only read their fixtures."""
    keys = names.split(", ")
    cases = [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in values]

    def decorated(check: Callable[..., object]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            calls = {str(tuple(case.values())): partial(check, **case, **fixtures) for case in cases}
            assert len(calls) == len(cases) > 0
            assert failing(calls) == []

        shown = inspect.signature(check).parameters.values()
        test.__signature__ = inspect.Signature([given for given in shown if given.name not in keys])  # type: ignore[attr-defined]
        test.__doc__ = check.__doc__
        return test

    return decorated


def drawn(times: int) -> Callable[[Callable[[np.random.Generator], object]], Callable[[], None]]:
    """Run a test with this many random generators and name the seeds that fail."""

    def decorated(check: Callable[[np.random.Generator], object]) -> Callable[[], None]:
        def test() -> None:
            draws = {f"seed {seed}": partial(check, np.random.default_rng(seed)) for seed in range(times)}
            assert failing(draws) == []

        return test

    return decorated
