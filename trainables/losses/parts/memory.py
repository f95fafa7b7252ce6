"""Cross-batch memory: a pair loss also compares each batch with embeddings of earlier batches.

Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020; docs/specification.md, section 5.10.
"""

import torch
from torch import Tensor

from trainables.losses.base import Loss, normalise
from trainables.losses.parts.pairs import PairLoss


class CrossBatchMemory(Loss):
    """L = L_base(batch) + weight * L_base(pairs of the batch with the memory); the batch then enters the memory.

    The memory is a ring buffer of the unit embeddings and labels of the last `size` pictures, held constant. It fills
    in training mode only, from the global batch, so all ranks hold the same. While it is empty (at the first step, and
    during the first `start` batches) the value is exactly the base loss. state_dict holds the buffer and its position,
    so a resumed trial continues exactly.
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
        # On the host, so that no step waits for the device.
        self.batches, self.written = 0, 0

    @property
    def stored_count(self) -> int:
        return min(self.written, len(self.labels))

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the batch's loss. In training, add the loss of its pairs with the memory, then store the batch."""
        if not self.training:
            return self.base(embeddings, labels)  # type: ignore[no-any-return]
        # The memory comes first, so that the base loss's diagnostics describe the batch itself.
        remembered = None
        if self.stored_count:
            stored = self.embeddings[: self.stored_count].to(embeddings.dtype, copy=True)
            remembered = self.base.against(embeddings, labels, stored, self.labels[: self.stored_count])
        value: Tensor = self.base(embeddings, labels)
        if self.batches >= self.start:
            self._store(embeddings.detach(), labels)
        self.batches += 1
        return value if remembered is None else value + self.weight * remembered

    @torch.no_grad()
    def _store(self, embeddings: Tensor, labels: Tensor) -> None:
        """Overwrite the oldest entries."""
        size = len(self.labels)
        new = normalise(embeddings[-size:]).to(self.embeddings.dtype)
        slots = (self.written + torch.arange(len(new), device=new.device)) % size
        self.embeddings[slots] = new
        self.labels[slots] = labels[-size:].long()
        self.written += len(new)

    def diagnostics(self) -> dict[str, Tensor]:
        return {**self.base.diagnostics(), "memory_filled": torch.tensor(float(self.stored_count))}

    def get_extra_state(self) -> Tensor:
        """Return the numbers of batches seen and pictures written, for state_dict."""
        return torch.tensor([self.batches, self.written])

    def set_extra_state(self, state: Tensor) -> None:
        self.batches, self.written = map(int, state)
