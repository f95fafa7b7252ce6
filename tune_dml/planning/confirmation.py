"""Some cells of a plan, to be measured again under seeds that the plan does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Search

FIRST_SEED = 1000
"""Far from those that a sweep is begun with or extended by."""


def confirmation_plan(plan: Plan, best: Sequence[Cell], used: Sequence[int], seeds: int) -> Plan:
    """The baseline and the best cells under as many fresh seeds.

    Args:
        plan: the sweep's own.
        best: the cells to confirm.
        used: seeds of earlier confirmations, in their order; they come first, and further ones follow.
        seeds: how many of each cell.
    """
    first = max(FIRST_SEED - 1, *plan.seeds, *used) + 1
    fresh = (*used, *range(first, first + seeds))[:seeds]
    cells = [cell for cell in plan.cells if cell.baseline] + [cell for cell in best if not cell.baseline]
    return replace(plan, cells=tuple(cells), seeds=fresh, search=Search())
