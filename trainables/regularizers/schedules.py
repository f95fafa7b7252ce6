"""Define schedules of the regularizer's weight eta during training: pure functions, without torch.

t is the step from 0, T the total number of steps, E the number of epochs (docs/specification.md, section 1.6).
"""

from collections.abc import Callable

from trainables.errors import Problem

_RAMP_START = 3  # epochs before epoch_ramp begins, as in the face recognition experiments of SEC


_Schedule = Callable[[float, int, int, float], float]
SCHEDULES: dict[str, _Schedule] = {
    "constant": lambda eta, t, T, E: eta,  # deep metric learning
    # 0 in epochs 1 to 3, from 0 to eta in epoch 4, then eta: face recognition, SEC and L2.
    "epoch_ramp": lambda eta, t, T, E: eta * min(max(E * t / T - _RAMP_START, 0.0), 1.0),
    "capped_linear": lambda eta, t, T, E: min(eta, 500 * t / T),  # face recognition, SEC-EMA; eta from t = eta T/500 on
    "linear": lambda eta, t, T, E: eta * t / T,  # SimCLR
}
"""Name -> weight from its target eta, and t, T, E."""


def eta_at(schedule: str, eta: float, *, step: int, total_steps: int, epochs: float = 1) -> float:
    """Return the weight at step t (from 0) of a named schedule with target `eta`; only epoch_ramp depends on `epochs`.

    >>> [eta_at("linear", 1.0, step=step, total_steps=100) for step in (0, 50, 99)]
    [0.0, 0.5, 0.99]
    """
    return SCHEDULES[schedule](eta, step, total_steps, epochs)


def schedule_problems(schedule: str, *, epochs: float) -> list[Problem]:
    """Return the problem of a ramp that never begins."""
    if schedule == "epoch_ramp" and epochs <= _RAMP_START:
        rule = f"epoch_ramp keeps eta at 0 for {_RAMP_START} epochs, so training must last longer"
        return [Problem("regularizer.schedule", rule, epochs, "Train more epochs or use 'constant'.")]
    return []
