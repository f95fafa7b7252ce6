"""Agreement of two sweeps on the order of a knob's values, such as heads on stored features and full training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.space import Value
from tune_dml.stats.verdicts.ranks import RankAgreement, Table, agree_in_rank


def rank_agreements(first: Analysis, second: Analysis) -> dict[str, RankAgreement]:
    """Return the agreement of each knob that both sweeps search at three or more common values, by path."""
    paths = [knob.path for knob in first.results.plan.knobs]
    second_paths = {knob.path for knob in second.results.plan.knobs}
    agreements = {}
    for path in dict.fromkeys(path for path in paths if path in second_paths):
        levels, second_levels = _levels(first, path), _levels(second, path)
        common = [level for level in levels if level in second_levels]
        if len(common) >= 3:
            tables = _table(levels, common), _table(second_levels, common)
            agreements[path] = agree_in_rank(*tables, resolutions=(first.resolution, second.resolution))
    return agreements


def _levels(sweep: Analysis, path: str) -> Mapping[Value, list[CellAnalysis]]:
    """Return, for each value, the cells with a result on every seed; baselines are left out."""
    levels: dict[Value, list[CellAnalysis]] = {}
    seeds = set(sweep.results.plan.seeds)
    for cell in sweep.cells:
        if path in cell.cell.knobs and not cell.cell.baseline and set(cell.values) >= seeds:
            levels.setdefault(cell.cell.knobs[path], []).append(cell)
    return levels


def _table(levels: Mapping[Value, list[CellAnalysis]], common: list[Value]) -> Table:
    """Return the mean over the cells of each value, (values, seeds)."""
    seeds = sorted(levels[common[0]][0].values)
    rows = [[np.mean([cell.values[seed] for cell in levels[level]]) for seed in seeds] for level in common]
    return np.array(rows, dtype=np.float64)
