"""Losses and regularizers compute in full precision, whatever precision the network runs in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Autocast off. Where it is not on, nothing is entered: autocast's own context costs as much as a small product."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
