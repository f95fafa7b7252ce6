"""Log-sum-exp and cross entropy with their derivatives, shared by proxy and classification losses."""

import torch
from torch import Tensor


def log_sum_exp(logits: Tensor, dim: int, *, add_one: bool = False) -> tuple[Tensor, Tensor]:
    """Return log Σ e^x along `dim`, or log(1 + Σ e^x) with `add_one`, and its derivative, which overwrites `logits`.

    Entries of -inf are ignored. A row of only -inf gives -inf (0 with `add_one`) and a zero derivative.
    """
    top = logits.amax(dim, keepdim=True)
    top = top.clamp_min(0) if add_one else top.masked_fill(top == -torch.inf, 0)
    weights = logits.sub_(top).exp_()
    total = weights.sum(dim, keepdim=True)
    if add_one:
        total += (-top).exp()
    value = (total.log() + top).squeeze(dim)
    return value, weights.div_(total.clamp_min(torch.finfo(total.dtype).tiny))


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy of logits (B, C) and its derivative, which overwrites them."""
    own = labels[:, None]
    target = logits.gather(1, own)[:, 0]
    total, slopes = log_sum_exp(logits, dim=1)
    slopes.scatter_add_(1, own, slopes.new_full(own.shape, -1.0))
    return (total - target).mean(), slopes.div_(len(labels))
