"""Regularizers by name: `REGULARIZERS` maps each configuration name to its class; `build_regularizer` builds one."""

from trainables.errors import ConfigError, Problem
from trainables.methods import Registry, build
from trainables.regularizers.base import Regularizer, add_penalty
from trainables.regularizers.schedules import SCHEDULES, eta_at

__all__ = ["REGULARIZERS", "SCHEDULES", "Regularizer", "add_penalty", "build_regularizer", "eta_at"]

REGULARIZERS = Registry(__name__, Regularizer, group="tune_dml.regularizers")  # type: ignore[type-abstract]


def build_regularizer(name: str, **knobs: object) -> Regularizer:
    """Build the regularizer called `name` from checked knobs; its weight eta is not part of it.

    Raises ConfigError for an unknown name, an unknown or out-of-domain knob, or a regularizer with parameters.

    >>> import torch
    >>> regularizer = build_regularizer("sec", rho=1.0)
    >>> regularizer(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))  # norms 5 and 1: their variance
    tensor(4.)
    """
    regularizer = build(REGULARIZERS, "regularizer", name, knobs, {}, "regularizer")
    if trained := [name for name, parameter in regularizer.named_parameters() if parameter.requires_grad]:
        place = f"regularizer {type(regularizer).__name__}"
        rule = "must have no parameters: only network and loss are trained"
        remedy = "Register its state as a buffer (register_buffer); trained parameters belong in a loss."
        raise ConfigError(Problem(place, rule, ", ".join(trained), remedy))
    return regularizer
