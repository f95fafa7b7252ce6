"""Draw random numbers for a loss: seeded, saved with the loss, and equal on every rank and device."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

SamplingSeed = Annotated[int, Field(ge=0, lt=2**63, description="seed of the loss's own random stream")]


class RandomStream(nn.Module):
    """Draws uniform numbers on the CPU, so that they do not depend on the device; state_dict holds the state."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def start_trial(self, seed: int) -> None:
        """Seed the stream from its own seed and the trial's.

        Trials of one seed draw the same numbers for all knobs; trials of different seeds draw different numbers.
        """
        state = np.random.SeedSequence((self.seed, seed)).generate_state(1, np.uint64)
        self.generator.manual_seed(int(state[0] >> 1))

    def uniform(self, shape: Sequence[int], *, like: Tensor) -> Tensor:
        """Return numbers in [0, 1), drawn in float32, on the device and in the dtype of `like`."""
        return torch.rand(shape, generator=self.generator).to(device=like.device, dtype=like.dtype, non_blocking=True)

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())
