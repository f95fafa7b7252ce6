"""Losses that compare a positive pair with many negatives at once: N-pair, tuplet margin, NT-Xent, SupCon and Circle.

>>> import torch
>>> from trainables.losses import build_loss
>>> views, pictures = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 3.0]]), torch.tensor([0, 0, 1, 1])
>>> round(build_loss("nt_xent", temperature=1.0)(views, pictures).item(), 4)  # -1 + log(e^1 + 2 e^0)
0.5514
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.losses.base import Loss, normalise
from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.soft_maximum import log_sum_exp
from trainables.losses.parts.uncertainty import Entropic

_COSINE_LIMIT = 1e-7  # cosines are kept this far from +-1, where the slope of sin(acos S) is infinite


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
        unit = normalise(embeddings[torch.cat((anchors, positives))])
        logits = self.scale * (unit[:count] @ unit[count:].T)
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
    """Return indices (n,) of anchors and of positives in the order of the labels, and a mask (n,) of the pairs that exist.

    Padded, n is B // 2. Otherwise all n pairs exist, the mask is None, and the host waits for n.
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


class TupletMarginLoss(PairLoss):
    """L = mean over ordered positive pairs of lse0_{n in N_a}(s (S_an - cos(theta_ap - margin))) + ipv_weight * V.

    V = mean_pos [(1 - eps) Sbar_p - S_p]²_+ + mean_neg [S_n - (1 + eps) Sbar_n]²_+, Sbar the batch's mean positive /
    negative cosine (not held constant). cos(theta - margin) = S cos(margin) + sqrt(1 - S²) sin(margin). The loss is 0 for
    a batch without positive pairs.
    """

    name = "tuplet_margin"
    citation = "Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019"
    section = "2.5"

    def __init__(
        self,
        *,
        margin: Annotated[float, Field(ge=0, lt=math.pi / 2, description="angular margin, radians")] = 0.1,
        scale: Annotated[float, Field(gt=0, description="scale s of the cosines")] = 64.0,
        ipv_weight: Annotated[float, Field(ge=0, description="weight of the intra-pair variance loss")] = 0.5,
        ipv_epsilon: Annotated[float, Field(ge=0, lt=1, description="slack around the mean cosines")] = 0.01,
    ):
        super().__init__()
        self.margin = margin
        self.scale = scale
        self.ipv_weight = ipv_weight
        self.ipv_epsilon = ipv_epsilon
        self.negative_set = Entropic(1 / scale, counting=True)

    def solve(self, pairs: Pairs) -> Solution:
        """With v_a = lse_n(s S_an) / s a pair's term is softplus(s (v_a - cos(theta_ap - margin))): no triplets needed."""
        target, target_slopes = self._shifted(pairs.similarity)
        hardest, p = self.negative_set.worst_case(pairs.similarity, pairs.negative)
        exponent = (hardest[:, None] - target).mul_(self.scale)
        valid = pairs.positive & pairs.negative.any(dim=1, keepdim=True)
        count = valid.sum().clamp_min(1).to(exponent.dtype)
        # softplus turns linear above its threshold; at 50 that is exact in double precision too.
        value = nn.functional.softplus(exponent, threshold=50).masked_fill_(~valid, 0).sum() / count
        pull = exponent.sigmoid_().masked_fill_(~valid, 0).mul_(self.scale / count)
        slopes = p.mul_(pull.sum(dim=1, keepdim=True)).sub_(pull.mul_(target_slopes))
        if self.ipv_weight:
            variance, variance_slopes = self._variance(pairs)
            value += self.ipv_weight * variance
            slopes.add_(variance_slopes, alpha=self.ipv_weight)
        return Solution(value, slopes)

    def _shifted(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos(theta - margin) and its derivative with respect to S, both (B, B)."""
        cosine = similarity.clamp(-1 + _COSINE_LIMIT, 1 - _COSINE_LIMIT)
        sine = (1 - cosine.square()).sqrt_()
        cos_margin, sin_margin = math.cos(self.margin), math.sin(self.margin)
        slopes = (cos_margin - sin_margin * cosine / sine).mul_(cosine == similarity)
        return cosine.mul_(cos_margin).add_(sine, alpha=sin_margin), slopes

    def _variance(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return V and dV/dS; 0 without positive pairs."""
        value, slopes = torch.zeros_like(pairs.similarity[0, 0]), torch.zeros_like(pairs.similarity)
        present = pairs.positive.any()
        for mask, sign in ((pairs.positive, -1.0), (pairs.negative, 1.0)):
            weight = mask.to(slopes.dtype).mul_(present) / mask.sum().clamp_min(1).to(slopes.dtype)
            level = 1 + sign * self.ipv_epsilon
            mean = (weight * pairs.similarity).sum()
            hinge = (pairs.similarity - level * mean).mul_(sign).clamp_min_(0)
            value = value + (weight * hinge.square()).sum()
            slopes += 2 * sign * weight * (hinge - level * (weight * hinge).sum())
        return value, slopes


class NTXentLoss(PairLoss):
    """L = mean over ordered positive pairs (i, p) of -S_ip/T + log(e^{S_ip/T} + Σ_{n in N_i} e^{S_in/T}).

    Two views of one image share a label. With two items of every label the denominator holds every other item: SimCLR's
    loss of 2N views. With more than two it leaves the other positives out, as in pytorch-metric-learning.
    """

    name = "nt_xent"
    citation = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020"
    section = "4"

    def __init__(self, *, temperature: Annotated[float, Field(ge=1e-4, description="temperature T")] = 0.5):
        super().__init__()
        self.temperature = temperature

    def solve(self, pairs: Pairs) -> Solution:
        """Value and slopes: with Λ_i = log Σ_n e^{S_in / T}, a pair's loss is softplus(Λ_i - S_ip / T)."""
        logits = pairs.similarity / self.temperature
        total, shares = log_sum_exp(logits.masked_fill(~pairs.negative, -torch.inf), dim=1)
        excess = (total[:, None] - logits).masked_fill_(~pairs.positive, -torch.inf)
        count = pairs.positive.sum().clamp_min(1).to(logits.dtype)
        pull = excess.sigmoid().div_(count * self.temperature)
        slopes = shares.mul_(pull.sum(dim=1, keepdim=True)).sub_(pull)
        # nn.functional.softplus is linear beyond 20; this is exact everywhere.
        return Solution(-nn.functional.logsigmoid(-excess).sum() / count, slopes)


class SupConLoss(PairLoss):
    """L = mean over anchors i of -(1/P_i) Σ_{p in P_i} [S_ip/T - log Σ_{a != i} e^{S_ia/T}], the paper's L_out.

    The denominator holds every other picture of the batch, including the other positives (NT-Xent leaves these out). The
    mean is over the anchors that have a positive; the loss is 0 where none has.
    """

    name = "supcon"
    citation = "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020"
    section = "2.7"

    def __init__(self, *, temperature: Annotated[float, Field(ge=1e-4, description="temperature T")] = 0.1):
        super().__init__()
        self.temperature = temperature

    def solve(self, pairs: Pairs) -> Solution:
        """Value and slopes: each anchor is a cross entropy with its positives as equal targets."""
        logits = pairs.similarity / self.temperature
        targets = pairs.positive / pairs.positive.sum(dim=1, keepdim=True).clamp_min(1).to(logits.dtype)
        anchors = pairs.positive.any(dim=1)
        mean = (targets * logits).sum(dim=1)
        others = pairs.positive | pairs.negative
        total, shares = log_sum_exp(logits.masked_fill_(~others, -torch.inf), dim=1)
        count = anchors.sum().clamp_min(1).to(logits.dtype)
        value = (total - mean).masked_fill_(~anchors, 0).sum() / count
        weight = anchors[:, None] / (count * self.temperature)
        return Solution(value, shares.sub_(targets).mul_(weight))


class CircleLoss(PairLoss):
    """L = (1/B) Σ_i log(1 + Σ_n e^{s a_n (S_in - m)} Σ_p e^{-s a_p (S_ip - 1 + m)}), a_n = [S_in + m]_+, a_p = [1 + m - S_ip]_+.

    The weights a are held constant (the paper's code), so the gradient is not that of the value. An anchor without a
    positive or without a negative contributes 0; the mean is over all B anchors. Margin and scale are those of the
    paper's fine-grained retrieval.
    """

    name = "circle"
    citation = "Sun et al., Circle Loss: A Unified Perspective of Pair Similarity Optimization, CVPR 2020"
    section = "2.8"
    surrogate_gradient = True

    def __init__(
        self,
        *,
        margin: Annotated[float, Field(ge=0, le=1, description="relaxation m: optima 1 + m and -m")] = 0.4,
        scale: Annotated[float, Field(gt=0, description="scale s")] = 80.0,
    ):
        super().__init__()
        self.margin = margin
        self.scale = scale

    def solve(self, pairs: Pairs) -> Solution:
        """With the two log-sum-exps v+ and v- of an anchor its loss is softplus(v+ + v-)."""
        similarity, m = pairs.similarity, self.margin
        pull = (1 + m - similarity).clamp_min_(0).mul_(-self.scale)
        push = (similarity + m).clamp_min_(0).mul_(self.scale)
        positive, positive_shares = log_sum_exp(
            (pull * (similarity - (1 - m))).masked_fill_(~pairs.positive, -torch.inf), dim=1
        )
        negative, negative_shares = log_sum_exp(
            (push * (similarity - m)).masked_fill_(~pairs.negative, -torch.inf), dim=1
        )
        both = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
        exponent = torch.where(both, positive + negative, -torch.inf)
        # nn.functional.softplus is linear beyond 20; this is exact everywhere.
        value = -nn.functional.logsigmoid(-exponent).mean()
        slopes = pull.mul_(positive_shares).add_(push.mul_(negative_shares))
        return Solution(value, slopes.mul_(exponent.sigmoid()[:, None] / len(similarity)))
