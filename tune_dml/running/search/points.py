"""Convert the points of a search between parameters of the study and coordinates in a unit box.

The box has a dimension for the arm, if there are several arms, and one for each knob of the arm with most knobs. An arm
with fewer knobs has the coordinate 0.5 in the other dimensions. Without results, a search is uniform in the box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tune_dml.planning.cells import Cell, is_searched
from tune_dml.planning.plan import Plan
from tune_dml.space import Grid, Knob, Value

if TYPE_CHECKING:
    import optuna

Array = NDArray[np.float64]
Point = dict[str, Value]
"""Name -> value of the study's parameters. With several arms, the arm is one of them."""
_ARM = "arm"  # name of the study's parameter that holds the arm


@dataclass(frozen=True)
class Points:
    """Converts the points of a search, given the knobs of each arm."""

    arms: Mapping[str, Mapping[str, Knob]]  # arm -> name in the study -> knob

    @classmethod
    def of_plan(cls, plan: Plan) -> Points:
        """Return the points of a plan's searched arms: those with knobs, without the baseline."""
        searched = [arm for arm in plan.arms if is_searched(arm)]
        own_paths = {(arm.name, knob.path) for arm in searched for knob in plan.space.arm(arm.name).own_knobs}

        def name_in_study(arm: str, path: str) -> str:
            return f"{arm}: {path}" if (arm, path) in own_paths else path

        return cls({arm.name: {name_in_study(arm.name, knob.path): knob for knob in arm.knobs} for arm in searched})

    def suggest(self, ticket: optuna.Trial) -> tuple[str, dict[str, Value]]:
        """Return the arm and the knobs that the study suggests."""
        names = list(self.arms)
        arm = names[0] if len(names) == 1 else str(ticket.suggest_categorical(_ARM, names))
        return arm, {knob.path: _suggest(ticket, name, knob) for name, knob in self.arms[arm].items()}

    def point_of(self, cell: Cell) -> Point:
        """Return the point of a cell."""
        knobs = {name: cell.knobs[knob.path] for name, knob in self.arms[cell.arm].items()}
        return {_ARM: cell.arm, **knobs} if len(self.arms) > 1 else knobs

    def distributions(self, point: Point) -> dict[str, optuna.distributions.BaseDistribution]:
        """Return the distributions of a point's parameters."""
        from optuna.distributions import CategoricalDistribution

        knobs = {name: _distribution(knob) for name, knob in self.arms[self._arm(point)].items()}
        return {_ARM: CategoricalDistribution(list(self.arms)), **knobs} if len(self.arms) > 1 else knobs

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the box."""
        return (len(self.arms) > 1) + max(map(len, self.arms.values()))

    def point_at(self, coordinates: Sequence[float]) -> Point:
        """Return the point at the given coordinates, each in [0, 1)."""
        names, shares = list(self.arms), list(coordinates)
        has_arms = len(names) > 1
        arm = names[int(shares.pop(0) * len(names))] if has_arms else names[0]
        knobs = zip(self.arms[arm].items(), shares, strict=False)
        point = {name: _value_at(knob, share) for (name, knob), share in knobs}
        return {_ARM: arm, **point} if has_arms else point

    def coordinates(self, point: Point) -> list[float]:
        """Return the coordinates of a point; a grid's value is in the middle of its interval."""
        names, arm = list(self.arms), self._arm(point)
        coordinates = [(names.index(arm) + 0.5) / len(names)] if len(names) > 1 else []
        coordinates += [_share_of(knob, point[name]) for name, knob in self.arms[arm].items()]
        return coordinates + [0.5] * (self.dimensions - len(coordinates))

    def columns(self, coordinates: Array) -> Array:
        """Return the inputs (0 to 1) of a surrogate model, (points, columns).

        Each arm and each category has its own column. Each other knob has one column, shared by arms with the same
        knob.
        """
        has_arms = len(self.arms) > 1
        none = np.zeros(len(coordinates), dtype=int)
        arm_index = (coordinates[:, 0] * len(self.arms)).astype(int) if has_arms else none
        columns = {f"{_ARM} {arm}": (arm_index == row).astype(float) for row, arm in enumerate(self.arms) if has_arms}
        for row, knobs in enumerate(self.arms.values()):
            for dimension, (name, knob) in enumerate(knobs.items(), start=has_arms):
                domain, is_arm = knob.domain, arm_index == row
                if isinstance(domain, Grid) and domain.scale == "category":
                    level = (coordinates[:, dimension] * len(domain.values)).astype(int)
                    for index in range(len(domain.values)):
                        column = columns.setdefault(f"{name} {index}", np.zeros(len(coordinates)))
                        column[is_arm] = level[is_arm] == index
                else:
                    column = columns.setdefault(name, np.full(len(coordinates), 0.5))
                    column[is_arm] = _round_shares(knob, coordinates[is_arm, dimension])
        return np.stack(list(columns.values()), axis=1)

    def _arm(self, point: Point) -> str:
        return str(point.get(_ARM, next(iter(self.arms))))

    def low_discrepancy(self, index: int, seed: int) -> Point:
        """Return point `index` of the Sobol sequence, shifted by a random vector that depends on the search's seed."""
        from numpy.random import default_rng
        from scipy.stats.qmc import Sobol

        shift = default_rng(seed).random(self.dimensions)
        sequence = Sobol(self.dimensions, scramble=False)
        if index:
            sequence.fast_forward(index)
        return self.point_at([float(share) for share in (sequence.random()[0] + shift) % 1])


