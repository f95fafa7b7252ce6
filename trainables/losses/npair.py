"""N-pair loss on normalised embeddings."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.base import Loss, normalise

__all__ = ["NPairLoss"]


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

    def __init__(self, *, scale: Annotated[float, Field(gt=0, description="scale s of the cosines")] = 25.0):
        super().__init__()
        self.scale = scale

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of couples; embeddings (B, D), labels (B,)."""
        anchors, positives, valid = couples(labels, padded=labels.device.type != "cpu")
        unit = normalise(embeddings[torch.cat((anchors, positives))])
        logits = self.scale * unit[: len(anchors)] @ unit[len(anchors) :].T
        # The diagonal stays in every row: the rows of absent couples remain finite and are then left out.
        absent = ~valid[None, :] & ~torch.eye(len(valid), dtype=torch.bool, device=valid.device)
        entropies = logits.masked_fill(absent, -torch.inf).logsumexp(dim=1) - logits.diagonal()
        return torch.where(valid, entropies, 0).sum() / valid.sum().clamp_min(1)


def couples(labels: Tensor, *, padded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of anchors and of positives and whether each couple exists, all (n,), in the order of the labels.

    n is max(B // 2, 1) when padded, else the number of couples (at least 1), which the host has to wait for.
    """
    order = labels.argsort(stable=True)
    ranked = labels[order]
    starts = torch.ones_like(ranked, dtype=torch.bool)
    starts[1:] = ranked[1:] != ranked[:-1]
    has_two = torch.zeros_like(starts)
    has_two[:-1] = starts[:-1] & ~starts[1:]
    size = len(labels) // 2 if padded else int(has_two.sum())
    rows = (~has_two).to(torch.uint8).argsort(stable=True)[: max(size, 1)]
    return order[rows], order[(rows + 1).clamp_max(len(labels) - 1)], has_two[rows]
