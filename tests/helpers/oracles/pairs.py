"""Naive oracles of the pair-based losses: loops written from the formulas of docs/specification.md, nothing shared.

`ORACLES[name](embeddings, labels, **knobs)` is a scalar on autograd's graph. Use float64 and small batches.
"""

import math

import torch
from torch.nn.functional import softmax

from helpers.oracles.naming import oracles_by_name

ORACLES, oracle = oracles_by_name()


class Batch:
    """Cosines S[i, j] of raw embeddings, and index sets P[i], N[i]."""

    def __init__(self, embeddings, labels):
        unit = embeddings / embeddings.norm(dim=1, keepdim=True)
        rows = (unit @ unit.T).unbind()  # one backward step for all entries, instead of one per S[i, j]
        self.S = {(i, j): cosine for i, row in enumerate(rows) for j, cosine in enumerate(row.unbind())}
        self.y = labels.tolist()
        self.B = len(self.y)
        self.zero = 0 * embeddings.sum()
        everyone = range(self.B)
        self.P = [[j for j in everyone if j != i and self.y[j] == self.y[i]] for i in everyone]
        self.N = [[j for j in everyone if self.y[j] != self.y[i]] for i in everyone]
        self.positives = [(i, j) for i in everyone for j in self.P[i]]
        self.unordered = [(i, j) for i in everyone for j in range(i + 1, self.B)]

    def z(self, i, j):
        return 1 if self.y[i] == self.y[j] else -1

    def d2(self, i, j):
        return 2 - 2 * self.S[i, j]

    def mean(self, terms):
        return torch.stack(terms).mean() if terms else self.zero


def pair_loss(batch, i, j, *, base, margin, threshold, beta_pos, beta_neg):
    z, s = batch.z(i, j), batch.S[i, j]
    if base == "margin":
        return (margin + z * (threshold - s)).clamp_min(0)
    b = beta_pos if z > 0 else beta_neg
    x = -b * z * (s - threshold)
    return 2 / b * (x.clamp_min(0) + torch.log1p(torch.exp(-x.abs())))


def margin_loss(batch, i, j, margin, threshold):
    return pair_loss(batch, i, j, base="margin", margin=margin, threshold=threshold, beta_pos=0, beta_neg=0)


def lse(terms):
    return torch.logsumexp(torch.stack(terms), dim=0)


@oracle("triplet")
def triplet(f, y, *, margin):
    b = Batch(f, y)
    terms = []
    for a, p in b.positives:
        for n in b.N[a]:
            terms.append((b.d2(a, p) - b.d2(a, n) + margin).clamp_min(0))
    return b.mean(terms)


@oracle("semihard_triplet")
def semihard_triplet(f, y, *, margin):
    b = Batch(f, y)
    terms = []
    for a, p in b.positives:
        farther = [n for n in b.N[a] if b.d2(a, n) > b.d2(a, p)]
        if farther:
            n = min(farther, key=lambda n: b.d2(a, n).item())
        elif b.N[a]:
            n = max(b.N[a], key=lambda n: b.d2(a, n).item())
        else:
            continue
        terms.append((b.d2(a, p) - b.d2(a, n) + margin).clamp_min(0))
    return b.mean(terms)


@oracle("npair")
def npair(f, y, *, scale):
    b = Batch(f, y)
    couples = []
    for c in sorted(set(b.y)):
        members = [i for i in range(b.B) if b.y[i] == c]
        if len(members) >= 2:
            couples.append((members[0], members[1]))
    terms = []
    for a, p in couples:
        logits = torch.stack([scale * b.S[a, other] for _, other in couples])
        terms.append(torch.logsumexp(logits, dim=0) - scale * b.S[a, p])
    return b.mean(terms)


@oracle("multi_similarity")
def multi_similarity(f, y, *, alpha, beta, base, epsilon):
    b = Batch(f, y)
    total = b.zero
    for i in range(b.B):
        if not b.P[i] or not b.N[i]:
            continue
        lowest = min(b.S[i, p].item() for p in b.P[i])
        highest = max(b.S[i, n].item() for n in b.N[i])
        kept_n = [n for n in b.N[i] if b.S[i, n].item() + epsilon > lowest]
        kept_p = [p for p in b.P[i] if b.S[i, p].item() - epsilon < highest]
        if kept_n and kept_p:
            total = total + lse([b.zero] + [-alpha * (b.S[i, p] - base) for p in kept_p]) / alpha
            total = total + lse([b.zero] + [beta * (b.S[i, n] - base) for n in kept_n]) / beta
    return total / b.B


