"""Cross-batch memory: a loss of pairs also compares each batch with embeddings of earlier batches.

Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020; docs/specification.md, section 5.10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.losses.base import Loss, normalise
from trainables.losses.parts.pairs import PairLoss


class CrossBatchMemory(Loss):
    """L = L_base(batch) + weight * L_base(pairs of the batch with the memory); the memory then takes in the batch.

    The memory is a ring of the unit embeddings and labels of the last `size` pictures, held constant. It fills in training
    mode only, from the global batch, so every rank has the same; the batch never meets itself in it. While it is empty (at
    the first step, and during the first `start` batches) this is the base loss, to the last digit. What it holds
    and how far it has come is in state_dict: a resumed trial goes on as if it had not stopped.
    """

    embeddings: Tensor
    labels: Tensor

    def __init__(self, base: PairLoss, embedding_dim: int, *, size: int, start: int, weight: float):
        super().__init__()
        self.base = base
        self.weight = weight
        self.start = start
        self.register_buffer("embeddings", torch.zeros(size, embedding_dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.long))
        # On the host: no step waits for the device to tell them.
        self.batches, self.written = 0, 0

    @property
    def filled(self) -> int:
        """How many pictures it holds."""
        return min(self.written, len(self.labels))

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The base loss alone in evaluation mode and while the memory is empty."""
        if not self.training:
            return self.base(embeddings, labels)  # type: ignore[no-any-return]
        # The memory first: what the base loss reports of its last batch is then of the batch itself.
        remembered = None
        if self.filled:
            known = self.embeddings[: self.filled].to(embeddings.dtype, copy=True)
            remembered = self.base.against(embeddings, labels, known, self.labels[: self.filled])
        value: Tensor = self.base(embeddings, labels)
        if self.batches >= self.start:
            self._remember(embeddings.detach(), labels)
        self.batches += 1
        return value if remembered is None else value + self.weight * remembered

    @torch.no_grad()
    def _remember(self, embeddings: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest."""
        size = len(self.labels)
        new = normalise(embeddings[-size:]).to(self.embeddings.dtype)
        places = (self.written + torch.arange(len(new), device=new.device)) % size
        self.embeddings[places] = new
        self.labels[places] = labels[-size:].long()
        self.written += len(new)

    def diagnostics(self) -> dict[str, Tensor]:
        """Of the base loss, and how many pictures are remembered."""
        return {**self.base.diagnostics(), "memory_filled": torch.tensor(float(self.filled))}

    def get_extra_state(self) -> Tensor:
        """Batches seen and pictures written; part of state_dict."""
        return torch.tensor([self.batches, self.written])

    def set_extra_state(self, state: Tensor) -> None:
        """Continue where the saved memory stood."""
        self.batches, self.written = map(int, state)
