"""Cells with identical results, whose differing settings had no effect."""

from __future__ import annotations

from collections.abc import Sequence

from tune_dml.record.results import TrialResult
from tune_dml.report.analysis.cell import ArmAnalysis, CellAnalysis
from tune_dml.space import Knob


def alike(cells: Sequence[CellAnalysis]) -> tuple[tuple[CellAnalysis, ...], ...]:
    """Return groups of cells with exactly equal results under every seed that they share.

    Both the validation metrics and the last losses must agree, because rounded metrics alone may agree by chance.
    """
    first: dict[tuple[object, ...], int] = {}
    groups: dict[int, list[CellAnalysis]] = {}
    for place, cell in enumerate(cells):
        marks = [mark for trial in cell.trials if (mark := _mark(trial))]
        known = next((first[mark] for mark in marks if mark in first), place)
        if known != place and not _same_numbers(cells[known], cell):
            known = place
        groups.setdefault(known, []).append(cell)
        for mark in marks:
            first.setdefault(mark, known)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _same_numbers(one: CellAnalysis, other: CellAnalysis) -> bool:
    """Return whether two cells share a seed and have equal results under all shared seeds."""
    here, there = ({trial.seed: mark for trial in cell.trials if (mark := _mark(trial))} for cell in (one, other))
    shared = here.keys() & there.keys()
    return bool(shared) and all(here[seed] == there[seed] for seed in shared)


def changes_nothing(arm: ArmAnalysis, knob: Knob) -> bool:
    """Return whether at least two values of a knob have results, and all of these are equal."""
    at_others: dict[tuple[str, ...], list[CellAnalysis]] = {}
    for cell in arm.cells:
        if knob.path in cell.cell.knobs and cell.values:
            others = tuple(f"{path}={value!r}" for path, value in cell.cell.knobs.items() if path != knob.path)
            at_others.setdefault(others, []).append(cell)
    compared = [cells for cells in at_others.values() if len(cells) > 1]
    return bool(compared) and all(_same_numbers(cells[0], cell) for cells in compared for cell in cells[1:])


def _mark(trial: TrialResult) -> tuple[object, ...]:
    """Return a finished trial's results as a key; empty if they could agree by chance."""
    losses = {name: value for name, value in trial.metrics.items() if "loss" in name.lower()}
    if trial.status != "finished" or not any(losses.values()):
        return ()
    figures = {name: value for name, value in trial.metrics.items() if name.startswith("val/")}
    return (trial.seed, *sorted({**figures, **losses}.items()))
