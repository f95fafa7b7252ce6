"""Define early stopping: the steps and brackets at which cells are compared.

A *rung* is a step at which cells are compared; the best third continues. `asha` compares all cells at a ninth and at a
third of the training. `hyperband` divides cells into three brackets, which have both rungs, the later one, or none. Of
seventeen cells, they get nine, five and three, so that each bracket spends about as many steps (Li et al., Hyperband,
JMLR 2018, algorithm 1 with eta = 3, R = 9).
"""

from trainables.config import Settings
from tune_dml.planning.request import Stopping

ETA = 3
"""One in `ETA` cells continues after a rung."""

_CELLS_OF_BRACKETS = (9, 5, 3)
_STRIDE = 7
"""Coprime to the sum of `_CELLS_OF_BRACKETS`, so that neighbours in a grid get different brackets."""


def rungs_of(settings: Settings) -> tuple[int, ...]:
    """Return the rungs: the evaluations nearest to a ninth and a third of the training, (44, 133) of 400 steps."""
    steps, every = int(settings["training.steps"]), int(settings["training.eval_every"])
    return tuple(every * round(steps / (share * every)) for share in (ETA**2, ETA))


def bracket_of(stopping: Stopping, number: int) -> int:
    """Return the bracket of a cell's number: 0 has both rungs, 1 has the second, 2 has none."""
    if stopping == "asha":
        return 0
    sizes = _CELLS_OF_BRACKETS
    position = number * _STRIDE % sum(sizes)
    return sum(position >= sum(sizes[:bracket]) for bracket in (1, 2))
