"""Define schedules of the regularizer's weight eta during training: pure functions, without torch.

t is the step from 0, T the total number of steps, E the number of epochs (docs/specification.md, section 1.6).
"""

from __future__ import annotations

from collections.abc import Callable

from trainables.errors import Problem, nearest, raise_if_any

_RAMP_START = 3  # epochs before epoch_ramp begins, as in the face recognition experiments of SEC


def _constant(eta: float, step: int, total_steps: int, epochs: float) -> float:
    """Return eta at every step (deep metric learning)."""
    return eta


def _epoch_ramp(eta: float, step: int, total_steps: int, epochs: float) -> float:
    """Return 0 in epochs 1 to 3, a linear ramp from 0 to eta in epoch 4, then eta (face recognition, SEC and L2)."""
    return eta * min(max(epochs * step / total_steps - _RAMP_START, 0.0), 1.0)


def _capped_linear(eta: float, step: int, total_steps: int, epochs: float) -> float:
    """Return min(eta, 500 t/T), which reaches eta at t = eta T/500 (face recognition, SEC-EMA)."""
    return min(eta, 500 * step / total_steps)


def _linear(eta: float, step: int, total_steps: int, epochs: float) -> float:
    """Return eta t/T (SimCLR)."""
    return eta * step / total_steps


_Schedule = Callable[[float, int, int, float], float]
SCHEDULES: dict[str, _Schedule] = {
    "constant": _constant,
    "epoch_ramp": _epoch_ramp,
    "capped_linear": _capped_linear,
    "linear": _linear,
}


def eta_at(schedule: str, eta: float, *, step: int, total_steps: int, epochs: float = 1) -> float:
    """Return the weight at step t (from 0) of a named schedule with target `eta`; only epoch_ramp depends on `epochs`.

    Raises ConfigError for an unknown name or a number outside its domain.

    >>> [eta_at("linear", 1.0, step=step, total_steps=100) for step in (0, 50, 99)]
    [0.0, 0.5, 0.99]
    """
    raise_if_any(_argument_problems(schedule, eta, step, total_steps, epochs))
    return SCHEDULES[schedule](eta, step, total_steps, epochs)


def schedule_problems(schedule: str, *, epochs: float) -> list[Problem]:
    """Return the problems of a schedule: an unknown name, or a ramp that never begins."""
    if schedule not in SCHEDULES:
        remedy = nearest(schedule, list(SCHEDULES), what="schedule")
        return [Problem("regularizer.schedule", "unknown schedule", schedule, remedy)]
    if schedule == "epoch_ramp" and epochs <= _RAMP_START:
        rule = f"epoch_ramp keeps eta at 0 for {_RAMP_START} epochs, so training must last longer"
        return [Problem("regularizer.schedule", rule, epochs, "Train more epochs or use 'constant'.")]
    return []


def _argument_problems(schedule: str, eta: float, step: int, total_steps: int, epochs: float) -> list[Problem]:
    problems = [] if schedule in SCHEDULES else schedule_problems(schedule, epochs=epochs)
    domains = (
        ("eta", eta, eta >= 0, ">= 0"),
        ("step", step, step >= 0, ">= 0"),
        ("total_steps", total_steps, total_steps >= 1, ">= 1"),
        ("epochs", epochs, epochs > 0, "> 0"),
    )
    invalid = [(name, value, domain) for name, value, is_valid, domain in domains if not is_valid]
    return problems + [Problem(f"regularizer.{name}", f"must be {domain}", value) for name, value, domain in invalid]
