"""Derive evidence from embeddings: the histogram of their norms, nearest pictures, and the hardest pairs.

The seed chooses the queries, so every cell of a sweep shows the same queries.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.data.base import Indices, Pictures
from trainables.evidence.record import Histogram, Tile
from trainables.losses.base import normalise

_BINS = 40
_NEIGHBOURS = 5
_QUERY_STREAM = 0x5_EE_5EE7  # separates this generator from the samplers' for equal seeds


def histogram_of(values: Tensor, bins: int = _BINS) -> Histogram | None:
    """Count values (N,) in equal bins from the smallest to the largest; None unless all are finite."""
    numbers = values.detach().double().cpu().numpy()
    if not len(numbers) or not np.isfinite(numbers).all():
        return None
    low, high = float(numbers.min()), float(numbers.max())
    tolerance = 1e-6 * max(abs(low), abs(high), 1.0)
    if high - low < tolerance:  # equal up to rounding: bins would have no width
        low, high = low - tolerance, high + tolerance
    counts, _ = np.histogram(numbers, bins=bins, range=(low, high))
    return Histogram(low, high, tuple(counts.tolist()), float(numbers.mean()), float(numbers.var()))


def queries_of(
    queries: Indices, gallery: Indices | None, labels: NDArray[np.int64], count: int, *, seed: int
) -> Indices:
    """Choose at most `count` rows of `queries` that have a positive, from as many classes as possible.

    `queries` and `gallery` (None: the queries) are picture indices, `labels` those of the whole data set.
    """
    order = np.random.default_rng((_QUERY_STREAM, seed)).permutation(len(queries))
    classes = labels[queries]
    class_numbers, sizes = np.unique(labels[queries if gallery is None else gallery], return_counts=True)
    eligible = class_numbers[sizes > (1 if gallery is None else 0)]
    order = order[np.isin(classes[order], eligible)]
    _, first, turn = np.unique(classes[order], return_index=True, return_inverse=True)
    # A class repeats only after all classes have had their turn.
    is_repeat = first[turn] != np.arange(len(order))
    return order[np.argsort(is_repeat, kind="stable")][:count]


def neighbour_rows(
    query_set: tuple[Tensor, Indices],
    gallery_set: tuple[Tensor, Indices],
    pictures: Pictures,
    *,
    top: int = _NEIGHBOURS,
) -> tuple[tuple[Tile | None, ...], ...]:
    """Return each query and its `top` nearest other pictures by cosine; embeddings are (Q, D) and (G, D)."""
    (queries, query_numbers), (gallery, numbers) = query_set, gallery_set
    similar = normalise(queries) @ normalise(gallery).T
    self_match = torch.from_numpy(query_numbers[:, None] == numbers[None, :]).to(similar.device)
    similar = similar.masked_fill(self_match, -torch.inf)
    top = min(top, len(numbers) - int(self_match.sum(dim=1).max()))
    best, order = (part[:, :top].tolist() for part in similar.sort(dim=1, descending=True, stable=True))
    rows = []
    for query, values, nearest in zip(query_numbers.tolist(), best, order, strict=True):
        near = [
            Tile(n, _name(pictures, n), bool(pictures.labels[n] == pictures.labels[query]), value)
            for n, value in zip(numbers[nearest].tolist(), values, strict=True)
        ]
        rows.append((Tile(query, _name(pictures, query)), *near))
    return tuple(rows)


def hardest_pairs(
    similarity: NDArray[np.float64],
    same: NDArray[np.bool_],
    thresholds: Sequence[float],
    couples: Indices,
    pictures: Pictures,
    *,
    count: int,
) -> tuple[tuple[Tile | None, ...], ...]:
    """Return the most confident wrong decisions on pairs: two classes accepted, and one class rejected.

    A row is (first, second, gap, first, second): a pair of each kind, at most `count` rows. Confidence is the distance
    between the squared distance 2 - 2 `similarity` (P,) of `couples` (P, 2) and the threshold of the pair's fold.
    """
    parts = np.array_split(np.arange(len(same)), len(thresholds))
    limit = np.repeat(thresholds, [len(part) for part in parts])
    beyond = limit - (2 - 2 * similarity)  # > 0: accepted
    confused = [
        [pair for pair in np.argsort(-wrong, kind="stable")[:count] if wrong[pair] > 0]
        for wrong in (np.where(same, -np.inf, beyond), np.where(same, -beyond, -np.inf))
    ]
    rows: list[tuple[Tile | None, ...]] = []
    for line in range(max(map(len, confused))):
        tiles: list[Tile | None] = []
        for kind in confused:
            tiles += [None] if tiles else []
            if line >= len(kind):
                tiles += [None, None]
                continue
            first, second = couples[kind[line]].tolist()
            near = float(similarity[kind[line]])
            tiles += [Tile(first, _name(pictures, first)), Tile(second, _name(pictures, second), False, near)]
        rows.append(tuple(tiles))
    return tuple(rows)


def _name(pictures: Pictures, number: int) -> str:
    """Return a picture's class in at most 40 characters; lists of pairs have no class names."""
    label = int(pictures.labels[number])
    name = pictures.class_names[label] if label < len(pictures.class_names) else f"class {label}"
    return name if len(name) <= 40 else name[:39] + "…"
