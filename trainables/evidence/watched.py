"""Take snapshots of a fixed set of training pictures during a trial: norms and turns of their embeddings.

The pictures are those of `directions.py`. A snapshot stores the norms of `_FOLLOWED` of them (Zhang et al., Deep Metric
Learning with Spherical Embedding, NeurIPS 2020, rebuttal, Figure 1), and the histogram of all turns since the previous
snapshot (supplement C.2; train/direction_mean and train/direction_variance are its moments).
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

from trainables.data.base import Indices
from trainables.evidence import directions
from trainables.evidence.from_embeddings import histogram_of
from trainables.evidence.record import Snapshot, WatchedPictures

_FOLLOWED = 16  # pictures whose norms are kept
_MAX_SNAPSHOTS = 60  # largest number of snapshots; then every second one is dropped


def _followed_rows(count: int) -> NDArray[np.int64]:
    """Return the rows of the `count` watched pictures whose norms are kept, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(_FOLLOWED, count)).round().astype(np.int64))


def snapshot(step: int, embeddings: Tensor, before: Tensor | None, units: Tensor) -> Snapshot | None:
    """Return the snapshot of raw embeddings (n, D), after directions `before`; None if a norm is not finite."""
    norms = torch.linalg.vector_norm(embeddings.double(), dim=1)
    if not bool(torch.isfinite(norms).all()):
        return None
    turns = None if before is None else histogram_of(directions.turn_lengths(before.double(), units.double()))
    return Snapshot(step, tuple(round(norm, 6) for norm in norms[_followed_rows(len(norms))].tolist()), turns)


def append_snapshot(snapshots: list[Snapshot], new: Snapshot | None) -> list[Snapshot]:
    """Return the snapshots with `new` appended, at most `_MAX_SNAPSHOTS`."""
    if new is None:
        return snapshots
    return [*(snapshots if len(snapshots) < _MAX_SNAPSHOTS else snapshots[::2]), new]


def to_evidence(snapshots: list[Snapshot], pictures: Indices) -> WatchedPictures | None:
    """Return the snapshots of the watched pictures (n,) for the evidence; None if there are none."""
    own = pictures[_followed_rows(len(pictures))]
    return WatchedPictures(tuple(own.tolist()), tuple(snapshots)) if snapshots else None


def to_plain(snapshots: list[Snapshot]) -> list[dict[str, object]]:
    """Return the snapshots as plain values for a checkpoint."""
    return [asdict(snapshot) for snapshot in snapshots]


def from_plain(saved: Sequence[object]) -> list[Snapshot]:
    """Read the snapshots of a checkpoint."""
    return TypeAdapter(list[Snapshot]).validate_python(saved)
