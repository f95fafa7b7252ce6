"""One knob of several, with the others out of the way: a table of the knob's values x seeds.

Other scientific knobs are averaged over (the knob's main effect); nuisance knobs are tuned away, the best setting being
chosen for each value separately. Choosing and judging on the same seeds would flatter every value by the luck of its best
draw, so the choice for seed j is made on the other seeds (leave one seed out) and only then looked up at seed j.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tune_dml.stats.table import Excluded, SeedTable


@dataclass(frozen=True)
class Point:
    """One cell as seen from the knob in question."""

    level: Hashable
    """The knob's value."""
    others: Hashable
    """The other scientific knobs' values."""
    nuisance: Hashable
    """The nuisance knobs' values."""
    values: Mapping[int, float]
    """Seed -> metric."""
    failed: str = ""
    """Why the cell is left out of the arithmetic; empty when it is not."""


@dataclass(frozen=True)
class Isolated:
    """The knob's table, and how the other knobs were removed."""

    table: SeedTable
    levels: tuple[Hashable, ...]
    """One for each row of the table."""
    how: str
    """A clause for the report: empty when there was nothing to remove."""
    crossed: bool
    """False when the values were not tried with the same settings of the others: no fair table exists."""


def isolate(
    points: Sequence[Point],
    labels: Mapping[Hashable, str],
    seeds: Sequence[int],
    *,
    goal: Literal["maximize", "minimize"] = "maximize",
) -> Isolated:
    """Fold cells into levels x seeds; `labels` names each level and sets the order of the rows."""
    others = list(dict.fromkeys(point.others for point in points))
    tuned = any(len(_settings(points, level)) > len(others) for level in labels)
    how = _how(len(others) > 1, tuned)
    rows: dict[str, dict[int, float]] = {}
    levels: list[Hashable] = []
    excluded: list[Excluded] = []
    crossed = True
    for level, label in labels.items():
        groups = [[p for p in points if p.level == level and p.others == other] for other in others]
        if any(not group for group in groups):
            crossed = False
            excluded.append(Excluded(label, "was not tried with every setting of the other knobs"))
            continue
        whole = [[point for point in group if not point.failed] for group in groups]
        if any(not group for group in whole):
            excluded.append(Excluded(label, next(p.failed for group in groups for p in group if p.failed)))
            continue
        columns = [_tuned(group, seeds, goal) for group in whole]
        rows[label] = {
            seed: float(np.mean([column[seed] for column in columns]))
            for seed in seeds
            if all(seed in column for column in columns)
        }
        levels.append(level)
    return Isolated(SeedTable.of(rows, seeds, excluded), tuple(levels), how, crossed)


def _settings(points: Sequence[Point], level: Hashable) -> set[tuple[Hashable, Hashable]]:
    return {(point.others, point.nuisance) for point in points if point.level == level}


def _how(averaged: bool, tuned: bool) -> str:
    parts = []
    if tuned:
        parts.append("at the best nuisance setting of each value, chosen on the other seeds")
    if averaged:
        parts.append("averaged over the other knobs")
    return ", ".join(parts)


def _tuned(group: Sequence[Point], seeds: Sequence[int], goal: str) -> dict[int, float]:
    """Seed -> value at the nuisance setting that is best on the other seeds; with one seed, the best there is."""
    if len(group) == 1:
        return {seed: group[0].values[seed] for seed in seeds if seed in group[0].values}
    sign = 1.0 if goal == "maximize" else -1.0
    column = {}
    for seed in seeds:
        here = [point for point in group if seed in point.values]
        if not here:
            continue

        def merit(point: Point, seed: int = seed) -> float:
            rest = [value for other, value in point.values.items() if other != seed]
            return sign * float(np.mean(rest or [point.values[seed]]))

        column[seed] = max(here, key=merit).values[seed]
    return column
