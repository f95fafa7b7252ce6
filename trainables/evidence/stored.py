"""Read and write an evaluation's files for later analyses: which queries have a hit, and, if configured, embeddings.

    hits_val.npz         hits_test.npz          one bit per query, by class; for confidence intervals over both
    embeddings_val.npz   embeddings_test.npz    directions in float16: for metrics that are added later

All four are in the trial's folder, readable by their owner only; those of the test half are sealed like its figures.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.data.base import Indices, Labels
from trainables.losses.base import normalise

_SEARCH_SETS = ("queries", "gallery")


def hits_file(part: str) -> str:
    """Return the file name of the hits of a half, "val" or "test"."""
    return f"hits_{part}.npz"


def embeddings_file(part: str) -> str:
    """Return the file name of the embeddings of a half, "val" or "test"."""
    return f"embeddings_{part}.npz"


def embeddings_bytes(pictures: int, dimension: int) -> int:
    """Return the largest size on disk: vectors in half precision, and a norm, a label and an index for each picture."""
    return pictures * (2 * dimension + 4 + 4 + 4)


@dataclass(frozen=True, eq=False)
class Hits:
    """Whether each query's nearest neighbour has its class; queries are sorted by class and then by picture."""

    classes: Labels  # (C,): classes with queries, ascending
    counts: NDArray[np.int64]  # (C,): number of queries of each class
    hit: NDArray[np.bool_]  # (Q,): whether the nearest neighbour has the query's class
    pictures: Indices  # (Q,): indices of the queries in the data set

    @classmethod
    def of(cls, hit: NDArray[np.bool_], labels: Labels, pictures: Indices) -> Self:
        """Sort queries (Q,) by class and picture index."""
        order = np.lexsort((pictures, labels))
        classes, counts = np.unique(labels, return_counts=True)
        return cls(classes, counts, hit[order], pictures[order])

    @property
    def by_class(self) -> NDArray[np.int64]:
        """Hits of each class, (C,)."""
        ends = np.concatenate([[0], self.counts.cumsum()])
        return np.asarray(np.diff(np.concatenate([[0], self.hit.cumsum()])[ends]))

    def data(self) -> bytes:
        """Return a compressed npz."""
        steps = np.diff(self.pictures, prepend=0)  # small numbers, which compress well
        return _npz(
            classes=self.classes.astype(np.int32),
            counts=self.counts.astype(np.int32),
            hit=np.packbits(self.hit),
            steps=steps.astype(np.int32),
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read what `data` wrote; None for a missing or damaged file."""
        arrays = _load_arrays(path)
        try:
            counts, pictures = arrays["counts"].astype(np.int64), arrays["steps"].astype(np.int64).cumsum()
            hit = np.unpackbits(arrays["hit"], count=len(pictures)).astype(bool)
            classes = arrays["classes"].astype(np.int64)
        except KeyError:
            return None
        return cls(classes, counts, hit, pictures) if counts.sum() == len(pictures) else None


@dataclass(frozen=True, eq=False)
class StoredEmbeddings:
    """The embeddings of one half, and its queries and gallery."""

    vectors: Tensor  # (N, D), raw
    labels: Tensor  # (N,) int64
    pictures: Indices  # (N,): indices in the data set
    query_and_gallery: tuple[Indices, Indices] | None = None
    """Rows of queries and of the gallery, if a protocol separates them; None: every row is both."""

    @property
    def search(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Return vectors and labels of the queries, and of the gallery if it is separate."""
        if self.query_and_gallery is None:
            return self.vectors, self.labels, None
        queries, searched = (torch.from_numpy(rows).to(self.labels.device) for rows in self.query_and_gallery)
        return self.vectors[queries], self.labels[queries], (self.vectors[searched], self.labels[searched])

    def data(self) -> bytes:
        """Return an npz: directions in float16, norms in float32; uncompressed, as compression hardly helps."""
        norms = torch.linalg.vector_norm(self.vectors.double(), dim=1)
        directions = normalise(self.vectors.double())
        search_sets = zip(_SEARCH_SETS, self.query_and_gallery or (), strict=False)
        return _npz(
            compress=False,
            directions=directions.to(torch.float16).cpu().numpy(),
            norms=norms.float().cpu().numpy(),
            labels=self.labels.cpu().numpy().astype(np.int32),
            pictures=self.pictures.astype(np.int32),
            **{name: rows.astype(np.int32) for name, rows in search_sets},
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read what `data` wrote, as float32 on the CPU; None for a missing or damaged file."""
        arrays = _load_arrays(path)
        try:
            vectors = torch.from_numpy(arrays["directions"].astype(np.float32) * arrays["norms"][:, None])
            labels, pictures = (arrays[name].astype(np.int64) for name in ("labels", "pictures"))
        except (KeyError, ValueError):
            return None
        queries, searched = (arrays[name].astype(np.int64) if name in arrays else None for name in _SEARCH_SETS)
        query_and_gallery = None if queries is None or searched is None else (queries, searched)
        return cls(vectors, torch.from_numpy(labels), pictures, query_and_gallery)


def _npz(*, compress: bool = True, **arrays: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    save(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read a file's arrays, without unpickling objects; empty if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception:  # damaged files raise many kinds
        return {}
