"""Define the errors of inputs, which are reported all at once.

A `Problem` has the broken rule, the offending value, its place and the remedy. Checks collect problems, and a
`ConfigError` shows all of them before any worker starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass

_SHOWN = 100  # characters of an offending value
_LISTED = 30  # names to list if none is similar


@dataclass(frozen=True)
class Problem:
    """One broken rule."""

    place: str
    """Origin of the value: a dotted key, a file, a flag."""
    rule: str
    """The rule as a sentence without full stop, or `unknown data set` for an unknown name."""
    value: object = None
    """The offending value; None if the message shows no value."""
    remedy: str = ""
    """How to fix it, as a sentence."""
    known: InitVar[Iterable[str] | None] = None
    """The names that are allowed here; the remedy then begins with those that the value resembles."""
    kind: InitVar[str] = "name"
    dotted: InitVar[bool] = False

    def __post_init__(self, known: Iterable[str] | None, kind: str, dotted: bool) -> None:
        if known is not None:
            given = "" if self.value is None else str(self.value)
            remedy = nearest(given, list(known), what=kind, dotted=dotted)
            object.__setattr__(self, "remedy", f"{remedy} {self.remedy}".rstrip())

    def __hash__(self) -> int:
        return hash((self.place, self.rule))  # the value may be a list

    def __str__(self) -> str:
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.place}: {self.rule}{self._value_text}.{remedy}"

    @property
    def _value_text(self) -> str:
        """The value, worded to follow the rule."""
        if self.value is None:
            return ""
        shown = repr(self.value.item() if getattr(self.value, "ndim", None) == 0 else self.value)  # type: ignore[attr-defined]
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        if self.rule.startswith("unknown "):
            return f" {shown}"
        return f" (given: {shown})" if ", but " in self.rule else f", but got {shown}"


class TrialError(Exception):
    """A trial cannot continue, for a reason that retrying does not change."""


class ConfigError(TrialError, ValueError):
    """One or more inputs are invalid; the message lists all problems."""

    def __init__(self, problems: Iterable[Problem] | Problem):
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class DataError(ConfigError):
    """The data on disk are missing, unreadable or not what the data set promises."""


class Diverged(TrialError):
    """Training gave numbers that are not finite, or collapsed; holds the step and its statistics."""

    def __init__(self, message: str, step: int, statistics: dict[str, float] | None = None):
        super().__init__(message)
        self.message = message
        self.step = step
        self.statistics = dict(statistics or {})

    def __reduce__(self) -> tuple[type[Diverged], tuple[str, int, dict[str, float]]]:
        return type(self), (self.message, self.step, self.statistics)


def nearest(name: str, known: Sequence[str], *, what: str = "name", dotted: bool = False) -> str:
    """Return a remedy for an unknown name: the nearest known name, or a list of names.

    In `dotted` names the last part counts first: `rho` means `regularizer.rho`, `optim.lrr` means `optim.lr`.

    Example:
        >>> nearest("tripet", ["triplet", "npair"])
        "Did you mean 'triplet'?"
    """
    candidates = list(dict.fromkeys(item for item in known if item and item != name))
    if not candidates:
        return f"There is no {what} to choose from."
    if matches := _similar_dotted(name, candidates) if dotted else _similar(name, candidates):
        return f"Did you mean {' or '.join(map(repr, matches))}?"
    more = f" ... ({len(candidates)} in all)" if len(candidates) > _LISTED else ""
    return f"Known {what}{'es' if what.endswith('s') else 's'}: {', '.join(sorted(candidates)[:_LISTED])}{more}."


def _similar(name: str, known: Sequence[str]) -> list[str]:
    """Return the most similar name, ignoring case, or no name."""
    lowered = {item.lower(): item for item in reversed(known)}
    return [lowered[close] for close in difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.65)]


def _similar_dotted(name: str, known: Sequence[str]) -> list[str]:
    """Return a similar name, names with the same last part, or no name."""
    prefix, dot, last = name.rpartition(".")
    lasts = {item: item.rpartition(".")[2] for item in known}
    same_end = [item for item in known if lasts[item] == last]
    if 0 < len(same_end) <= 4:
        return same_end
    if prefix in known:
        return [prefix]
    siblings = [item for item in known if dot and item.startswith(prefix + dot)]
    for candidates in (siblings, known):
        close = difflib.get_close_matches(last, [lasts[item] for item in candidates], n=1, cutoff=0.6)
        if close:
            return [next(item for item in candidates if lasts[item] == close[0])]
    return difflib.get_close_matches(name, known, n=1, cutoff=0.7)


def raise_if_any(problems: Iterable[Problem], error: type[ConfigError] = ConfigError) -> None:
    """Raise one error with all problems, if there are any."""
    collected = tuple(problems)
    if collected:
        raise error(collected)
