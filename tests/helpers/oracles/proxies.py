"""Naive oracles of the proxy and classification losses and of NT-Xent: loops over the formulas of docs/specification.md.

`ORACLES[name](embeddings, labels, *, proxies, **knobs)` is a scalar on autograd's graph; `nt_xent` takes no proxies.
Nothing is shared with the losses themselves. Use float64 and small batches.
"""

import math

import torch

from helpers.oracles.naming import oracles_by_name

ORACLES, oracle = oracles_by_name()


def unit(vectors):
    return vectors / vectors.norm(dim=-1, keepdim=True)


def lse(terms, *, one=False):
    """log Σ e^x, or log(1 + Σ e^x); plain except for the shift by the largest term."""
    terms = torch.stack([*terms, torch.zeros((), dtype=torch.float64)] if one else list(terms))
    top = terms.max().item()
    return top + torch.exp(terms - top).sum().log()


class Batch:
    """Cosines s[i][c][k] and, pooled over k, similarities S[i][c]."""

    def __init__(self, embeddings, labels, proxies, gamma=1.0):
        self.y = labels.tolist()
        self.B, self.C, self.K = len(self.y), proxies.shape[0], proxies.shape[1]
        self.fh, self.wh = unit(embeddings).unbind(), [own.unbind() for own in unit(proxies)]
        s = torch.einsum("id,ckd->ick", unit(embeddings), unit(proxies))
        weights = torch.exp(s / gamma - s.amax(2, keepdim=True) / gamma)
        self.S = [row.unbind() for row in (weights * s).sum(2) / weights.sum(2)]

    def regularizer(self):
        if self.K == 1:
            return 0.0
        total = 0.0
        for c in range(self.C):
            for s in range(self.K):
                for t in range(s):
                    total = total + torch.sqrt(2 - 2 * self.wh[c][s] @ self.wh[c][t] + 1e-5)
        return total / (self.C * self.K * (self.K - 1))


def cross_entropy(logits, target):
    return lse(logits) - logits[target]


@oracle("proxy_nca")
def proxy_nca(embeddings, labels, *, proxies, scale=3.0, include_positive=False):
    batch = Batch(embeddings, labels, proxies)
    total = 0.0
    for i, y in enumerate(batch.y):
        D2 = [(scale * batch.fh[i] - scale * batch.wh[c][0]).square().sum() for c in range(batch.C)]
        total = total + D2[y] + lse([-D2[c] for c in range(batch.C) if include_positive or c != y])
    return total / batch.B


@oracle("proxy_nca_pp")
def proxy_nca_pp(embeddings, labels, *, proxies, temperature):
    batch = Batch(embeddings, labels, proxies)
    total = 0.0
    for i, y in enumerate(batch.y):
        D2 = [(batch.fh[i] - batch.wh[c][0]).square().sum() / temperature for c in range(batch.C)]
        total = total + D2[y] + lse([-D2[c] for c in range(batch.C)])
    return total / batch.B


@oracle("proxy_anchor")
def proxy_anchor(embeddings, labels, *, proxies, alpha=32.0, delta=0.1):
    batch = Batch(embeddings, labels, proxies)
    return pull(batch, alpha, delta) + push(batch, alpha, delta, range(batch.C))


def pull(batch, alpha, delta):
    present = sorted(set(batch.y))
    terms = [
        lse([-alpha * (batch.S[i][c] - delta) for i in range(batch.B) if batch.y[i] == c], one=True) for c in present
    ]
    return sum(terms) / len(present)


def push(batch, alpha, delta, classes):
    terms = [
        lse([alpha * (batch.S[i][c] + delta) for i in range(batch.B) if batch.y[i] != c], one=True) for c in classes
    ]
    return sum(terms) / len(classes)


@oracle("mpa")
def mpa(embeddings, labels, *, proxies, proxies_per_class=10, alpha=32.0, delta=0.1, gamma=0.1, tau=0.2):
    batch = Batch(embeddings, labels, proxies, gamma)
    with_negative = [c for c in range(batch.C) if any(y != c for y in batch.y)]
    return pull(batch, alpha, delta) + push(batch, alpha, delta, with_negative) + tau * batch.regularizer()


