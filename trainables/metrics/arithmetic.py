"""Metrics compute in the precision of the embeddings, whatever speed-ups training has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["exact_arithmetic"]


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, and float32 products neither in TF32 nor in bfloat16.

    The product precision is a setting of the whole process; it is put back on leaving.
    """
    restore = _full_products()
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        for switch, name, value in restore:
            setattr(switch, name, value)


def _full_products() -> list[tuple[object, str, object]]:
    """Switch the fast products off; returns the (object, attribute, value) that switch them on again."""
    switches: list[object] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    settings: tuple[str, object] = ("fp32_precision", "ieee")
    if not all(hasattr(switch, "fp32_precision") for switch in switches):
        # torch before 2.9, where only CUDA has a switch of its own
        switches, settings = switches[:1], ("allow_tf32", False)
    name, full = settings
    restore = [(switch, name, getattr(switch, name)) for switch in switches]
    for switch in switches:
        setattr(switch, name, full)
    return restore
