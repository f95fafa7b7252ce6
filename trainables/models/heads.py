"""From the pooled vector to the raw embedding (docs/specification.md, sections 1.5, 4 and 9.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import Head
from trainables.models.batch_norm import GlobalBatchNorm1d


def _linear(in_features: int, out_features: int) -> nn.Linear:
    """A layer with the codes' initial values: He normal over the outputs, zero bias."""
    layer = nn.Linear(in_features, out_features)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    nn.init.zeros_(layer.bias)
    return layer


class LinearHead(Head):
    """f = W x + b."""

    name = "fc"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__()
        self.fc = _linear(in_features, embedding_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        embedding: Tensor = self.fc(vectors)
        return embedding


class BatchNormLinearHead(Head):
    """f = W BN(x) + b: the head of the spherical-embedding paper for all losses but plain multi-similarity."""

    name = "bn_fc"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__()
        self.bn = GlobalBatchNorm1d(in_features)
        self.fc = _linear(in_features, embedding_dim)

    def forward(self, vectors: Tensor) -> Tensor:
        embedding: Tensor = self.fc(self.bn(vectors))
        return embedding


class LinearBatchNormHead(BatchNormLinearHead):
    """f = BN(W BN(x) + b): the rebuttal's BN variant, a batch norm on the final embedding in addition to the usual one."""

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
        initial = _linear(in_features, embedding_dim)
        self.direction = nn.Parameter(initial.weight.detach().clone())
        self.scale = nn.Parameter(self.direction.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(embedding_dim))

    def forward(self, vectors: Tensor) -> Tensor:
        weight = self.scale[:, None] * functional.normalize(self.direction, dim=1, eps=1e-12)
        return functional.linear(self.bn(vectors), weight, self.bias)


class ProjectionHead(Head):
    """f = W2 ReLU(BN(W1 x)) + b: two layers, as wide inside as the features.

    The batch norm sees the batch of all workers, both views of every picture. Chen et al., A Simple Framework for
    Contrastive Learning of Visual Representations, ICML 2020, section 4.2.
    """

    name = "mlp"

    def __init__(self, in_features: int, embedding_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, in_features, bias=False)  # the batch norm's shift is its bias
        self.bn = GlobalBatchNorm1d(in_features)
        self.fc = nn.Linear(in_features, embedding_dim)
        for layer in (self.hidden, self.fc):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
        nn.init.zeros_(self.fc.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        embedding: Tensor = self.fc(self.bn(self.hidden(vectors)).relu())
        return embedding
