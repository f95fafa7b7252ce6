"""Table of cells x seeds, the input of all statistics; NaN where a trial has no value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.noise import PairNoise, fit_pairs, has_testable_pair


@dataclass(frozen=True, eq=False)
class SeedTable:
    """Values of one metric, m cells x n seeds; a column is one seed across all cells."""

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Array  # shape (m, n); NaN where a trial has no value (yet)
    resolution: float = 0.0
    """Step of the values (`resolution`); 0 for a continuous metric.

    An average over r cells has a cell's step / sqrt(r), because its variance floor is a cell's / r."""

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.labels), len(self.seeds)):
            shape = (len(self.labels), len(self.seeds))
            raise ValueError(f"values must have shape {shape}, but got {self.values.shape}")
        if np.isinf(self.values).any():
            raise ValueError("values must be finite, or NaN where a trial has no number")

    @classmethod
    def of(
        cls, cells: Mapping[str, Mapping[int, float]], seeds: Sequence[int], *, resolution: float = 0.0
    ) -> SeedTable:
        """Build a table from label -> seed -> value; missing seeds become NaN."""
        rows = [[values.get(seed, np.nan) for seed in seeds] for values in cells.values()]
        array = np.array(rows, dtype=np.float64).reshape(len(cells), len(seeds))
        return cls(tuple(cells), tuple(seeds), array, resolution)

    def without(self, labels: Iterable[str]) -> SeedTable:
        """Return the table without the cells of these labels."""
        excluded = set(labels)
        return self._of_rows([row for row, label in enumerate(self.labels) if label not in excluded])

    def with_numbers(self) -> SeedTable:
        """Return the table without the cells that have no value."""
        return self._of_rows(np.flatnonzero(np.isfinite(self.values).any(1)).tolist())

    def times(self, sign: float) -> SeedTable:
        """Return the table with its values times 1 or -1."""
        return self if sign == 1 else replace(self, values=sign * self.values)

    def _of_rows(self, rows: list[int]) -> SeedTable:
        """Return the table of some rows; for all rows that is this table, whose noise may be cached."""
        if len(rows) == len(self.labels):
            return self
        return replace(self, labels=tuple(self.labels[row] for row in rows), values=self.values[rows])

    @cached_property
    def noise(self) -> PairNoise:
        """Differences of all pairs of cells and their noise."""
        return fit_pairs(self.values, self.resolution)

    @cached_property
    def testable(self) -> bool:
        """Whether two cells share two seeds, so that noise can be estimated."""
        return has_testable_pair(self.values)
