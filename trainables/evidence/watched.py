"""The same training pictures seen again and again while a trial runs: how long their embeddings are, how far each has turned.

The pictures are those of `directions.py`, looked at when it looks. Of `_FOLLOWED` of them every norm is kept (Zhang et al., Deep
Metric Learning with Spherical Embedding, NeurIPS 2020, rebuttal, Figure 1); of all of them the histogram of turns since the look
before (supplement C.2, of which train/direction_mean and train/direction_variance are the moments).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

from trainables.data.base import Indices
from trainables.evidence import directions
from trainables.evidence.from_embeddings import histogram_of
from trainables.evidence.record import Look, WatchedPictures

_FOLLOWED = 16  # pictures whose norms are kept
_MOST = 60  # looks that are kept; of more every second goes


def _followed(count: int) -> NDArray[np.int64]:
    """The rows of the `count` watched pictures whose norms are kept, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(_FOLLOWED, count)).round().astype(np.int64))


def look_at(step: int, embeddings: Tensor, before: Tensor | None, units: Tensor) -> Look | None:
    """What raw embeddings (n, D) with directions `units` show after `before`; None where one is not finite."""
    norms = torch.linalg.vector_norm(embeddings.double(), dim=1)
    if not bool(torch.isfinite(norms).all()):
        return None
    turns = None if before is None else histogram_of(directions.turn_lengths(before.double(), units.double()))
    return Look(step, tuple(round(norm, 6) for norm in norms[_followed(len(norms))].tolist()), turns)


def with_look(looks: list[Look], new: Look | None) -> list[Look]:
    """The looks so far and a further one, at most `_MOST`."""
    if new is None:
        return looks
    return [*(looks if len(looks) < _MOST else looks[::2]), new]


def seen(looks: list[Look], pictures: Indices) -> WatchedPictures | None:
    """As the evidence has it, of the watched pictures (n,); None without a look."""
    own = pictures[_followed(len(pictures))]
    return WatchedPictures(tuple(own.tolist()), tuple(looks)) if looks else None


def to_plain(looks: list[Look]) -> list[dict[str, Any]]:
    """As a checkpoint holds them."""
    return [asdict(look) for look in looks]


def from_plain(saved: list[dict[str, Any]]) -> list[Look]:
    """Back from a checkpoint."""
    return TypeAdapter(list[Look]).validate_python(saved)
