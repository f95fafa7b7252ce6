"""The generators that a process has for whoever brings none: torch's, numpy's and Python's.

Ours draw from torch's or have their own. A method of somebody else may ask any of them, and must then draw the same in every
trial of a seed: whatever ran in its process before, and however often its trial was begun again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_all(seed: int) -> None:
    """Begin all of them anew."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(np.random.SeedSequence(seed).generate_state(4))


def states() -> dict[str, Any]:
    """Where they stand, in what a checkpoint may hold; a CUDA device's own is not among them."""
    name, key, position, has_gauss, gauss = np.random.get_state()
    of_numpy = [str(name), torch.from_numpy(np.asarray(key, np.int64)), int(position), int(has_gauss), float(gauss)]
    return {"torch": torch.get_rng_state(), "numpy": of_numpy, "python": random.getstate()}


def restore(saved: Mapping[str, Any] | Tensor) -> None:
    """Go on where they stood; of an older version's checkpoint torch's alone is known."""
    if isinstance(saved, Tensor):
        torch.set_rng_state(saved.cpu())
        return
    torch.set_rng_state(saved["torch"].cpu())
    name, key, *rest = saved["numpy"]
    np.random.set_state((name, key.cpu().numpy().astype(np.uint32), *rest))
    random.setstate(saved["python"])
