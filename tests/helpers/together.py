"""Many small cases as one test: all are tried, and each that fails is named."""

from collections.abc import Callable, Mapping


def try_all(cases: Mapping[str, Callable[[], object]]) -> None:
    """Call every case; raise one group with the errors of those that fail, each with its name.

    A test of its own for each would take longer than most of the cases.
    """
    errors = []
    for name, case in cases.items():
        try:
            case()
        except Exception as error:  # an assertion, or whatever else went wrong
            error.add_note(f"in the case: {name}")
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(cases)} cases failed", errors)
