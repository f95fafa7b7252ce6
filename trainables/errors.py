"""What is wrong with an input, said once and completely.

A `Problem` names the rule, the value that breaks it, the place it came from and the remedy. Checks collect
problems; a `ConfigError` shows them all together, before any worker starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One broken rule."""

    place: str
    """Where the value was given: a dotted key, a file, a flag."""
    rule: str
    """What must hold, as a sentence without a full stop."""
    value: object = None
    """The offending value; None when there is none to show."""
    remedy: str = ""
    """What to do about it."""

    def __hash__(self) -> int:
        return hash((self.place, self.rule))  # the value may be a list

    def __str__(self) -> str:
        got = "" if self.value is None else f", but got {self.value!r}"
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.place}: {self.rule}{got}.{remedy}"


class TrialError(Exception):
    """A trial cannot go on for a reason that retrying will not change."""


class ConfigError(TrialError, ValueError):
    """One or more inputs break a rule; the message lists every one of them."""

    def __init__(self, problems: Iterable[Problem] | Problem):
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class DataError(ConfigError):
    """The data on disk are missing, unreadable or not what the data set promises."""


class Diverged(TrialError):
    """Training left the finite numbers or collapsed; carries the step and the statistics seen there."""

    def __init__(self, message: str, step: int, statistics: dict[str, float] | None = None):
        super().__init__(message)
        self.message = message
        self.step = step
        self.statistics = dict(statistics or {})

    def __reduce__(self) -> tuple[type[Diverged], tuple[str, int, dict[str, float]]]:
        return type(self), (self.message, self.step, self.statistics)


def nearest(name: str, known: Sequence[str], *, what: str = "name") -> str:
    """A remedy for an unknown name: the closest known one, else the list of all."""
    if not known:
        return f"There is no {what} to choose from."
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known {what}{'es' if what.endswith('s') else 's'}: {', '.join(sorted(known))}."


def raise_if_any(problems: Iterable[Problem], error: type[ConfigError] = ConfigError) -> None:
    """Raise one error that shows every problem, or nothing when there are none."""
    found = tuple(problems)
    if found:
        raise error(found)
