"""Seed, save and restore the global random generators of torch, numpy and Python.

This project's methods draw from torch's generator or from their own. Methods of other packages may use any of the
three. All must draw the same numbers in every trial of a seed, independently of earlier trials, and after resumptions.
"""

import random
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor


def seed_all(seed: int) -> None:
    """Seed all three generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(np.random.SeedSequence(seed).generate_state(4))


class GeneratorStates(TypedDict):
    """States of the three generators, as a checkpoint stores them."""

    torch: Tensor
    numpy: list[Any]
    python: tuple[Any, ...]


def states() -> GeneratorStates:
    """Return the states of the three generators for a checkpoint; CUDA's is not included."""
    name, key, position, has_gauss, gauss = np.random.get_state()
    numpy_state = [str(name), torch.from_numpy(np.asarray(key, np.int64)), int(position), int(has_gauss), float(gauss)]
    return {"torch": torch.get_rng_state(), "numpy": numpy_state, "python": random.getstate()}


def restore(saved: GeneratorStates) -> None:
    """Restore the three generators."""
    torch.set_rng_state(saved["torch"].cpu())
    name, key, *other_parts = saved["numpy"]
    np.random.set_state((name, key.cpu().numpy().astype(np.uint32), *other_parts))
    random.setstate(saved["python"])
