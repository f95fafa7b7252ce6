"""Some cells of a plan, to be measured again under seeds that the plan does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan
from tune_dml.planning.study import Search

_FIRST_SEED = 1000
"""Far from those that a sweep is begun with or extended by."""


def confirmation_plan(plan: Plan, baseline: Cell | None, best: Sequence[Cell], used: Sequence[int], seeds: int) -> Plan:
    """The baseline, where it has several cells its best one, and the best cells, under as many fresh seeds.

    Args:
        plan: the sweep's own.
        baseline: the cell that the others are compared with, if there is one.
        best: the cells to confirm.
        used: seeds of earlier confirmations, in their order; they come first, and further ones follow.
        seeds: how many of each cell.
    """
    first = max(_FIRST_SEED - 1, *plan.seeds, *used) + 1
    fresh = (*used, *range(first, first + seeds))[:seeds]
    cells = [*filter(None, [baseline]), *(cell for cell in best if not cell.baseline)]
    return replace(plan, cells=tuple(cells), seeds=fresh, search=Search())
