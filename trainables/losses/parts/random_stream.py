"""A loss's own random numbers: seeded, saved with the loss, the same on every rank and device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

SamplingSeed = Annotated[int, Field(ge=0, lt=2**63, description="seed of the loss's own random stream")]


class RandomStream(nn.Module):
    """Uniform numbers drawn on the CPU, so that the stream does not depend on the device; its state is in state_dict."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def start_trial(self, seed: int) -> None:
        """Start anew with numbers that belong to the stream's own seed and a trial's.

        Trials of one seed then draw the same numbers whatever their knobs, and trials of other seeds draw others: what the
        draws add to the noise between seeds is seen.
        """
        state = np.random.SeedSequence((self.seed, seed)).generate_state(1, np.uint64)
        self.generator.manual_seed(int(state[0] >> 1))

    def uniform(self, shape: Sequence[int], *, like: Tensor) -> Tensor:
        """Float32 numbers in [0, 1) on the device and in the dtype of `like`."""
        return torch.rand(shape, generator=self.generator).to(device=like.device, dtype=like.dtype, non_blocking=True)

    def get_extra_state(self) -> Tensor:
        """The generator's state; part of state_dict."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue exactly where the saved stream stood."""
        self.generator.set_state(state.cpu())
