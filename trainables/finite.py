"""Detect losses that are not finite, and their cause."""

import math
from typing import Any

import torch
from torch import Tensor, nn


class FiniteWatch:
    """Detects a non-finite loss: at once on the CPU, one step late on CUDA to avoid a synchronization."""

    def __init__(self, device: torch.device) -> None:
        self.lagging = device.type == "cuda"
        self._pending: tuple[int, Tensor, Any] | None = None

    def see(self, value: Tensor, step: int) -> tuple[int, float] | None:
        """Register a loss; return (step, loss) of the latest loss that is known not to be finite, else None."""
        if not self.lagging:
            number = float(value)
            return None if math.isfinite(number) else (step, number)
        before, event = self._pending, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pending = (step, value.to("cpu", non_blocking=True), event)
        event.record()
        if before is None:
            return None
        before[2].synchronize()  # an event of the step before, so this does not wait
        return None if torch.isfinite(before[1]) else (before[0], float(before[1]))

    def cause(self, modules: nn.Module) -> str:
        """Return a phrase if weights of an earlier step are not finite; empty otherwise, and on CUDA."""
        if self.lagging or all(bool(parameter.isfinite().all()) for parameter in modules.parameters()):
            return ""
        return ", as weights are not finite: an earlier loss was, but its gradient or its step was not"
