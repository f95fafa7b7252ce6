"""Isolation of one knob from the others: a table of the knob's values x seeds.

Only settings of the other knobs that were tried with every value are used. If there are none, as in a search that
proposes each combination once, the values cannot be compared. Cells are averaged over the other scientific knobs, which
gives the knob's main effect. Nuisance knobs are tuned for each value: its row is that of the best setting, and verdicts
use all settings (`tuned`). With both kinds of knobs, cells are first averaged over the scientific ones, so that a value
has one best nuisance setting.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.stats.intervals import Array, size_of, without_rounding
from tune_dml.stats.intervals.contrasts import FullGrid, fill_holes
from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.intervals.tuned import TunedLevels, tuned_levels
from tune_dml.stats.verdicts.selection import best_first

_AVERAGED = "averaged over the other knobs"
_UNCROSSED = "its values were not tried with the same settings of the other knobs; a grid would compare them"


@dataclass(frozen=True)
class KnobPoint:
    """A cell, described relative to one knob."""

    level: Hashable  # value of the knob
    others: Hashable  # values of the other scientific knobs
    nuisance: Hashable  # values of the nuisance knobs
    values: Mapping[int, float]  # metric by seed


@dataclass(frozen=True, eq=False)
class IsolatedKnob:
    """Table of one knob, and a description of how the other knobs were averaged or tuned away."""

    table: SeedTable  # values with results; empty if they cannot be compared
    means: Mapping[str, float]  # mean of each row; lost seeds of an average are filled in from the other cells
    how: str  # clause that describes the isolation; empty if the knob was the only one
    problem: str = ""  # reason why the values cannot be compared; empty if they can
    crossed: FullGrid | None = None  # cells behind the averages, if nothing was tuned
    tuned: TunedLevels | None = None
    """All nuisance settings of each value, larger is better, if there are several."""
    over: str = ""  # part of `how` about the other scientific knobs; empty if there is one setting

    @property
    def average(self) -> str:
        """Suffix of a verdict, such as `, averaged over the other knobs`; empty if there is one setting."""
        return f", {self.over}" if self.over else ""

    @property
    def partial_average(self) -> str:
        """`average` if some settings of the other knobs could not be used; else empty."""
        return "" if self.over == _AVERAGED else self.average


def isolate(
    points: Sequence[KnobPoint],
    labels: Mapping[Hashable, str],
    seeds: Sequence[int],
    sign: float = 1,
    resolution: float = 0.0,
) -> IsolatedKnob:
    """Fold cells into a table of levels x seeds.

    `labels` gives the name of each level, in row order; `sign` is -1 if smaller is better; `resolution` is the step of
    the values.
    """
    with_numbers = {point.level for point in points if point.values}
    trained = [level for level in labels if level in with_numbers]
    cells = {
        (point.level, point.others, point.nuisance): [point.values.get(seed, np.nan) for seed in seeds]
        for point in points
    }
    groups = _shared_settings(points, trained)
    names = tuple(labels[level] for level in trained)
    if trained and not groups:
        return IsolatedKnob(SeedTable.of({}, seeds), {}, "", _UNCROSSED)
    stacks = [
        np.array([[cells[level, others, setting] for setting in settings] for level in trained], dtype=float)
        for others, settings in groups.items()
    ]  # for each setting of the others: levels x nuisance settings x seeds
    over = _over(len(groups), len({point.others for point in points}))
    if any(stack.shape[1] > 1 for stack in stacks):
        common = [setting for setting in next(iter(groups.values())) if all(setting in own for own in groups.values())]
        stack = np.array(
            [[[cells[level, others, setting] for setting in common] for level in trained] for others in groups]
        ).mean(0)
        return _tuned(stack, names, seeds, sign, resolution=resolution / math.sqrt(len(groups)), over=over)
    flat = np.array([stack[:, 0] for stack in stacks]).reshape(len(stacks), len(trained), len(seeds))
    if len(stacks) < 2:
        rows = flat[0] if len(flat) else np.zeros((0, len(seeds)))
        table = SeedTable(names, tuple(seeds), rows, resolution=resolution)
        return IsolatedKnob(table, _means(names, rows), over, over=over)
    all_cells = flat.reshape(-1, len(seeds))
    filled = fill_holes(all_cells)[0].reshape(flat.shape).mean(0)
    crossed = FullGrid(all_cells, tuple(range(len(trained))) * len(stacks), resolution)
    table = SeedTable(names, tuple(seeds), flat.mean(0), resolution=resolution / math.sqrt(len(stacks)))
    return IsolatedKnob(table, _means(names, filled), over, crossed=crossed, over=over)


def _over(used: int, tried: int) -> str:
    """Return a clause that says at how many settings of the other scientific knobs values are compared."""
    if used == tried or not used:
        return _AVERAGED if used > 1 else ""
    settings = f"of {tried} settings of the other knobs where every value has a number"
    return f"averaged over the {used} {settings}" if used > 1 else f"at the one {settings}"


def _shared_settings(points: Sequence[KnobPoint], trained: Sequence[Hashable]) -> dict[Hashable, list[Hashable]]:
    """Return, for each setting of the other knobs, the nuisance settings tried with every trained value."""
    tried: dict[Hashable, set[tuple[Hashable, Hashable]]] = {level: set() for level in trained}
    for point in points:
        if point.level in tried:
            tried[point.level].add((point.others, point.nuisance))
    shared = set.intersection(*tried.values()) if tried else set()
    with_numbers = {(p.level, p.others) for p in points if p.values and (p.others, p.nuisance) in shared}
    groups: dict[Hashable, list[Hashable]] = {}
    for others, nuisance in dict.fromkeys((p.others, p.nuisance) for p in points):
        if (others, nuisance) in shared and all((level, others) in with_numbers for level in trained):
            groups.setdefault(others, []).append(nuisance)
    return groups


def _tuned(
    stack: Array, names: tuple[str, ...], seeds: Sequence[int], sign: float, *, resolution: float, over: str
) -> IsolatedKnob:
    """Choose each value's best nuisance setting from averages (levels, settings, seeds)."""
    chosen = [best_first(sign * table)[:1] for table in stack] if stack.size else []
    if not chosen or not all(chosen):
        return IsolatedKnob(SeedTable.of({}, seeds), {}, "", _UNCROSSED)
    rows = np.array([table[row[0]] for table, row in zip(stack, chosen, strict=True)])
    how = f"at each value's best nuisance setting, chosen on the same seeds{', ' + over if over else ''}"
    tuned = tuned_levels([sign * table for table in stack], resolution)
    table = SeedTable(names, tuple(seeds), rows, resolution=resolution)
    return IsolatedKnob(table, _means(names, rows), how, tuned=tuned, over=over)


def _means(names: Sequence[str], rows: Array) -> dict[str, float]:
    """Return the mean of each row by name, NaN without a number; means that differ by rounding only become equal."""
    has_number = np.isfinite(rows).any(1)
    kept = rows[has_number]
    means = np.full(len(rows), np.nan)
    means[has_number] = without_rounding(np.array([row[np.isfinite(row)].mean() for row in kept]), size_of(kept))
    return dict(zip(names, means.tolist(), strict=True))
