"""What is wrong with an input, said once and completely.

A `Problem` names the rule, the value that breaks it, the place it came from and the remedy. Checks collect
problems; a `ConfigError` shows them all together, before any worker starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SHOWN = 100  # characters of an offending value
_LISTED = 30  # names that are listed where none is near


@dataclass(frozen=True)
class Problem:
    """One broken rule."""

    place: str
    """Where the value was given: a dotted key, a file, a flag."""
    rule: str
    """What must hold, as a sentence without a full stop; `unknown data set` where a name is not known."""
    value: object = None
    """The offending value; None when there is none to show."""
    remedy: str = ""
    """What to do about it."""

    def __hash__(self) -> int:
        return hash((self.place, self.rule))  # the value may be a list

    def __str__(self) -> str:
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.place}: {self.rule}{self._got}.{remedy}"

    @property
    def _got(self) -> str:
        """The value, put so that it makes a sentence with the rule."""
        if self.value is None:
            return ""
        shown = repr(self.value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        if self.rule.startswith("unknown "):
            return f" {shown}"
        return f" (given: {shown})" if ", but " in self.rule else f", but got {shown}"


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


def nearest(name: str, known: Sequence[str], *, what: str = "name", dotted: bool = False) -> str:
    """A remedy for an unknown name: what may be meant, else the list of all; never the name itself.

    Of `dotted` names the last part counts first: `rho` means `regularizer.rho`, `optim.lrr` means `optim.lr`.
    """
    others = list(dict.fromkeys(item for item in known if item and item != name))
    if not others:
        return f"There is no {what} to choose from."
    if meant := _meant(name, others) if dotted else difflib.get_close_matches(name, others, n=1, cutoff=0.6):
        return f"Did you mean {' or '.join(map(repr, meant))}?"
    more = f" ... ({len(others)} in all)" if len(others) > _LISTED else ""
    return f"Known {what}{'es' if what.endswith('s') else 's'}: {', '.join(sorted(others)[:_LISTED])}{more}."


def _meant(name: str, known: Sequence[str]) -> list[str]:
    """One near name; several where their last parts are the very same; none where nothing is near."""
    before, dot, last = name.rpartition(".")
    lasts = {item: item.rpartition(".")[2] for item in known}
    same = [item for item in known if lasts[item] == last]
    if 0 < len(same) <= 4:
        return same
    if before in known:
        return [before]
    beside = [item for item in known if dot and item.startswith(before + dot)]
    for candidates in (beside, known):
        close = difflib.get_close_matches(last, [lasts[item] for item in candidates], n=1, cutoff=0.6)
        if close:
            return [next(item for item in candidates if lasts[item] == close[0])]
    return difflib.get_close_matches(name, known, n=1, cutoff=0.7)


def raise_if_any(problems: Iterable[Problem], error: type[ConfigError] = ConfigError) -> None:
    """Raise one error that shows every problem, or nothing when there are none."""
    collected = tuple(problems)
    if collected:
        raise error(collected)
