"""Losses, metrics and views have the CPU's numbers on a CUDA device."""

import copy

import numpy as np
import pytest
import torch
from helpers.cuda import CPU, DEVICE, ON_DEVICE

from trainables.data.augment import build_augmentation
from trainables.losses import LOSSES
from trainables.metrics import retrieval_metrics
from trainables.metrics.clustering import clustering_metrics
from trainables.metrics.linear_evaluation import fit_linear_probes
from trainables.models.views import Views
from trainables.regularizers import REGULARIZERS
from trainables.testing import Method, batch

pytestmark = ON_DEVICE


def both(method):
    """Return (value, slope) on the CPU, and on the device for the same module and batch."""
    embeddings, numbers = batch(dtype=torch.float64)
    module = method.build()
    if getattr(module, "needs_mean", False):
        module.set_mean(1.0)
    twin = copy.deepcopy(module).to(DEVICE)
    moved = embeddings.detach().to(DEVICE).requires_grad_()
    found = []
    for part, given, classes in ((module, embeddings, numbers), (twin, moved, numbers.to(DEVICE))):
        value = method.value(given, classes, part)
        found.append((value.detach().cpu(), torch.autograd.grad(value, given)[0].cpu()))
    return found


@pytest.mark.parametrize("method", [*LOSSES.values(), *REGULARIZERS.values()], ids=lambda cls: cls.name)
def test_value_and_gradient_equal_those_of_the_cpu(method):
    (value, slope), (other, slant) = both(Method(method))
    torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slant, slope, rtol=1e-7, atol=1e-11)


@pytest.fixture(scope="module")
def embedded():
    """Overlapping classes, a few vectors twice: ties must be counted the same way."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(60, (900,), generator=generator)
    centres = torch.randn(60, 32, generator=generator, dtype=torch.float64)
    vectors = centres[labels] + 1.5 * torch.randn(900, 32, generator=generator, dtype=torch.float64)
    vectors[-40:] = vectors[:40]
    return vectors, labels


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_metrics_equal_those_of_the_cpu(embedded, dtype):
    vectors, labels = embedded[0].to(dtype), embedded[1]
    ks = (1, 2, 10, 100)
    expected = retrieval_metrics(vectors, labels, ks)
    assert retrieval_metrics(vectors.to(DEVICE), labels.to(DEVICE), ks) == pytest.approx(expected, abs=0.02)
    gallery = (vectors[300:], labels[300:])
    expected = retrieval_metrics(vectors[:300], labels[:300], ks, gallery=gallery)
    moved = (gallery[0].to(DEVICE), gallery[1].to(DEVICE))
    found = retrieval_metrics(vectors[:300].to(DEVICE), labels[:300].to(DEVICE), ks, gallery=moved)
    assert found == pytest.approx(expected, abs=0.02)


def test_clusters_equal_those_of_the_cpu(embedded):
    vectors, labels = embedded
    expected = clustering_metrics(vectors, labels, backend="sklearn")
    assert clustering_metrics(vectors.to(DEVICE), labels.to(DEVICE), backend="sklearn") == pytest.approx(expected)


def test_linear_probes_equal_those_of_the_cpu(embedded):
    vectors, labels = embedded[0], embedded[1] % 5
    given = {"num_classes": 5, "lrs": (0.1, 1.0), "epochs": 3, "batch_size": 100, "seed": 0}
    expected = fit_linear_probes(vectors, labels, **given)
    found = fit_linear_probes(vectors.to(DEVICE), labels.to(DEVICE), **given)
    for there, here in ((found.weight, expected.weight), (found.bias, expected.bias)):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["crop_flip", "simclr"])
def test_views_equal_those_of_the_cpu_within_rounding(name):
    """The CPU cuts, shrinks and rounds to bytes; a hue turns such a step into a few."""
    smooth = np.random.default_rng(0).integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
    images = smooth.repeat(12, axis=1).repeat(12, axis=2)
    augmentation = build_augmentation(name, crop=32, resize=40)
    indices = np.array([3, 0, 5, 5, 1])
    here, there = (Views(images, augmentation, seed=1, device=device) for device in (CPU, DEVICE))
    for step in range(4):
        expected, found = (views.train(indices, step=step).cpu().float() for views in (here, there))
        expected = expected / 255 if expected.max() > 1 else expected
        found = found / 255 if found.max() > 1 else found
        apart = (found - expected).abs()
        assert apart.mean() < 1 / 255
        assert apart.quantile(0.99) < 6 / 255
    expected, found = (views.evaluation(indices).cpu().float() for views in (here, there))
    torch.testing.assert_close(found * (1 if found.max() > 1 else 255), expected, rtol=0, atol=1.01)
