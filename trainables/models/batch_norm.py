"""Batch normalisation over the global batch, and freezing of batch normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainables import distributed

__all__ = ["GlobalBatchNorm1d", "batch_norms", "freeze"]


class GlobalBatchNorm1d(nn.Module):
    """y = gamma (x - mean) / sqrt(var + eps) + beta with mean and biased variance of the batch of ALL workers.

    Same parameters, buffers and numbers as torch.nn.BatchNorm1d in one process. Over W processes output, gradients and
    running statistics equal those of one process on the concatenated batch, on CPU (where torch's SyncBatchNorm does not
    run) as on CUDA; local batches may differ in size or be empty. A batch of one yields beta instead of an error.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalise (B, F): by the global batch while training, by the running statistics in evaluation."""
        if not self.training:
            return (vectors - self.running_mean) * (
                self.running_var + self.eps
            ).rsqrt() * self.weight + self.bias
        full = vectors if vectors.dtype == torch.float64 else vectors.float()
        ones = full.new_tensor([len(full)])
        totals = distributed.all_reduce_sum(torch.cat([full.sum(dim=0), ones]))
        count = totals[-1].detach().clamp_min(1)
        mean = totals[:-1] / count
        centred = full - mean  # two passes: no cancellation when the mean is large
        variance = distributed.all_reduce_sum((centred * centred).sum(dim=0)) / count
        self._track(mean.detach(), variance.detach(), count)
        return (centred * (variance + self.eps).rsqrt() * self.weight + self.bias).to(vectors.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        unbiased = variance * (count / (count - 1).clamp_min(1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += 1

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


def batch_norms(module: nn.Module) -> list[nn.Module]:
    """Every batch normalisation inside a module."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm | GlobalBatchNorm1d)]


def freeze(module: nn.Module, *, affine: bool = False) -> None:
    """Fix the running statistics of every batch normalisation inside `module`; with `affine`, its gamma and beta too.

    `nn.Module.train()` undoes this: `Embedder` applies it again after every `train()`.
    """
    for part in batch_norms(module):
        part.eval()
        if affine:
            for parameter in part.parameters(recurse=False):
                parameter.requires_grad_(False)
