"""Regularizers by name: `REGULARIZERS` maps each configuration name to its class, `build_regularizer` makes one."""

from __future__ import annotations

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
    return build(REGULARIZERS, "regularizer", name, knobs, {}, "regularizer")
