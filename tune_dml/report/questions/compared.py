"""Which two cells are shown side by side, and what they left to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainables.evidence.record import Evidence
from tune_dml.report.measured import Measured, MeasuredCell


@dataclass(frozen=True)
class Side:
    """One of the two cells."""

    label: str
    role: str
    """`baseline`, `best`, `worst`, `best of the others`."""
    evidence: Evidence
    key: str
    """Of the trial that left it."""

    @property
    def title(self) -> str:
        """`no SEC (baseline)`."""
        return self.label if self.label == self.role else f"{self.label} ({self.role})"


@dataclass(frozen=True)
class Pair:
    """The baseline (the worst cell where there is none) and the best other cell, under one seed."""

    sides: tuple[Side, ...]
    seed: int | None
    """The seed whose trials are shown; None where no trial left anything."""
    missing: tuple[str, ...]
    """What cannot be shown, and why."""


def compared(measured: Measured) -> Pair:
    """The two cells, under the first seed for which both left evidence, else for which one did."""
    roles, missing = _roles(measured)
    found = {
        seed: [side for cell, role in roles if (side := _side(measured, cell, role, seed)) is not None]
        for seed in measured.seeds
    }
    seed = max(measured.seeds, key=lambda seed: len(found[seed]), default=None)  # the first of the fullest
    if seed is None or not found[seed]:
        why = "No trial left a histogram of norms or a sheet of pictures: none finished, or they ran before these were kept."
        return Pair((), None, (why,))
    shown = {side.label for side in found[seed]}
    missing += [
        f"{cell.label}, seed {seed}, left nothing to show: its trial did not finish, or ran before this was kept."
        for cell, _ in roles
        if cell.label not in shown
    ]
    return Pair(tuple(found[seed]), seed, tuple(missing))


def _roles(measured: Measured) -> tuple[list[tuple[MeasuredCell, str]], list[str]]:
    """The cells to show with their roles, and what is said of those that are not."""
    sign = 1 if measured.goal == "maximize" else -1
    ranked = sorted(
        (cell for cell in measured.cells if cell.values),
        key=lambda cell: -sign * float(np.mean(list(cell.values.values()))),
    )
    baseline, missing = measured.baseline, []
    if baseline is not None and not baseline.values:
        missing.append(f"The baseline {baseline.label} has no finished trial to show.")
    if baseline is None or not baseline.values:
        roles = [(ranked[-1], "worst")] if len(ranked) > 1 else []
        return [*roles, *((cell, "best") for cell in ranked[:1])], missing
    others = [cell for cell in ranked if cell is not baseline]
    role = "best" if others and others[0] is ranked[0] else "best of the others"
    return [(baseline, "baseline"), *((cell, role) for cell in others[:1])], missing


def _side(measured: Measured, cell: MeasuredCell, role: str, seed: int) -> Side | None:
    trial = next((one for one in cell.trials if one.seed == seed and one.status == "finished"), None)
    evidence = measured.results.evidence(trial.key) if trial else None
    return Side(cell.label, role, evidence, trial.key) if trial and evidence else None
