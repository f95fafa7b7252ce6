"""The loss `npair`."""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.losses.base import Loss, normalise


class NPairLoss(Loss):
    """L = mean over classes c of CE(scale * S(a_c, p_c'), target c): one anchor and one positive per class.

    The first two samples of a class are its anchor and positive; classes with one sample are left out. The loss is 0
    with fewer than two classes. On an accelerator the pairs are padded to B/2, their largest number, so that no step
    waits for the device. On the CPU only the existing pairs are computed.
    """

    name = "npair"
    citation = (
        "Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016; normalised as by Zhang "
        "et al., NeurIPS 2020"
    )
    section = "2.3"
    depends_on_order = True
    host_reads = 1  # the number of pairs

    def __init__(self, *, scale: Annotated[float, Field(gt=0, description="scale s of the cosines")] = 25.0):
        super().__init__()
        self.scale = scale

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        anchors, positives, valid = _anchor_positive_pairs(labels, padded=labels.device.type != "cpu")
        count = len(anchors)
        unit = normalise(embeddings[torch.cat((anchors, positives))]).view(2, count, embeddings.shape[1])
        anchor, positive = unit.unbind()  # one operation in the backward pass; two slices would need five
        logits = self.scale * (anchor @ positive.T)
        if valid is not None:
            # The diagonal stays in every row: the rows of absent pairs stay finite and are then left out.
            absent = ~valid[None, :] & ~torch.eye(count, dtype=torch.bool, device=valid.device)
            logits = logits.masked_fill(absent, -torch.inf)
        targets = torch.arange(count, device=logits.device)
        entropies = nn.functional.cross_entropy(logits, targets, reduction="none")
        if valid is None:
            return entropies.sum() / max(count, 1)
        return torch.where(valid, entropies, 0).sum() / valid.sum().clamp_min(1)


def _anchor_positive_pairs(labels: Tensor, *, padded: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return indices (n,) of anchors and positives in the order of the labels, and a mask (n,) of the existing pairs.

    Padded, n is B // 2. Otherwise all n pairs exist, the mask is None, and labels are on the CPU, where numpy finds the
    pairs in a quarter of torch's time.
    """
    if not padded:
        numbers = labels.numpy()
        by_label = np.argsort(numbers, kind="stable")
        same = numbers[by_label[1:]] == numbers[by_label[:-1]]
        first = same.copy()  # a repetition without an earlier one
        first[1:] &= ~same[:-1]
        positions = np.flatnonzero(first)
        return torch.from_numpy(by_label[positions]), torch.from_numpy(by_label[positions + 1]), None
    order = labels.argsort(stable=True)
    ranked = labels[order]
    repeats = ranked[1:] == ranked[:-1]
    starts = repeats.clone()  # a repetition without an earlier one
    starts[1:] &= ~repeats[:-1]
    rows = (~starts).to(torch.uint8).argsort(stable=True)[: len(labels) // 2]
    return order[rows], order[rows + 1], starts[rows]
