"""Define early stopping: the steps and brackets at which cells are compared, and its requirements.

A *rung* is a step at which cells are compared; the best third continues. `asha` compares all cells at a ninth and at a
third of the training. `hyperband` divides cells into three brackets, which have both rungs, the later one, or none. Of
seventeen cells, they get nine, five and three, so that each bracket spends about as many steps (Li et al., Hyperband,
JMLR 2018, algorithm 1 with eta = 3, R = 9).
"""

from collections.abc import Sequence

from trainables.config import Settings
from trainables.errors import Problem
from trainables.option_names import option_problem, spell
from tune_dml.planning.cells import PlannedArm
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


def stopping_problems(stopping: Stopping | None, arms: Sequence[PlannedArm]) -> list[Problem]:
    """Return why the cells of these arms cannot be stopped early; no problem if `stopping` is None."""
    if stopping is None:
        return []
    if stopping == "pbt":
        rule = (
            "population-based training changes a knob while a trial trains, so that no trial is a value of the knob and "
            "there is no curve to report"
        )
        remedy = f"Use {spell('search', 'tpe')} with {spell('stopping', 'asha')}: it saves trials."
        return [option_problem("stopping", rule, stopping, remedy)]
    methods = [arm for arm in arms if not arm.baseline]
    if len(methods) != 1 or not methods[0].knobs:
        names = ", ".join(arm.name for arm in methods) or None
        rule = "stops cells of one method that has knobs; several methods are compared on seeds that did not choose"
        return [option_problem("stopping", rule, names, f"Choose one with {spell('arms')}, or leave it out.")]
    return _length_problems(methods[0])


def _length_problems(arm: PlannedArm) -> list[Problem]:
    lengths = {path: arm.base_settings.get(path) for path in ("training.steps", "training.eval_every")}
    searched = {knob.path for knob in arm.knobs} | {tie.path for tie in arm.ties}
    if None in lengths.values() or lengths.keys() & searched or arm.base_settings.get("training.epochs") is not None:
        rule = "compares cells at the same steps: training.steps and training.eval_every must be set, and be no knob"
        remedy = f"Use {spell('settings', {'training.steps': 400})}, or leave it out."
        return [option_problem("stopping", rule, None, remedy)]
    steps, every = (int(length) for length in lengths.values() if length is not None)
    if steps < ETA**2:
        rule = f"compares trials at a ninth of their training, which needs {ETA**2} steps; they have {steps}"
        return [option_problem("stopping", rule, None, "Train longer, or leave it out.")]
    if every <= (ninth := steps // ETA**2):
        return []
    rule = f"must be at most {ninth}: trials are first compared at a ninth of their {steps} steps"
    remedy = f"Use {spell('settings', {'training.eval_every': ninth})}, or leave {spell('stopping')} out."
    return [Problem("training.eval_every", rule, every, remedy)]
