"""Many small cases as one test: all are tried, and each that fails is named."""

import traceback
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np


def failing(cases: Mapping[str, Callable[[], object]]) -> list[str]:
    """The names of the cases that raise an error; their errors are printed, and pytest shows them.

    A test of its own for each would take longer than most of the cases.
    """
    names = []
    for name, case in cases.items():
        try:
            case()
        except Exception as error:  # an assertion, or whatever else went wrong
            error.add_note(f"in the case: {name}")
            traceback.print_exception(error)
            names.append(name)
    return names


def drawn(times: int) -> Callable[[Callable[[np.random.Generator], object]], Callable[[], None]]:
    """A test with this many random inputs: it draws them from its argument, and the seeds that fail are named."""

    def decorated(check: Callable[[np.random.Generator], object]) -> Callable[[], None]:
        def test() -> None:
            draws = {f"seed {seed}": partial(check, np.random.default_rng(seed)) for seed in range(times)}
            assert failing(draws) == []

        return test

    return decorated
