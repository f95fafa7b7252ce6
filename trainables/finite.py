"""Whether a trial's loss is still a finite number, and if not, where that began."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class FiniteWatch:
    """Notices a loss that is not finite: at once on the CPU, one step late on CUDA, where looking waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.lagging = device.type == "cuda"
        self._pending: tuple[int, Tensor, Any] | None = None

    def see(self, value: Tensor, step: int) -> tuple[int, float] | None:
        """The step and the loss that is known not to be finite by now, if there is one."""
        if not self.lagging:
            return None if torch.isfinite(value) else (step, float(value))
        before, event = self._pending, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pending = (step, value.to("cpu", non_blocking=True), event)
        event.record()
        if before is None:
            return None
        before[2].synchronize()  # the forward pass of the step before: done long ago
        return None if torch.isfinite(before[1]) else (before[0], float(before[1]))

    def cause(self, modules: nn.Module) -> str:
        """What is known of the cause: weights that an earlier step has ruined. On CUDA the loss itself has by now."""
        if self.lagging or all(bool(parameter.isfinite().all()) for parameter in modules.parameters()):
            return ""
        return ", for weights are not: an earlier loss was finite, but its gradient or the step along it was not"