@oracle("mpa_dw")
def mpa_dw(embeddings, labels, *, proxies, proxies_per_class=10, alpha=32.0, delta=0.1, gamma=0.1, tau=0.2):
    batch = Batch(embeddings, labels, proxies, gamma)
    total = 0.0
    for i, y in enumerate(batch.y):
        total = total + lse([-alpha * (batch.S[i][y] - delta)], one=True)
        total = total + lse([alpha * (batch.S[i][c] + delta) for c in range(batch.C) if c != y], one=True)
    return total / batch.B + tau * batch.regularizer()


@oracle("mpa_ap")
def mpa_ap(embeddings, labels, *, proxies, proxies_per_class=10, alpha=32.0, delta=0.1, gamma=0.1, tau=0.2):
    batch = Batch(embeddings, labels, proxies, gamma)
    total = 0.0
    for i, y in enumerate(batch.y):
        S = [delta - batch.S[i][c] if c == y else batch.S[i][c] + delta for c in range(batch.C)]
        total = total + lse([alpha * value for value in S], one=True)
    return total / batch.B + tau * batch.regularizer()


@oracle("soft_triple")
def soft_triple(embeddings, labels, *, proxies, proxies_per_class=10, la=20.0, delta=0.01, gamma=0.1, tau=0.2):
    batch = Batch(embeddings, labels, proxies, gamma)
    total = 0.0
    for i, y in enumerate(batch.y):
        logits = [la * (batch.S[i][c] - (delta if c == y else 0)) for c in range(batch.C)]
        total = total + cross_entropy(logits, y)
    return total / batch.B + tau * batch.regularizer()


def classification(embeddings, labels, proxies, scale_of, psi):
    batch = Batch(embeddings, labels, proxies)
    total = 0.0
    for i, y in enumerate(batch.y):
        logits = [scale_of(embeddings[i]) * (psi(batch.S[i][c]) if c == y else batch.S[i][c]) for c in range(batch.C)]
        total = total + cross_entropy(logits, y)
    return total / batch.B


@oracle("softmax")
def softmax(embeddings, labels, *, proxies, scale=64.0):
    return classification(embeddings, labels, proxies, lambda f: scale, lambda cosine: cosine)


@oracle("cosface")
def cosface(embeddings, labels, *, proxies, margin=0.35, scale=64.0):
    return classification(embeddings, labels, proxies, lambda f: scale, lambda cosine: cosine - margin)


@oracle("arcface")
def arcface(embeddings, labels, *, proxies, margin=0.5, scale=64.0):
    def psi(cosine):
        theta = torch.acos(cosine)
        return torch.cos(theta + margin) if theta <= math.pi - margin else cosine - margin * math.sin(margin)

    return classification(embeddings, labels, proxies, lambda f: scale, psi)


@oracle("sphereface")
def sphereface(embeddings, labels, *, proxies, margin=4, annealing=0.0):
    def psi(cosine):
        theta = torch.acos(cosine)
        k = min(math.floor(margin * float(theta.detach()) / math.pi), margin - 1)
        plain = (-1) ** k * torch.cos(margin * theta) - 2 * k
        return (annealing * cosine + plain) / (1 + annealing)

    return classification(embeddings, labels, proxies, torch.linalg.vector_norm, psi)


@oracle("nt_xent")
def nt_xent(embeddings, labels, *, temperature=0.5):
    fh, y = unit(embeddings), labels.tolist()
    terms = []
    for i in range(len(y)):
        negatives = [fh[i] @ fh[n] / temperature for n in range(len(y)) if y[n] != y[i]]
        for p in range(len(y)):
            if p != i and y[p] == y[i]:
                positive = fh[i] @ fh[p] / temperature
                terms.append(lse([positive, *negatives]) - positive)
    return torch.stack(terms).mean() if terms else 0 * embeddings.sum()
