"""Counting the negatives above each threshold, tile by tile of the similarity matrix."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainables.metrics.grouping import Search

__all__ = ["count_negatives", "largest"]

COMPARED = 24
"""Up to so many thresholds a row, comparing a tile with each is cheaper than sorting the tile's rows (measured on CPU)."""


def count_negatives(
    search: Search, band: tuple[int, int], thresholds: Tensor, limits: Tensor, tile: int
) -> Tensor:
    """For each threshold of each query of a band, the number of negatives in the gallery that are more similar.

    Where the queries search themselves, a tile of the band's own square is counted for its columns' queries too, and its
    mirror image is skipped.

    Args:
        search: queries and gallery, sorted by class.
        band: first and last (exclusive) query to count for; the first is a multiple of `tile`.
        thresholds: (T, B), for B = last - first queries, descending along T but for the first; +inf where a query has
            fewer.
        limits: (B,) where counting may stop: from here on a count is only known not to be lower. The first two
            thresholds of each query are always counted in full.
        tile: rows and columns of the similarity matrix computed at a time.

    Returns:
        (T, B) float64, whole numbers.
    """
    rows, columns = search.rows, search.columns
    counts = torch.zeros(thresholds.shape, dtype=torch.float64, device=thresholds.device)
    first, last = band
    height, width = _tile_shape(len(thresholds), len(columns), tile)
    used = (thresholds < torch.inf).sum(dim=0)
    needs = [int(used[i : i + height].max()) for i in range(0, last - first, height)]
    buffers = thresholds.new_empty(2, height * width)
    for top in range(first, last, height):
        bottom = min(top + height, last)
        for left in range(0, len(columns), width):
            right = min(left + width, len(columns))
            mirrored = search.itself and height == width and first <= left < last
            if mirrored and left < top:
                continue
            similarity, scratch = buffers[:, : (bottom - top) * (right - left)].view(2, bottom - top, -1)
            torch.mm(rows.vectors[top:bottom], columns.vectors[left:right].T, out=similarity)
            _hide_positives(similarity, rows.classes[top:bottom], columns.classes[left:right])
            targets = [(similarity, scratch, top, bottom)]
            if mirrored and left > top:
                targets.append((similarity.T, scratch.T, left, right))
            for values, work, start, stop in targets:
                need = needs[(start - first) // height]
                here = slice(start - first, stop - first)
                _count_above(values, thresholds[:need, here], counts[:need, here], limits[here], work)
    return counts


def _tile_shape(thresholds: int, columns: int, tile: int) -> tuple[int, int]:
    """Square tiles; but where looking up the thresholds costs more than sorting, whole rows, to look them up once."""
    if thresholds <= tile:
        return tile, tile
    return max(1, tile * tile // columns), columns


def _hide_positives(similarity: Tensor, rows: Tensor, columns: Tensor) -> None:
    """Put pairs of one class (self-pairs among them) below every threshold; classes are sorted."""
    if rows[0] <= columns[-1] and columns[0] <= rows[-1]:
        similarity.masked_fill_(rows[:, None] == columns, -torch.inf)


def _count_above(
    similarity: Tensor, thresholds: Tensor, counts: Tensor, limits: Tensor, scratch: Tensor
) -> None:
    """Add to counts (T, rows) how many of each row's similarities (rows, columns) exceed thresholds (T, rows)."""
    if len(thresholds) > COMPARED:
        not_above = torch.searchsorted(_ascending(similarity), thresholds.T.contiguous(), right=True)
        counts += similarity.shape[1] - not_above.T
        return
    open_ = thresholds < similarity.amax(dim=1)  # a good positive has nothing above it in most tiles
    open_[2:] &= counts[2:] < limits  # a bad one is soon beyond what any metric looks at
    for threshold, count, rows, many in zip(
        thresholds, counts, open_, open_.sum(dim=1).tolist(), strict=True
    ):
        if many * 3 > len(rows):
            # A float target: five times faster than a mask of bool, whose sum would have to widen it first.
            count.add_(torch.gt(similarity, threshold[:, None], out=scratch).sum(dim=1))
        elif many:
            few = rows.nonzero()[:, 0]
            # Along the rows of the tile as it lies in memory, also where it stands transposed.
            lying = similarity.is_contiguous()
            part = similarity.index_select(0, few) if lying else similarity.T.index_select(1, few).T
            count.index_add_(0, few, part.gt_(threshold[few, None]).sum(dim=1).to(count.dtype))


def largest(values: Tensor, count: int) -> Tensor:
    """The `count` largest of each row, descending; values (N, M) -> (N, count)."""
    if count <= 1:
        return values.amax(dim=1, keepdim=True)[:, :count]
    if count * 4 < values.shape[1]:
        return values.topk(count, dim=1).values
    return _ascending(values).flip(1)[:, :count]


def _ascending(values: Tensor) -> Tensor:
    """Each row sorted. On the CPU by numpy, whose vectorised sort is an order of magnitude faster than torch's."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.contiguous().numpy(), axis=1))
    return torch.sort(values.contiguous(), dim=1).values