@oracle("tuplet_margin")
def tuplet_margin(f, y, *, margin, scale, ipv_weight, ipv_epsilon):
    b = Batch(f, y)
    if not b.positives:
        return b.zero
    terms = []
    for a, p in b.positives:
        theta = torch.acos(b.S[a, p].clamp(-1 + 1e-7, 1 - 1e-7))
        if b.N[a]:
            terms.append(lse([b.zero] + [scale * (b.S[a, n] - torch.cos(theta - margin)) for n in b.N[a]]))
    negatives = [(i, j) for i in range(b.B) for j in b.N[i]]
    variance = b.zero
    mean_p = b.mean([b.S[pair] for pair in b.positives])
    mean_n = b.mean([b.S[pair] for pair in negatives])
    variance = b.mean([((1 - ipv_epsilon) * mean_p - b.S[pair]).clamp_min(0) ** 2 for pair in b.positives])
    variance = variance + b.mean([(b.S[pair] - (1 + ipv_epsilon) * mean_n).clamp_min(0) ** 2 for pair in negatives])
    return b.mean(terms) + ipv_weight * variance


@oracle("margin_all")
def margin_all(f, y, *, margin, threshold, denominator):
    b = Batch(f, y)
    terms = [margin_loss(b, i, j, margin, threshold) for i, j in b.unordered]
    return b.mean([term for term in terms if denominator == "all" or term.item() > 0])


@oracle("contrastive")
def contrastive(f, y, *, margin, threshold):
    b = Batch(f, y)
    losses = {1: [], -1: []}
    for i, j in b.unordered:
        losses[b.z(i, j)].append(margin_loss(b, i, j, margin, threshold))
    return b.mean(losses[1]) + b.mean(losses[-1])


@oracle("binomial")
def binomial(f, y, *, threshold, beta_pos, beta_neg):
    b = Batch(f, y)
    knobs = {"base": "binomial", "margin": 0, "threshold": threshold, "beta_pos": beta_pos, "beta_neg": beta_neg}
    return b.mean([pair_loss(b, i, j, **knobs) for i, j in b.unordered])


@oracle("dro_topk")
def dro_topk(f, y, *, k, denominator="k", **knobs):
    b = Batch(f, y)
    ranked = sorted((pair_loss(b, i, j, **knobs) for i, j in b.unordered), key=lambda loss: -loss.item())
    chosen = ranked[:k]
    if denominator == "nonzero":
        chosen = [loss for loss in chosen if loss.item() > 0]
    return b.mean(chosen)


