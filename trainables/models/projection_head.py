"""The projection head of contrastive learning."""

from __future__ import annotations

from torch import Tensor, nn

from trainables.models.base import Head
from trainables.models.batch_norm import GlobalBatchNorm1d


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
        """(B, F) to (B, d)."""
        embedding: Tensor = self.fc(self.bn(self.hidden(vectors)).relu())
        return embedding
