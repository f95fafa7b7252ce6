"""Locate positives class by class, and count negatives tile by tile of the similarity matrix."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.metrics.inputs import LabelledVectors

ENTRIES = 2**23  # similarities to positives in memory at once: a bound for huge classes
STEP = 128  # queries per product: the size of a few classes, so that most products are between positives
_RUN = 64  # similarities that a first pass represents by their largest; about one run in a hundred needs a count
_SPARSE = 8  # runs are counted singly if at most one in this many needs a count; otherwise whole rows are compared
_PICKED = 2**20  # comparisons of single similarities with thresholds in memory at once
_COMPARED = 24  # up to this many thresholds, comparing a tile with each is cheaper than sorting its rows (on CPU)


@dataclass(frozen=True)
class VectorsByClass:
    """Unit vectors sorted by class, the rarest class of the gallery first."""

    vectors: Tensor  # (N, D)
    classes: Tensor  # (N,) int64, non-decreasing; classes are numbered in the order of their size in the gallery
    sources: Tensor  # (N,) int64: each vector's row in the caller's order

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class SimilaritySearch:
    """Queries (the rows of the similarity matrix) and the gallery that they search (its columns)."""

    rows: VectorsByClass
    columns: VectorsByClass
    searches_itself: bool  # whether the gallery is the queries: row i is then column i, and no query finds itself

    def relevant(self) -> Tensor:
        """Return R_q, the number of positives of each row in the gallery, (N,), non-decreasing."""
        sizes = torch.bincount(self.columns.classes, minlength=int(self.rows.classes[-1]) + 1)
        return sizes[self.rows.classes] - int(self.searches_itself)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of columns that holds all positives of rows first..last (exclusive)."""
        ends = self.rows.classes[[first, last - 1]]
        left = torch.searchsorted(self.columns.classes, ends[0])
        right = torch.searchsorted(self.columns.classes, ends[1], right=True)
        return int(left), int(right)


def group_by_class(queries: LabelledVectors, gallery: LabelledVectors | None) -> SimilaritySearch:
    """Sort queries and gallery (None: the queries) by class, rare ones first: neighbouring rows need similar work."""
    references = queries if gallery is None else gallery
    labels = torch.cat([references.labels, queries.labels])
    classes, number = torch.unique(labels, return_inverse=True)
    sizes = torch.bincount(number[: len(references)], minlength=len(classes))
    by_size = torch.empty_like(sizes)
    by_size[torch.argsort(sizes, stable=True)] = torch.arange(len(classes), device=sizes.device)
    number = by_size[number]
    columns = _sort(references.vectors, number[: len(references)])
    rows = columns if gallery is None else _sort(queries.vectors, number[len(references) :])
    return SimilaritySearch(rows, columns, searches_itself=gallery is None)


def _sort(vectors: Tensor, classes: Tensor) -> VectorsByClass:
    classes, order = torch.sort(classes, stable=True)
    return VectorsByClass(vectors[order], classes, order)


def tie_width(vectors: Tensor) -> float:
    """Return the difference up to which similarities of unit vectors (N, D) tie.

    It is u max(sqrt(D), 8) in float32 and u max(D, 24) in float64, u the unit roundoff. sqrt(D) u is the probabilistic
    bound for a dot product of length D (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019);
    8 u covers the rounding of the unit vectors. It is 1.3e-6 for D = 512, where duplicates were observed to differ by up
    to 5e-7. Rounding errors of duplicates with few distinct entries, such as -1 and 1, have one sign, and were observed
    to differ by D u / 4 in float64. In float32 less than 1 % of such embeddings exceed the bound; a wider one would tie
    pairs of nearly collapsed embeddings that do differ.
    """
    length, is_double = float(vectors.shape[1]), vectors.dtype == torch.float64
    unit_roundoff = float(torch.finfo(vectors.dtype).eps) / 2
    return unit_roundoff * (max(length, 24.0) if is_double else max(math.sqrt(length), 8.0))


