"""NT-Xent: SimCLR's formula, agreement with pytorch-metric-learning, and unusual batches."""

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss as Theirs
from pytorch_metric_learning.losses import SelfSupervisedLoss

from trainables.losses import build_loss


def views(n=6, d=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2 * n, d, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("labels", [[0, 1, 2] * 2, [0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 2]])
def test_agrees_with_pytorch_metric_learning_for_any_labels(labels):
    f, labels = views(3), torch.tensor(labels)
    value, truth = build_loss("nt_xent", temperature=0.2)(f, labels), Theirs(temperature=0.2)(f, labels)
    torch.testing.assert_close(value, truth, rtol=1e-12, atol=0)
    found, expected = (torch.autograd.grad(v, f)[0] for v in (value, truth))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_agrees_with_the_self_supervised_wrapper():
    f = views(4)
    theirs = SelfSupervisedLoss(Theirs(temperature=0.5))(f[:4], f[4:])
    torch.testing.assert_close(build_loss("nt_xent")(f, torch.arange(4).repeat(2)), theirs, rtol=1e-12, atol=0)


def test_a_tiny_temperature_is_finite_in_float32():
    f = views(dtype=torch.float32)
    value = build_loss("nt_xent", temperature=1e-4)(f, torch.arange(6).repeat(2))
    assert value.isfinite()
    assert torch.autograd.grad(value, f)[0].isfinite().all()
