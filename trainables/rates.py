"""Define learning-rate schedules: functions of only the step, so that resuming needs no state. Imports no torch."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from trainables.errors import Problem

Decay = Annotated[float, Field(gt=0, le=1, description="factor of the learning rate at each decay")]


class RateSchedule(ABC):
    """Factor of every group's learning rate at a step, counted from 0."""

    name: ClassVar[str]

    @classmethod
    def check_parameters(cls, **knobs: object) -> list[Problem]:
        """Require milestones to increase."""
        lists = {name: list(value) for name, value in knobs.items() if isinstance(value, tuple)}
        return [Problem(k, "must increase", v, "Sort them.") for k, v in lists.items() if v != sorted(set(v))]

    @abstractmethod
    def factor(self, step: int, *, total_steps: int, steps_per_epoch: int) -> float:
        """Return the factor for the step, before it is taken."""


class Constant(RateSchedule):
    """The learning rate never changes."""

    name = "constant"

    def factor(self, step: int, *, total_steps: int, steps_per_epoch: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Milestones(RateSchedule):
    """lr_decay^(number of milestones reached); a decay applies before the step whose index is its milestone.

    This follows the released code of spherical embedding constraints (docs/specification.md, section 9.1).
    """

    name = "milestones"

    lr_milestones: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        Field(min_length=1, description="steps before which the learning rate is multiplied by lr_decay"),
    ]
    lr_decay: Decay = 0.1

    def factor(self, step: int, *, total_steps: int, steps_per_epoch: int) -> float:
        return float(self.lr_decay ** sum(step >= milestone for milestone in self.lr_milestones))


@dataclass(frozen=True, kw_only=True)
class EpochMilestones(RateSchedule):
    """lr_decay^(number of epochs reached): torch's MultiStepLR, stepped once an epoch."""

    name = "epoch_milestones"

    lr_epochs: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(min_length=1, description="epochs after which the learning rate is multiplied by lr_decay"),
    ]
    lr_decay: Decay = 0.1

    def factor(self, step: int, *, total_steps: int, steps_per_epoch: int) -> float:
        return float(self.lr_decay ** sum(step >= epoch * steps_per_epoch for epoch in self.lr_epochs))


@dataclass(frozen=True, kw_only=True)
class EveryEpochs(RateSchedule):
    """lr_decay^floor(epochs done / lr_decay_epochs): torch's StepLR, stepped once an epoch."""

    name = "every_epochs"

    lr_decay_epochs: Annotated[int, Field(ge=1, description="epochs between two decays")]
    lr_decay: Decay = 0.5

    def factor(self, step: int, *, total_steps: int, steps_per_epoch: int) -> float:
        return float(self.lr_decay ** (step // steps_per_epoch // self.lr_decay_epochs))


@dataclass(frozen=True, kw_only=True)
class Cosine(RateSchedule):
    """f + (1 - f) (1 + cos(pi t/T)) / 2 from 1 to f = lr_final (Loshchilov and Hutter, SGDR, ICLR 2017)."""

    name = "cosine"

    lr_final: Annotated[float, Field(ge=0, lt=1, description="share of the learning rate left at the end")] = 0.0

    def factor(self, step: int, *, total_steps: int, steps_per_epoch: int) -> float:
        wave = (1 + math.cos(math.pi * min(step / total_steps, 1.0))) / 2
        return self.lr_final + (1 - self.lr_final) * wave


RATES: dict[str, type[RateSchedule]] = {
    rule.name: rule for rule in (Constant, Cosine, EpochMilestones, EveryEpochs, Milestones)
}
