"""What an evaluation keeps for later questions: which queries found their class first, and, where asked for, all embeddings.

    hits_val.npz         hits_test.npz          a bit a query, by class: how far figures reach beyond these classes and queries
    embeddings_val.npz   embeddings_test.npz    directions in float16: metrics that are added later, without training again

All four lie in the trial's folder, their owner's to read alone; those of the test half are as sealed as its figures.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.data.base import Indices, Labels
from trainables.losses.base import normalise

_APART = ("queries", "gallery")


def hits_file(part: str) -> str:
    """The name of the file with the hits of a half: val or test."""
    return f"hits_{part}.npz"


def embeddings_file(part: str) -> str:
    """The name of the file with the embeddings of a half: val or test."""
    return f"embeddings_{part}.npz"


def embeddings_bytes(pictures: int, dimension: int) -> int:
    """What the embeddings of so many pictures take on disk, at most: half precision, a norm, a label and a number each."""
    return pictures * (2 * dimension + 4 + 4 + 4)


@dataclass(frozen=True, eq=False)
class Hits:
    """Whether each query's nearest neighbour is of its class, sorted by class and then by picture."""

    classes: Labels
    """(C,): the classes that have queries, ascending."""
    counts: NDArray[np.int64]
    """(C,): queries of each."""
    hit: NDArray[np.bool_]
    """(Q,)."""
    pictures: Indices
    """(Q,): the queries' numbers in the data set."""

    @classmethod
    def of(cls, hit: NDArray[np.bool_], labels: Labels, pictures: Indices) -> Self:
        """From queries (Q,) in any order, with their class and picture number."""
        order = np.lexsort((pictures, labels))
        classes, counts = np.unique(labels, return_counts=True)
        return cls(classes, counts, hit[order], pictures[order])

    @property
    def by_class(self) -> NDArray[np.int64]:
        """(C,): hits of each class."""
        ends = np.concatenate([[0], self.counts.cumsum()])
        return np.asarray(np.diff(np.concatenate([[0], self.hit.cumsum()])[ends]))

    def data(self) -> bytes:
        """As a compressed npz."""
        steps = np.diff(self.pictures, prepend=0)  # small numbers, which compress well
        return _npz(
            classes=self.classes.astype(np.int32),
            counts=self.counts.astype(np.int32),
            hit=np.packbits(self.hit),
            steps=steps.astype(np.int32),
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What `data` wrote; None where there is no such file, or a damaged one."""
        arrays = _arrays(path)
        try:
            counts, pictures = arrays["counts"].astype(np.int64), arrays["steps"].astype(np.int64).cumsum()
            hit = np.unpackbits(arrays["hit"], count=len(pictures)).astype(bool)
            classes = arrays["classes"].astype(np.int64)
        except KeyError:
            return None
        return cls(classes, counts, hit, pictures) if counts.sum() == len(pictures) else None


@dataclass(frozen=True, eq=False)
class StoredEmbeddings:
    """The embeddings of one half, and what of it searches what."""

    vectors: Tensor
    """(N, D), raw."""
    labels: Tensor
    """(N,) int64."""
    pictures: Indices
    """(N,): their numbers in the data set."""
    apart: tuple[Indices, Indices] | None = None
    """Rows that ask and rows that are searched, where a protocol keeps these apart; else all do both."""

    @property
    def search(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Vectors and labels of the queries, and of the gallery where it is apart."""
        if self.apart is None:
            return self.vectors, self.labels, None
        queries, searched = (torch.from_numpy(rows).to(self.labels.device) for rows in self.apart)
        return self.vectors[queries], self.labels[queries], (self.vectors[searched], self.labels[searched])

    def data(self) -> bytes:
        """As an npz: directions in float16, norms in float32. Not compressed: embeddings hardly are."""
        norms = torch.linalg.vector_norm(self.vectors.double(), dim=1)
        directions = normalise(self.vectors.double())
        apart = {} if self.apart is None else dict(zip(_APART, self.apart, strict=True))
        return _npz(
            compress=False,
            directions=directions.to(torch.float16).cpu().numpy(),
            norms=norms.float().cpu().numpy(),
            labels=self.labels.cpu().numpy().astype(np.int32),
            pictures=self.pictures.astype(np.int32),
            **{name: rows.astype(np.int32) for name, rows in apart.items()},
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What `data` wrote, as float32 on the CPU; None where there is no such file, or a damaged one."""
        arrays = _arrays(path)
        try:
            vectors = torch.from_numpy(arrays["directions"].astype(np.float32) * arrays["norms"][:, None])
            labels, pictures = (arrays[name].astype(np.int64) for name in ("labels", "pictures"))
        except (KeyError, ValueError):
            return None
        queries, searched = (arrays[name].astype(np.int64) if name in arrays else None for name in _APART)
        apart = None if queries is None or searched is None else (queries, searched)
        return cls(vectors, torch.from_numpy(labels), pictures, apart)


def _npz(*, compress: bool = True, **arrays: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    save(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays alone: no object is ever unpickled."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, BadZipFile, EOFError):
        return {}
