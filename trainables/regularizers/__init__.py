"""Regularizers by name: `REGULARIZERS` maps each configuration name to its class, `build_regularizer` makes one."""

from __future__ import annotations

from trainables.errors import ConfigError, Problem
from trainables.methods import Registry, build
from trainables.regularizers.base import Regularizer, penalised
from trainables.regularizers.schedules import SCHEDULES, eta_at, schedule_problems

__all__ = ["REGULARIZERS", "SCHEDULES", "Regularizer", "build_regularizer", "eta_at", "penalised", "schedule_problems"]

REGULARIZERS = Registry(
    __name__,
    Regularizer,  # type: ignore[type-abstract]
    group="tune_dml.regularizers",
)


def build_regularizer(name: str, **knobs: object) -> Regularizer:
    """The regularizer called `name`, e.g. `build_regularizer("sec", rho=1.0)`; without eta. Raises ConfigError."""
    regularizer = build(REGULARIZERS, "regularizer", name, knobs, {}, "regularizer")
    if learnt := [name for name, parameter in regularizer.named_parameters() if parameter.requires_grad]:
        place = f"regularizer {type(regularizer).__name__}"
        rule = "must have no parameters: only network and loss are trained"
        remedy = "Make what it keeps a buffer (register_buffer); what is to be learnt belongs in a loss."
        raise ConfigError(Problem(place, rule, ", ".join(learnt), remedy))
    return regularizer
