"""Naive oracles of later losses and the chi-squared set: docs/specification.md, sections 2.7 to 2.9 and 5.9."""

import torch

from helpers.oracles.naming import oracles_by_name
from helpers.oracles.pairs import Batch, lse, pair_loss

ORACLES, oracle = oracles_by_name()


@oracle("supcon")
def supcon(f, y, *, temperature):
    b = Batch(f, y)
    terms = []
    for i in range(b.B):
        if b.P[i]:
            everyone = lse([b.S[i, a] / temperature for a in range(b.B) if a != i])
            terms.append(sum(everyone - b.S[i, p] / temperature for p in b.P[i]) / len(b.P[i]))
    return b.mean(terms)


@oracle("circle")
def circle(f, y, *, margin, scale):
    b = Batch(f, y)
    total = b.zero
    for i in range(b.B):
        if not b.P[i] or not b.N[i]:
            continue
        pull, push = [], []
        for p in b.P[i]:
            weight = max(0.0, 1 + margin - b.S[i, p].item())
            pull.append(-scale * weight * (b.S[i, p] - (1 - margin)))
        for n in b.N[i]:
            weight = max(0.0, b.S[i, n].item() + margin)
            push.append(scale * weight * (b.S[i, n] - margin))
        total = total + lse([b.zero, lse(pull) + lse(push)])
    return total / b.B


@oracle("recall_at_k_surrogate")
def recall_at_k_surrogate(f, y, *, ks, rank_temperature, k_temperature):
    b = Batch(f, y)
    terms = []
    for q in range(b.B):
        if not b.P[q]:
            continue
        recalls = []
        for k in ks:
            found = b.zero
            for x in b.P[q]:
                rank = 1 + b.zero
                for z in range(b.B):
                    if z not in (q, x):
                        rank = rank + torch.sigmoid((b.S[q, z] - b.S[q, x]) / rank_temperature)
                found = found + torch.sigmoid((k - rank) / k_temperature)
            found = found if found.item() < k else found.new_tensor(float(k))
            recalls.append(found / min(k, len(b.P[q])))
        terms.append(1 - sum(recalls) / len(recalls))
    return b.mean(terms)


@oracle("dro_chi2")
def dro_chi2(f, y, *, radius, base, margin, threshold, beta_pos, beta_neg, drop_zeros):
    b = Batch(f, y)
    terms = {"base": base, "margin": margin, "threshold": threshold, "beta_pos": beta_pos, "beta_neg": beta_neg}
    losses = [pair_loss(b, i, j, **terms) for i, j in b.unordered]
    losses = [loss for loss in losses if loss.item() > 0 or not drop_zeros]
    if not losses:
        return b.zero
    values = [loss.item() for loss in losses]
    p = chi2_weights(values, radius)
    return sum(weight * loss for weight, loss in zip(p, losses, strict=True))


def chi2_weights(values, radius):
    """The p of the simplex with sum p l largest among those with (1 / 2n) sum (n p - 1)^2 <= radius, by bisection.

    p is proportional to (l - eta)_+, and grows more unequal with eta.
    """
    n, top = len(values), max(values)
    ties = sum(value == top for value in values)
    if n / ties <= 1 + 2 * radius:  # even the largest alone are within the ball
        return [(value == top) / ties for value in values]

    def weights(eta):
        raw = [max(0.0, value - eta) for value in values]
        return [w / sum(raw) for w in raw]

    spread = top - min(values)
    low, high = top - 1e9 * max(spread, 1e-9), top
    for _ in range(300):
        middle = (low + high) / 2
        if middle >= top:
            break
        p = weights(middle)
        if sum((n * w - 1) ** 2 for w in p) / (2 * n) <= radius:
            low = middle
        else:
            high = middle
    return weights(low) if radius else [1 / n] * n
