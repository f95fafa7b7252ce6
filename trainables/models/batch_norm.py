"""Batch normalisation over the global batch, and freezing of batch normalisation."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainables import distributed


class GlobalBatchNorm1d(nn.BatchNorm1d):
    """y = gamma (x - mean) / sqrt(var + eps) + beta with mean and biased variance of the batch of ALL workers.

    Over W processes output, gradients and running statistics equal those of one process, on CUDA and on CPU, which
    torch's SyncBatchNorm lacks; local batches may differ in size or be empty. A batch of one gives beta.
    """

    def forward(self, vectors: Tensor) -> Tensor:
        if self.training:
            return normalise_over_workers(self, vectors)
        mean, variance = cast("Tensor", self.running_mean), cast("Tensor", self.running_var)
        return (vectors - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """torch.nn.BatchNorm2d with the statistics of ALL workers, on CPU and CUDA; equal to torch's for one worker."""

    def forward(self, images: Tensor) -> Tensor:
        if not (self.training and distributed.is_distributed()):
            return super().forward(images)
        return normalise_over_workers(self, images)


def normalise_over_workers(norm: _BatchNorm, values: Tensor) -> Tensor:
    """Normalise (B, C, ...) in training with the statistics of all workers."""
    centred, mean, variance, count = _moments(values, (0, *range(2, values.ndim)))
    _update_statistics(norm, mean.flatten(), variance.flatten(), count)
    result = centred * (variance + norm.eps).rsqrt()
    if norm.affine:
        shape = (-1, *[1] * (values.ndim - 2))
        result = result * norm.weight.view(shape) + norm.bias.view(shape)
    return result.to(values.dtype)


def _moments(values: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return centred values, mean, biased variance and number of values over all workers."""
    full = values if values.dtype == torch.float64 else values.float()
    sums = full.sum(dim=dims, keepdim=True)
    local_count = full.new_full((1,), full.numel() // full.shape[1])
    totals = distributed.all_reduce_sum(torch.cat([sums.flatten(), local_count]))
    count = totals[-1].detach().clamp_min(1)
    mean = (totals[:-1] / count).view_as(sums)
    centred = full - mean  # two passes: no cancellation when the mean is large
    variance = distributed.all_reduce_sum((centred * centred).sum(dim=dims, keepdim=True)) / count
    return centred, mean, variance, count


@torch.no_grad()
def _update_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Update the running statistics, with the unbiased variance as in torch."""
    unbiased = variance * (count / (count - 1).clamp_min(1))
    for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        if running is not None:
            running.lerp_(value.to(running.dtype).view_as(running), norm.momentum or 0.0)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked += 1


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return every batch normalisation inside a module."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


def freeze(module: nn.Module, *, affine: bool = False) -> None:
    """Freeze the running statistics of every batch normalisation; with `affine`, gamma and beta too.

    `nn.Module.train()` undoes this, so `Embedder` repeats it after every `train()`.
    """
    for part in batch_norms(module):
        part.eval()
        if affine:
            for parameter in part.parameters(recurse=False):
                parameter.requires_grad_(False)
