"""The shape all statistics work on: cells x seeds, one number each, with a hole where a trial gave none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ExcludedCell:
    """A cell that the arithmetic leaves out, and why; it is named wherever the result is."""

    label: str
    reason: str


@dataclass(frozen=True, eq=False)
class SeedTable:
    """m cells x n seeds of one metric. Seeds are paired: a column is one seed across all cells."""

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    values: NDArray[np.float64]
    """Shape (m, n); NaN where a trial has no number (yet)."""
    excluded: tuple[ExcludedCell, ...] = ()

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.labels), len(self.seeds)):
            shape = (len(self.labels), len(self.seeds))
            raise ValueError(f"values must have shape {shape}, but got {self.values.shape}")
        if np.isinf(self.values).any():
            raise ValueError("values must be finite, or NaN where a trial has no number")

    @classmethod
    def of(
        cls,
        cells: Mapping[str, Mapping[int, float]],
        seeds: Sequence[int],
        excluded: Sequence[ExcludedCell] = (),
    ) -> SeedTable:
        """From label -> seed -> value; absent seeds become holes."""
        rows = [[values.get(seed, np.nan) for seed in seeds] for values in cells.values()]
        array = np.array(rows, dtype=np.float64).reshape(len(cells), len(seeds))
        return cls(tuple(cells), tuple(seeds), array, tuple(excluded))

    def without(self, labels: Iterable[str]) -> SeedTable:
        """The table less some cells."""
        left_out = set(labels)
        rows = [row for row, label in enumerate(self.labels) if label not in left_out]
        return SeedTable(tuple(self.labels[row] for row in rows), self.seeds, self.values[rows], self.excluded)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many seeds each cell has."""
        return tuple(int(count) for count in np.isfinite(self.values).sum(axis=1))

    @property
    def complete(self) -> bool:
        """Whether every cell has every seed."""
        return bool(np.isfinite(self.values).all())