def bands(counts: Tensor, unit: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of queries, multiples of `unit` long, whose similarities to positives fit in memory.

    `counts` (N,) is the number of positives that each query needs, non-decreasing.
    """
    needs = counts.tolist()
    first = last = 0
    while last < len(needs):
        end = min(last + unit, len(needs))
        if last > first and (end - first) * (needs[end - 1] + 1) > ENTRIES:
            yield first, last
            first = last
        last = end
    yield first, last


def positive_similarities(search: SimilaritySearch, band: tuple[int, int], count: int) -> Tensor:
    """Return similarities of a band's queries to their `count` best positives, (B, count), descending, -inf if none."""
    rows, columns = search.rows, search.columns
    best = rows.vectors.new_full((band[1] - band[0], count), -torch.inf)
    for first in range(*band, STEP):
        last = min(first + STEP, band[1])
        left, right = search.span(first, last)
        if left == right:  # none of these queries has a positive
            continue
        similarity = rows.vectors[first:last] @ columns.vectors[left:right].T
        hidden = rows.classes[first:last, None] != columns.classes[left:right]
        if search.searches_itself:
            index = torch.arange(first, last, device=hidden.device)
            hidden[index - first, index - left] = True
        similarity.masked_fill_(hidden, -torch.inf)
        top = _largest(similarity, min(count, right - left))
        best[first - band[0] : last - band[0], : top.shape[1]] = top
    return best


def _largest(values: Tensor, count: int) -> Tensor:
    """Return the `count` largest of each row of values (N, M), descending, (N, count)."""
    if count <= 1:
        return values.amax(dim=1, keepdim=True)[:, :count]
    if count * 4 < values.shape[1]:
        return values.topk(count, dim=1).values
    return _ascending(values).flip(1)[:, :count]


def _ascending(values: Tensor) -> Tensor:
    """Sort each row; on the CPU by numpy, whose vectorised sort is ten times faster than torch's."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.contiguous().numpy(), axis=1))
    return torch.sort(values.contiguous(), dim=1).values


def count_negatives(
    search: SimilaritySearch, band: tuple[int, int], thresholds: Tensor, limits: Tensor, tile: int
) -> Tensor:
    """Count, for each threshold of each query of a band, the negatives in the gallery that are more similar.

    If the queries search themselves, a tile of the band's own square also counts for its columns' queries, and its
    mirror image is skipped.

    Args:
        search: queries and gallery, sorted by class.
        band: first and last (exclusive) of the B queries to count for; the first is a multiple of `tile`.
        thresholds: (B, T), descending along T but for the first; +inf where a query has fewer.
        limits: (B,): counts (B, T) beyond are lower bounds, except for the first two thresholds of each query.
        tile: rows and columns of the similarity matrix computed at a time.
    """
    rows, columns = search.rows, search.columns
    counts = torch.zeros(thresholds.shape, dtype=torch.float64, device=thresholds.device)
    first, last = band
    height, width = _tile_shape(thresholds.shape[1], len(columns), tile)
    used = (thresholds < torch.inf).sum(dim=1)
    needs = [int(used[i : i + height].max()) for i in range(0, last - first, height)]
    buffers = thresholds.new_empty(2, _whole_runs(height) * _whole_runs(width))
    for top in range(first, last, height):
        bottom = min(top + height, last)
        for left in range(0, len(columns), width):
            right = min(left + width, len(columns))
            mirrored = search.searches_itself and height == width and first <= left < last
            if mirrored and left < top:
                continue
            shape = _whole_runs(bottom - top), _whole_runs(right - left)
            similarity, scratch = buffers[:, : shape[0] * shape[1]].view(2, *shape)
            _multiply(rows.vectors[top:bottom], columns.vectors[left:right], similarity)
            _hide_positives(similarity, rows.classes[top:bottom], columns.classes[left:right])
            targets = [(similarity, scratch, top, bottom)]
            if mirrored and left > top:
                targets.append((similarity.T, scratch.T, left, right))
            for values, work, start, stop in targets:
                row_count = stop - start
                if need := needs[(start - first) // height]:
                    window = slice(start - first, stop - first), slice(need)
                    _count_above(
                        values[:row_count], thresholds[window], counts[window], limits[window[0]], work[:row_count]
                    )
    return counts


def _tile_shape(thresholds: int, columns: int, tile: int) -> tuple[int, int]:
    """Return height and width: square, or whole rows where looking up the thresholds costs more than sorting a tile."""
    if thresholds <= tile:
        return tile, tile
    return max(1, tile * tile // columns), columns


def _whole_runs(length: int) -> int:
    return -(-length // _RUN) * _RUN


def _multiply(rows: Tensor, columns: Tensor, similarity: Tensor) -> None:
    """Fill a tile, padded to whole runs with -inf."""
    inner = similarity[: len(rows), : len(columns)]
    torch.mm(rows, columns.T, out=inner)
    similarity[len(rows) :] = -torch.inf
    similarity[:, len(columns) :] = -torch.inf


def _hide_positives(similarity: Tensor, rows: Tensor, columns: Tensor) -> None:
    """Set pairs of one class, self-pairs included, to -inf; classes are sorted."""
    if rows[0] <= columns[-1] and columns[0] <= rows[-1]:
        inner = similarity[: len(rows), : len(columns)]
        inner.masked_fill_(rows[:, None] == columns, -torch.inf)


def _count_above(similarity: Tensor, thresholds: Tensor, counts: Tensor, limits: Tensor, scratch: Tensor) -> None:
    """Add to counts (rows, T) how many of each row's similarities (rows, columns) exceed thresholds (rows, T)."""
    closed = counts >= limits[:, None]  # no metric reads positions beyond the limit
    closed[:, :2] = False
    open_ = thresholds.masked_fill(closed, torch.inf)
    # Reduce along contiguous memory; torch is several times slower across it.
    in_rows = similarity.is_contiguous()
    row_count = len(similarity)
    runs = similarity.view(row_count, -1, _RUN)
    peaks = runs.amax(dim=2) if in_rows else similarity.T.view(-1, _RUN, row_count).amax(dim=1).T
    if _count_picked(runs, peaks, thresholds, open_.amin(dim=1, keepdim=True), counts):
        return
    if thresholds.shape[1] > _COMPARED:
        not_above = torch.searchsorted(_ascending(similarity), thresholds.contiguous(), right=True)
        counts += similarity.shape[1] - not_above
        return
    exceeded = (open_ < peaks.amax(dim=1, keepdim=True)).T.contiguous()
    affected = exceeded.sum(dim=1).tolist()
    for i, threshold in enumerate(thresholds.T.contiguous()):
        if affected[i] * 3 > row_count:
            # A float target: five times faster than a mask of bool, whose sum would have to widen it first.
            counts[:, i] += torch.gt(similarity, threshold[:, None], out=scratch).sum(dim=1)
        elif affected[i]:
            selected = exceeded[i].nonzero()[:, 0]
            # Along the rows of the tile in memory, also for a transposed tile.
            part = similarity.index_select(0, selected) if in_rows else similarity.T.index_select(1, selected).T
            counts[selected, i] += part.gt_(threshold[selected, None]).sum(dim=1)


def _count_picked(runs: Tensor, peaks: Tensor, thresholds: Tensor, lowest: Tensor, counts: Tensor) -> bool:
    """Count the similarities above the lowest threshold of their row; return False if they are too many to count.

    `runs` (rows, columns / RUN, RUN) have the maxima `peaks`; `lowest` (rows, 1) is the lowest of `thresholds` (rows,
    T) that needs a count. Adds to `counts` (rows, T).
    """
    promising = peaks > lowest
    if int(promising.sum()) * _SPARSE > peaks.numel():
        return False
    row, run = promising.nonzero().unbind(1)
    values = runs[row, run]
    part, column = (values > lowest[row]).nonzero().unbind(1)
    width = thresholds.shape[1]
    if len(part) * width > _PICKED:
        return False
    row = row[part]
    picked, threshold = (values[part, column, None] > thresholds[row]).nonzero().unbind(1)
    counts += torch.bincount(row[picked] * width + threshold, minlength=counts.numel()).view(-1, width)
    return True