@oracle("dro_topk_pn")
def dro_topk_pn(f, y, *, k, **knobs):
    b = Batch(f, y)
    ranked = {1: [], -1: []}
    for i, j in b.unordered:
        ranked[b.z(i, j)].append(pair_loss(b, i, j, **knobs))
    for losses in ranked.values():
        losses.sort(key=lambda loss: -loss.item())
    positives = ranked[1][: k // 2]
    wanted = len(positives) if 0 < len(positives) < k // 2 else k // 2
    return b.mean(positives + ranked[-1][:wanted])


@oracle("dro_kl")
def dro_kl(f, y, *, gamma, samples, weights, drop_zeros, sampling_seed, **knobs):
    b = Batch(f, y)
    losses = [pair_loss(b, i, j, **knobs) for i, j in b.unordered]
    if drop_zeros:
        losses = [loss for loss in losses if loss.item() > 0]
    if not losses:
        return b.zero
    if weights == "softmax" and samples is None:
        return gamma * (lse([loss / gamma for loss in losses]) - math.log(len(losses)))
    exponents = [loss.item() / gamma for loss in losses]
    raw = [math.exp(x) if weights == "softmax" else math.expm1(x) for x in exponents]
    if sum(raw) == 0:
        return b.zero
    p = [w / sum(raw) for w in raw]
    if samples is None:
        return sum(weight * loss for weight, loss in zip(p, losses, strict=True))
    uniform = torch.rand((1, samples), generator=torch.Generator().manual_seed(sampling_seed))[0].tolist()
    drawn = [pick(p, u) for u in uniform]
    return b.mean([losses[index] for index in drawn])


def pick(weights, u):
    """The first index at which the running sum of the weights exceeds u times their total."""
    running, target = 0.0, u * sum(weights)
    for index, weight in enumerate(weights):
        running += weight
        if running > target:
            return index
    raise AssertionError("u must be below 1")


@oracle("dro_kl_grouped")
def dro_kl_grouped(f, y, *, gamma, margin, threshold, drop_zeros, reduction):
    b = Batch(f, y)
    total = b.zero
    for i in range(b.B):
        for group in (b.P[i], b.N[i]):
            losses = [margin_loss(b, i, j, margin, threshold) for j in group]
            if drop_zeros:
                losses = [loss for loss in losses if loss.item() > 0]
            if losses:
                total = total + gamma * (lse([loss / gamma for loss in losses]) - math.log(len(losses)))
    return total if reduction == "sum" else total / b.B


@oracle("lifted_structure")
def lifted_structure(f, y, *, threshold, margin, reduction):
    b = Batch(f, y)
    total = b.zero
    for i in range(b.B):
        if not b.P[i] and not b.N[i]:
            continue
        bracket = b.zero + margin
        if b.P[i]:
            bracket = bracket + lse([threshold - b.S[i, p] for p in b.P[i]])
        if b.N[i]:
            bracket = bracket + lse([b.S[i, n] - threshold for n in b.N[i]])
        total = total + bracket.clamp_min(0)
    return total if reduction == "sum" else total / b.B


@oracle("hap2s")
def hap2s(f, y, *, gamma, margin):
    b = Batch(f, y)
    total = b.zero
    for i in range(b.B):
        if not b.P[i] or not b.N[i]:
            continue
        positives = torch.stack([b.S[i, p] for p in b.P[i]])
        negatives = torch.stack([b.S[i, n] for n in b.N[i]])
        near = (softmax(-positives / gamma, dim=0).detach() * positives).sum()
        far = (softmax(negatives / gamma, dim=0).detach() * negatives).sum()
        total = total + (far - near + margin).clamp_min(0)
    return total / b.B


def mined_margin(b, chosen, margin, threshold):
    return b.mean([margin_loss(b, i, j, margin, threshold) for i, j in b.positives + chosen])


def fresh_uniform(b, seed):
    return torch.rand((b.B, b.B), generator=torch.Generator().manual_seed(seed)).tolist()


@oracle("margin_semihard")
def margin_semihard(f, y, *, margin, threshold, sampling_seed):
    b = Batch(f, y)
    keys = fresh_uniform(b, sampling_seed)
    chosen = []
    for i in range(b.B):
        semihard = [j for j in b.N[i] if threshold - margin < b.S[i, j].item() < threshold]
        semihard.sort(key=lambda j: keys[i][j])
        chosen += [(i, j) for j in semihard[: len(b.P[i])]]
    return mined_margin(b, chosen, margin, threshold)


def dws_log_weight(s, d):
    """log 1/q(D) with the cutoffs; -inf for pairs that are too far."""
    distance = max(math.sqrt(max(2 - 2 * s, 0)), 0.5)
    if distance >= 1.4:
        return -math.inf
    return (2 - d) * math.log(distance) - (d - 3) / 2 * math.log(1 - distance**2 / 4)


@oracle("margin_dws")
def margin_dws(f, y, *, margin, threshold, dws_normalise, sampling_seed):
    b = Batch(f, y)
    uniform = fresh_uniform(b, sampling_seed)
    logs = [[dws_log_weight(b.S[i, j].item(), f.shape[1]) for j in b.N[i]] for i in range(b.B)]
    everywhere = max((value for row in logs for value in row), default=0)
    chosen = []
    for i in range(b.B):
        top = everywhere if dws_normalise == "global" else max(logs[i], default=0)
        weights = [math.exp(value - top) if value > -math.inf else 0 for value in logs[i]]
        if sum(weights) > 0:
            chosen += [(i, b.N[i][pick(weights, uniform[i][j])]) for j in b.P[i]]
    return mined_margin(b, chosen, margin, threshold)
