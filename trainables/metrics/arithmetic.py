"""Metrics compute in the precision of the embeddings, whatever speed-ups training has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, and float32 products neither in TF32 nor in bfloat16.

    The precision of products is a setting of the whole process; it is put back on leaving.
    """
    with torch.no_grad(), torch.autocast(device.type, enabled=False), _full_products():
        yield


@contextmanager
def _full_products() -> Iterator[None]:
    """The setting has an old name and, since torch 2.9, a new one; torch objects when the two disagree."""
    switches: list[object] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    new = {switch: value for switch in switches if (value := getattr(switch, "fp32_precision", None)) is not None}
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:  # somebody has used the new name
        old = None
    try:
        if old is None:
            _set_all(dict.fromkeys(new, "ieee"))
        else:
            torch.set_float32_matmul_precision("highest")
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        _set_all(new)


def _set_all(precisions: dict[object, str]) -> None:
    for switch, precision in precisions.items():
        setattr(switch, "fp32_precision", precision)  # noqa: B010 - unknown to the type checker in older torch
