"""Heads: pooled vector to raw embedding (docs/specification.md, sections 1.5, 4 and 9.1)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.config import HeadInit
from trainables.models.base import Head
from trainables.models.batch_norm import GlobalBatchNorm1d


class _LinearLayersHead(Head):
    """A head whose nn.Linear layers start as set by `model.head_init`."""

    def initialise(self, init: HeadInit) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                _draw_weights(layer.weight, layer.bias, init)


def _draw_weights(weight: Tensor, bias: Tensor | None, init: HeadInit) -> None:
    """Draw He normal weights (`he_fan_out`), and zero biases unless `torch`."""
    if init == "he_fan_out":
        nn.init.kaiming_normal_(weight, mode="fan_out")
    if init != "torch" and bias is not None:
        nn.init.zeros_(bias)


class LinearHead(_LinearLayersHead):
    """f = W x + b."""

    name = "fc"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features, embedding_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        embedding: Tensor = self.fc(vectors)
        return embedding


class BatchNormLinearHead(_LinearLayersHead):
    """f = W BN(x) + b: the head of the spherical-embedding paper for all losses but plain multi-similarity."""

    name = "bn_fc"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__()
        self.bn = GlobalBatchNorm1d(in_features)
        self.fc = nn.Linear(in_features, embedding_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        embedding: Tensor = self.fc(self.bn(vectors))
        return embedding


class LinearBatchNormHead(BatchNormLinearHead):
    """f = BN(W BN(x) + b): the rebuttal's BN variant, with a batch norm on the embedding."""

    name = "fc_bn"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__(in_features, embedding_dim)
        self.embedding_bn = GlobalBatchNorm1d(embedding_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        embedding: Tensor = self.embedding_bn(super().forward(vectors))
        return embedding


class WeightNormLinearHead(Head):
    """f_j = g_j v_j BN(x) / ||v_j|| + b_j: the rebuttal's WN variant, weight normalisation of the final layer."""

    name = "wn_fc"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__()
        self.bn = GlobalBatchNorm1d(in_features)
        initial = nn.Linear(in_features, embedding_dim)
        self.direction = initial.weight
        self.scale = nn.Parameter(self.direction.detach().norm(dim=1))
        self.bias = initial.bias

    def initialise(self, init: HeadInit) -> None:
        _draw_weights(self.direction, self.bias, init)
        with torch.no_grad():
            self.scale.copy_(self.direction.norm(dim=1))

    def forward(self, vectors: Tensor) -> Tensor:
        weight = self.scale[:, None] * functional.normalize(self.direction, dim=1, eps=1e-12)
        return functional.linear(self.bn(vectors), weight, self.bias)


class ProjectionHead(_LinearLayersHead):
    """f = W2 ReLU(BN(W1 x)) + b: two layers, as wide inside as the features.

    The batch norm covers all workers and both views. Chen et al., A Simple Framework for Contrastive Learning of Visual
    Representations, ICML 2020, section 4.2.
    """

    name = "mlp"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, in_features, bias=False)  # the batch norm's shift is its bias
        self.bn = GlobalBatchNorm1d(in_features)
        self.fc = nn.Linear(in_features, embedding_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        embedding: Tensor = self.fc(self.bn(self.hidden(vectors)).relu())
        return embedding
