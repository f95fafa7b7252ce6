"""Embeddings, and comparisons of values and gradients, for the tests of losses."""

import torch

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3])


def raw(n=12, seed=0, spread=0.5, d=6):
    """Return embeddings (n, d) around a common direction."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, d, generator=generator, dtype=torch.float64) + spread).requires_grad_()


def evaluate(loss, embeddings, labels=LABELS):
    """Return the value and its gradient with respect to the embeddings."""
    value = loss(embeddings, labels)
    return value.detach(), torch.autograd.grad(value, embeddings)[0]


def assert_same(loss, peer, embeddings, labels=LABELS, *, rtol=1e-10, atol=1e-13):
    """Compare value and gradient of two losses."""
    for one, other in zip(evaluate(loss, embeddings, labels), evaluate(peer, embeddings, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)
