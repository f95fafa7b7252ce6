"""The soft maximum that proxy and classification losses are made of, with its derivative."""

from __future__ import annotations

import torch
from torch import Tensor


def log_sum_exp(logits: Tensor, dim: int, *, one: bool = False) -> tuple[Tensor, Tensor]:
    """Σ e^x in the log domain, log Σ e^x or with `one` log(1 + Σ e^x), and its derivative.

    Reduces along `dim` and overwrites `logits` with the derivative. Leave entries out by setting them to
    -inf. A row with none left gives -inf (0 with `one`) and zero slopes.
    """
    top = logits.amax(dim, keepdim=True)
    top = top.clamp_min(0) if one else top.masked_fill(top == -torch.inf, 0)
    weights = logits.sub_(top).exp_()
    total = weights.sum(dim, keepdim=True)
    if one:
        total += (-top).exp()
    value = (total.log() + top).squeeze(dim)
    return value, weights.div_(total.clamp_min(torch.finfo(total.dtype).tiny))
