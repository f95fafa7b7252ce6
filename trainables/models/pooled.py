"""Pooled stored features, the input of a head, computed once for all trials of a process."""

import torch
from torch import Tensor

from trainables.data.base import Pictures
from trainables.data.formats.feature_store import FeatureRows
from trainables.models.embedder import Embedder

_MAX_BYTES = 1 << 28
"""Bytes of pooled features that a process holds; larger folders are read batch by batch."""
_last: tuple[tuple[object, ...], Tensor] | None = None


def pooled_features(pictures: Pictures, network: Embedder, device: torch.device) -> Tensor | None:
    """Return the head's input for each stored row, (pictures * views, F).

    Return None if a part before the head trains or keeps statistics, under autocast, on CUDA, or for too many features.
    """
    global _last  # noqa: PLW0603 - one table per process: trials of a sweep share their features
    images, parts = pictures.images, (network.backbone, network.pooling)
    if not isinstance(images, FeatureRows) or device.type != "cpu" or network.autocast is not None:
        return None
    dtype = next(network.head.parameters()).dtype
    if images.rows.size * dtype.itemsize > _MAX_BYTES or any(True for part in parts for _ in part.state_dict()):
        return None
    key = (pictures.directory, pictures.digest, dtype, *((type(part), str(vars(part))) for part in parts))
    if _last is None or _last[0] != key:
        with torch.no_grad():
            rows = torch.tensor(images.rows)  # copies from the memory map
            _last = (key, network.features(rows[:, :, None, None]))
    return _last[1]
