"""N-pair loss on normalised embeddings."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.losses.base import Loss, normalise


class NPairLoss(Loss):
    """L = mean over classes c of CE(scale * S(a_c, p_c'), target c): one anchor and one positive per class.

    The first two samples of a class are its anchor and positive; classes with one sample are left out. 0 with fewer than
    two classes. On an accelerator the couples are padded to B/2, the most there can be, so that nothing waits for the
    device; on the CPU, where looking at a number costs nothing, only those that exist are computed.
    """

    name = "npair"
    citation = (
        "Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016; normalised as by Zhang "
        "et al., NeurIPS 2020"
    )
    section = "2.3"
    depends_on_order = True
    host_reads = 1  # the number of couples

    def __init__(self, *, scale: Annotated[float, Field(gt=0, description="scale s of the cosines")] = 25.0):
        super().__init__()
        self.scale = scale

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        anchors, positives, valid = couples(labels, padded=labels.device.type != "cpu")
        count = len(anchors)
        unit = normalise(embeddings[torch.cat((anchors, positives))])
        logits = self.scale * (unit[:count] @ unit[count:].T)
        if valid is not None:
            # The diagonal stays in every row: the rows of absent couples remain finite and are then left out.
            absent = ~valid[None, :] & ~torch.eye(count, dtype=torch.bool, device=valid.device)
            logits = logits.masked_fill(absent, -torch.inf)
        targets = torch.arange(count, device=logits.device)
        entropies = nn.functional.cross_entropy(logits, targets, reduction="none")
        if valid is None:
            return entropies.sum() / max(count, 1)
        return torch.where(valid, entropies, 0).sum() / valid.sum().clamp_min(1)


def couples(labels: Tensor, *, padded: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Indices (n,) of the anchors and of the positives, in the order of the labels, and which of them exist.

    Padded, n is B // 2 and `valid` (n,) tells the couples that exist; else all n exist, `valid` is None and the host
    has waited for n.
    """
    order = labels.argsort(stable=True)
    ranked = labels[order]
    repeats = ranked[1:] == ranked[:-1]
    starts = repeats.clone()  # a repetition that no repetition comes before
    starts[1:] &= ~repeats[:-1]
    if not padded:
        rows = starts.nonzero().squeeze(1)
        return order[rows], order[rows + 1], None
    rows = (~starts).to(torch.uint8).argsort(stable=True)[: len(labels) // 2]
    return order[rows], order[rows + 1], starts[rows]
