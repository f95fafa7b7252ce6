"""Find cells with identical results: the settings in which they differ had no effect."""

from collections.abc import Sequence

from tune_dml.record.results import TrialResult
from tune_dml.report.analysis.cell import ArmAnalysis, CellAnalysis
from tune_dml.space import Knob


def identical_cells(cells: Sequence[CellAnalysis]) -> tuple[tuple[CellAnalysis, ...], ...]:
    """Return groups of cells with exactly equal results under every seed that they share.

    Both the validation metrics and the last losses must be equal, because rounded metrics alone may be equal by chance.
    """
    owners: dict[tuple[object, ...], int] = {}  # index of the first cell with each result
    groups: dict[int, list[CellAnalysis]] = {}
    for index, cell in enumerate(cells):
        keys = [key for trial in cell.trials if (key := _result_key(trial))]
        owner = next((owners[key] for key in keys if key in owners), index)
        if owner != index and not _have_equal_results(cells[owner], cell):
            owner = index
        groups.setdefault(owner, []).append(cell)
        for key in keys:
            owners.setdefault(key, owner)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _have_equal_results(*cells: CellAnalysis) -> bool:
    """Return whether two cells share a seed and have equal results under all shared seeds."""
    first, second = ({trial.seed: key for trial in cell.trials if (key := _result_key(trial))} for cell in cells)
    shared = first.keys() & second.keys()
    return bool(shared) and all(first[seed] == second[seed] for seed in shared)


def has_no_effect(arm: ArmAnalysis, knob: Knob) -> bool:
    """Return whether a knob's values have equal results, at every setting of the other knobs."""
    by_others: dict[tuple[str, ...], list[CellAnalysis]] = {}
    for cell in arm.cells:
        if knob.path in cell.cell.knobs and cell.values:
            others = tuple(f"{path}={value!r}" for path, value in cell.cell.knobs.items() if path != knob.path)
            by_others.setdefault(others, []).append(cell)
    compared = [cells for cells in by_others.values() if len(cells) > 1]
    return bool(compared) and all(_have_equal_results(cells[0], cell) for cells in compared for cell in cells[1:])


def _result_key(trial: TrialResult) -> tuple[object, ...]:
    """Return a finished trial's results as a key; empty if they could be equal by chance."""
    losses = {name: value for name, value in trial.metrics.items() if "loss" in name.lower()}
    if trial.status != "finished" or not any(losses.values()):
        return ()
    figures = {name: value for name, value in trial.metrics.items() if name.startswith("val/")}
    return (trial.seed, *sorted({**figures, **losses}.items()))
