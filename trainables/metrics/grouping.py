"""Queries and gallery sorted by class, so that positives are neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.metrics.inputs import LabelledVectors


@dataclass(frozen=True)
class Grouped:
    """Unit vectors sorted by class, the rarest class of the gallery first."""

    vectors: Tensor
    """(N, D)."""
    classes: Tensor
    """(N,) int64, non-decreasing; classes are numbered in the order of their size in the gallery."""

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class Search:
    """Who searches where."""

    rows: Grouped
    """The queries."""
    columns: Grouped
    """The gallery."""
    itself: bool
    """The gallery is the queries, row i is column i, and no query finds itself."""

    def relevant(self) -> Tensor:
        """R_q: the number of positives of each row in the gallery, non-decreasing."""
        sizes = torch.bincount(self.columns.classes, minlength=int(self.rows.classes[-1]) + 1)
        return sizes[self.rows.classes] - int(self.itself)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The range of columns that holds all positives of rows first..last (exclusive)."""
        ends = self.rows.classes[[first, last - 1]]
        left = torch.searchsorted(self.columns.classes, ends[0])
        right = torch.searchsorted(self.columns.classes, ends[1], right=True)
        return int(left), int(right)


def group_by_class(queries: LabelledVectors, gallery: LabelledVectors | None) -> Search:
    """The search of queries in a gallery, or in themselves without one. Rare classes first: neighbours need alike work."""
    references = queries if gallery is None else gallery
    labels = torch.cat([references.labels, queries.labels])
    known, number = torch.unique(labels, return_inverse=True)
    sizes = torch.bincount(number[: len(references)], minlength=len(known))
    by_size = torch.empty_like(sizes)
    by_size[torch.argsort(sizes, stable=True)] = torch.arange(len(known), device=sizes.device)
    number = by_size[number]
    columns = _sort(references.vectors, number[: len(references)])
    rows = columns if gallery is None else _sort(queries.vectors, number[len(references) :])
    return Search(rows, columns, itself=gallery is None)


def _sort(vectors: Tensor, classes: Tensor) -> Grouped:
    classes, order = torch.sort(classes, stable=True)
    return Grouped(vectors[order], classes)
