"""Select the cases of costly tests that always run; the others run with `make test-slow`."""

import pytest


def slow_after(count, cases):
    """Mark the cases after the first `count` as slow."""
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=pytest.mark.slow if number >= count else ()) for number, case in enumerate(cases)]