def _value_at(knob: Knob, share: float) -> Value:
    domain = knob.domain
    if isinstance(domain, Grid):
        return domain.values[int(share * len(domain.values))]
    half = 0.5 if domain.integer else 0.0  # an integer covers all numbers that round to it
    low, high = domain.low - half, domain.high + half
    value = low * (high / low) ** share if domain.scale == "log" else low + share * (high - low)
    value = min(max(value, domain.low), domain.high)
    return round(value) if domain.integer else value


def _share_of(knob: Knob, value: Value) -> float:
    """Return the share of a value, the inverse of `_value_at`; a grid's value is in the middle of its interval."""
    domain = knob.domain
    if isinstance(domain, Grid):
        return (domain.values.index(value) + 0.5) / len(domain.values)
    half = 0.5 if domain.integer else 0.0
    low, high, number = domain.low - half, domain.high + half, float(value)  # type: ignore[arg-type]
    return math.log(number / low) / math.log(high / low) if domain.scale == "log" else (number - low) / (high - low)


def _round_shares(knob: Knob, shares: Array) -> Array:
    """Replace each share by the share of its value, so that equal values have equal shares."""
    domain = knob.domain
    if isinstance(domain, Grid):
        return np.asarray((np.floor(shares * len(domain.values)) + 0.5) / len(domain.values))
    return np.array([_share_of(knob, _value_at(knob, share)) for share in shares]) if domain.integer else shares


def _distribution(knob: Knob) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    domain = knob.domain
    if isinstance(domain, Grid):
        return CategoricalDistribution(list(domain.values))
    log = domain.scale == "log"
    if domain.integer:
        return IntDistribution(int(domain.low), int(domain.high), log=log)
    return FloatDistribution(domain.low, domain.high, log=log)


def _suggest(ticket: optuna.Trial, name: str, knob: Knob) -> Value:
    domain = knob.domain
    if isinstance(domain, Grid):
        value: Value = ticket.suggest_categorical(name, list(domain.values))
    elif domain.integer:
        value = ticket.suggest_int(name, int(domain.low), int(domain.high), log=domain.scale == "log")
    else:
        value = ticket.suggest_float(name, domain.low, domain.high, log=domain.scale == "log")
    return value
