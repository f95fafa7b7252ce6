"""Linear evaluation: accuracy of a linear classifier on frozen features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.metrics.inputs import Array, checked_labels, checked_vectors

_STREAM = 0x11_4EA2  # separates this generator from the samplers' for equal seeds
_MILESTONES = (0.60, 0.75, 0.90)  # shares of the epochs after which the rate is divided by _DECAY
_DECAY = 5.0
_MOMENTUM = 0.9
_CHUNK = 4096  # pictures evaluated at a time


@dataclass(frozen=True)
class LinearProbes:
    """Softmax classifiers trained side by side on the same features, one for each learning rate."""

    lrs: tuple[float, ...]
    weight: Tensor  # (F, L, C): weights of L classifiers
    bias: Tensor  # (L, C): biases of L classifiers

    def top_k(self, features: Array, labels: Array, ks: Sequence[int] = (1, 5)) -> dict[int, list[float]]:
        """Return for each k each probe's percentage of pictures whose class is among its k most likely.

        Ties and NaN count against the class. Raises ConfigError for wrong shapes or types, or an unknown class.
        """
        vectors, own = _features_and_labels(features, labels, self.weight.shape[2])
        vectors = vectors.to(self.weight)
        hits = {k: torch.zeros(len(self.lrs), dtype=torch.long) for k in ks}
        for start in range(0, len(vectors), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = _logits(vectors[part], self.weight, self.bias)  # (B, L, C)
            target = logits.gather(2, own[part, None, None].expand(-1, len(self.lrs), 1))
            rank = (~(logits < target)).sum(dim=2) - 1
            for k in ks:
                hits[k] += (rank < k).sum(dim=0).cpu()
        return {k: (100 * count.double() / len(vectors)).tolist() for k, count in hits.items()}


def fit_linear_probes(
    features: Array,
    labels: Array,
    *,
    num_classes: int,
    lrs: Sequence[float] = (1.0, 2.0, 5.0, 10.0),
    epochs: int = 100,
    batch_size: int = 256,
    seed: int = 0,
) -> LinearProbes:
    """Fit `features @ weight + bias` by SGD with momentum 0.9 on the mean cross entropy, once for each rate.

    The rate is divided by 5 after 60, 75 and 90 % of the epochs. Weights start from zero, so only the order of the
    pictures is random. All rates use the same batches, so one matrix product per step serves all. The last batch may be
    smaller.

    Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020, supplement: 100 epochs, batches of 256,
    rates {1, 2, 5, 10}, after Chen et al., A Simple Framework for Contrastive Learning, ICML 2020.

    `features` (N, F) floats are not normalised; `labels` (N,) are integers below `num_classes`. Raises ConfigError for
    wrong shapes, types or labels, or NaN.
    """
    vectors, own = _features_and_labels(features, labels, num_classes)
    weight = vectors.new_zeros(vectors.shape[1], len(lrs), num_classes)
    bias = vectors.new_zeros(len(lrs), num_classes)
    momenta = torch.zeros_like(weight), torch.zeros_like(bias)
    rates = torch.tensor(lrs, dtype=vectors.dtype, device=vectors.device)[:, None]
    shuffle = np.random.default_rng((_STREAM, seed))
    with torch.no_grad():
        for epoch in range(epochs):
            decay = _DECAY ** -sum(epoch >= round(share * epochs) for share in _MILESTONES)
            order = torch.from_numpy(shuffle.permutation(len(vectors))).to(vectors.device)
            for batch in torch.split(order, batch_size):
                rows, slopes = vectors[batch], _slopes(vectors[batch], own[batch], weight, bias)
                gradients = (rows.T @ slopes.flatten(1)).view_as(weight), slopes.sum(dim=0)
                for parameter, momentum, gradient in zip((weight, bias), momenta, gradients, strict=True):
                    momentum.mul_(_MOMENTUM).add_(gradient)
                    parameter.sub_(momentum * (rates * decay))
    return LinearProbes(tuple(float(lr) for lr in lrs), weight, bias)


def _logits(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias.flatten(), rows, weight.flatten(1)).view(len(rows), *bias.shape)


def _slopes(rows: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient of each probe's mean cross entropy by its logits: (softmax - one-hot) / B, (B, L, C)."""
    slopes = _logits(rows, weight, bias).softmax(dim=2)
    own = labels[:, None, None].expand(-1, slopes.shape[1], 1)
    return slopes.scatter_add_(2, own, slopes.new_full((1, 1, 1), -1.0).expand_as(own)).div_(len(rows))


def _features_and_labels(features: Array, labels: Array, num_classes: int) -> tuple[Tensor, Tensor]:
    vectors, problems = checked_vectors(features, "features")
    own, more = checked_labels(labels, len(vectors), "labels")
    raise_if_any(problems + more)
    if len(own) and not 0 <= int(own.min()) <= int(own.max()) < num_classes:
        rule = f"classes must be numbered from 0 to {num_classes - 1}"
        raise ConfigError(Problem("labels", rule, (int(own.min()), int(own.max()))))
    full = vectors if vectors.dtype in (torch.float32, torch.float64) else vectors.float()
    return full, own.to(full.device)
