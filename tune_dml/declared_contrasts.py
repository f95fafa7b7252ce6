"""Checks of the contrasts that a space declares between its arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainables.errors import Problem, nearest

if TYPE_CHECKING:
    from tune_dml.space import Space


def contrast_problems(space: Space) -> list[Problem]:
    """Return what is wrong with `Arm.against` and `Space.gain_differences`."""
    names = [arm.name for arm in space.every_arm]
    problems = []
    for arm in space.every_arm:
        location = f"{space.name}.{arm.name}.against"
        others = [name for name in names if name != arm.name]
        rule = "an arm gains over another arm of its space"
        problems += [
            Problem(location, rule, other, nearest(other, others, what="arm"))
            for other in arm.against
            if other not in others
        ]
        for other in repeated(arm.against):
            problems.append(Problem(location, "an arm is compared with another one once", other, "Remove the repeat."))
    location = f"{space.name}.gain_differences"
    gaining = [arm.name for arm in space.every_arm if len(arm.against) == 1]
    for pair in space.gain_differences:
        for name in pair:
            if name not in gaining:
                rule = "a gain is that of an arm with one `against`"
                remedy = nearest(name, gaining, what="arm") if gaining else "Declare `against` in two arms."
                problems.append(Problem(location, rule, name, remedy))
        if pair[0] == pair[1]:
            problems.append(Problem(location, "two gains that are compared differ", pair[0], "Name another arm."))
    return problems


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once."""
    return sorted({name for name in names if names.count(name) > 1})
