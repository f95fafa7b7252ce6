"""Batch normalisation over the global batch, and freezing of batch normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainables import distributed


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
            return (vectors - self.running_mean) * (self.running_var + self.eps).rsqrt() * self.weight + self.bias
        centred, mean, variance, count = _moments(vectors, (0,))
        _track(self, mean, variance, count, self.momentum)
        return (centred * (variance + self.eps).rsqrt() * self.weight + self.bias).to(vectors.dtype)

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """torch.nn.BatchNorm2d whose statistics are those of the pictures of ALL workers, on CPU as on CUDA.

    Alone it is torch's own; over W processes output, gradients and running statistics equal those of one process.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Normalise (B, C, H, W)."""
        if not (self.training and distributed.is_distributed()):
            normalised: Tensor = super().forward(images)
            return normalised
        return normalised_over_workers(self, images)


def normalised_over_workers(norm: _BatchNorm, values: Tensor) -> Tensor:
    """Training's forward pass of a torch batch normalisation, with the statistics of all workers; (B, C, ...)."""
    centred, mean, variance, count = _moments(values, (0, *range(2, values.ndim)))
    _track(norm, mean.flatten(), variance.flatten(), count, norm.momentum or 0.0)
    result = centred * (variance + norm.eps).rsqrt()
    if norm.affine:
        shape = (-1, *[1] * (values.ndim - 2))
        result = result * norm.weight.view(shape) + norm.bias.view(shape)
    return result.to(values.dtype)


def _moments(values: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values less their mean over all workers, the mean, the biased variance, and how many values each comes from."""
    full = values if values.dtype == torch.float64 else values.float()
    sums = full.sum(dim=dims, keepdim=True)
    ones = full.new_tensor([full.numel() // full.shape[1]])
    totals = distributed.all_reduce_sum(torch.cat([sums.flatten(), ones]))
    count = totals[-1].detach().clamp_min(1)
    mean = (totals[:-1] / count).view_as(sums)
    centred = full - mean  # two passes: no cancellation when the mean is large
    variance = distributed.all_reduce_sum((centred * centred).sum(dim=dims, keepdim=True)) / count
    return centred, mean, variance, count


@torch.no_grad()
def _track(
    norm: GlobalBatchNorm1d | _BatchNorm,
    mean: Tensor,
    variance: Tensor,
    count: Tensor,
    momentum: float,
) -> None:
    """Move the running statistics; the variance is the unbiased one, as in torch."""
    unbiased = variance * (count / (count - 1).clamp_min(1))
    for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        if running is not None:
            running.lerp_(value.to(running.dtype).view_as(running), momentum)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked += 1


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
