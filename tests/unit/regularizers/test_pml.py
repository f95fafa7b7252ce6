"""The bridge to pytorch-metric-learning: our regularizers in its losses, our losses in its trainer."""

import pickle

import pytest
import torch
from helpers.processes import printed_by
from pytorch_metric_learning import losses, miners, trainers
from pytorch_metric_learning.regularizers import BaseRegularizer

from trainables import pml
from trainables.errors import ConfigError
from trainables.losses import LOSSES, build_loss
from trainables.regularizers import build_regularizer

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def embeddings(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 4, generator=generator, dtype=torch.float64).mul(3).requires_grad_()


@pytest.mark.parametrize(
    ("adapter", "name", "knobs"),
    [
        ("SECRegularizer", "sec", {}),
        ("SECRegularizer", "sec", {"rho": 0.2}),
        ("FixedMeanSECRegularizer", "sec_fixed", {"mu": 3.0}),
        ("L2Regularizer", "l2", {}),
    ],
)
@pytest.mark.parametrize("kind", [losses.TripletMarginLoss, losses.MultiSimilarityLoss, losses.ContrastiveLoss])
def test_the_adapter_adds_eta_times_the_regularizer(adapter, name, knobs, kind):
    eta = 0.7
    loss = kind(embedding_regularizer=getattr(pml, adapter)(**knobs), embedding_reg_weight=eta)
    plain, regularizer = kind(), build_regularizer(name, **knobs)
    for seed in range(3):  # the running mean advances once per pass
        f = embeddings(seed)
        value, truth = loss(f, LABELS), plain(f, LABELS) + eta * regularizer(f)
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=0)
        found, expected = (torch.autograd.grad(v, f)[0] for v in (value, truth))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


def test_a_miner_changes_nothing_for_the_regularizer():
    f = embeddings()
    pairs = miners.MultiSimilarityMiner()(f, LABELS)
    loss = losses.MultiSimilarityLoss(embedding_regularizer=pml.SECRegularizer())
    expected = losses.MultiSimilarityLoss()(f, LABELS, pairs) + build_regularizer("sec")(f)
    torch.testing.assert_close(loss(f, LABELS, pairs), expected, rtol=1e-12, atol=0)


def test_state_is_saved_with_the_loss_and_unchanged_by_evaluation():
    first, second = (losses.TripletMarginLoss(embedding_regularizer=pml.SECRegularizer(rho=0.1)) for _ in range(2))
    first(embeddings(), LABELS)
    second.load_state_dict(first.state_dict())
    mu = first.embedding_regularizer.regularizer.mu.clone()
    assert mu > 0
    assert torch.equal(second.embedding_regularizer.regularizer.mu, mu)
    first.eval()(embeddings(1), LABELS)
    assert torch.equal(first.embedding_regularizer.regularizer.mu, mu)


def test_the_adapters_are_regularizers_that_pickle_and_refuse_wrong_knobs():
    regularizer = pml.SECRegularizer(rho=0.5)
    assert isinstance(regularizer, BaseRegularizer)
    assert type(pickle.loads(pickle.dumps(regularizer))) is pml.SECRegularizer  # noqa: S301
    assert pml.SECRegularizer is pml.SECRegularizer
    assert "mean n_t" in pml.SECRegularizer.__doc__
    assert {"SECRegularizer", "L2Regularizer", "FixedMeanSECRegularizer"} <= set(dir(pml))
    with pytest.raises(ConfigError, match=r"regularizer\.rho"):
        pml.SECRegularizer(rho=2)
    with pytest.raises(AttributeError, match="Nothing"):
        pml.Nothing  # noqa: B018


def test_importing_needs_no_pml_and_its_absence_is_explained():
    code = """
import sys
sys.modules["pytorch_metric_learning"] = None  # as if not installed
from trainables import pml
try:
    pml.SECRegularizer
except Exception as error:
    print(type(error).__name__, error)
"""
    said = printed_by(code)
    assert said.startswith("ConfigError")
    assert "pip install pytorch-metric-learning" in said


def trained(metric_loss):
    """Two epochs of PML's own trainer on overlapping classes; the weights before and after, and the loss module."""
    torch.manual_seed(0)
    labels = torch.arange(24) % 4
    points = torch.eye(4)[labels].repeat(1, 2) + torch.randn(24, 8)
    trunk = torch.nn.Linear(8, 5)
    before = trunk.weight.detach().clone()
    optimizers = {"trunk_optimizer": torch.optim.SGD(trunk.parameters(), lr=0.1)}
    if list(metric_loss.parameters()):
        optimizers["metric_loss_optimizer"] = torch.optim.SGD(metric_loss.parameters(), lr=0.1)
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers=optimizers,
        batch_size=8,
        loss_funcs={"metric_loss": metric_loss},
        dataset=list(zip(points, labels.tolist(), strict=True)),
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
    )
    trainer.train(num_epochs=2)
    return before, trunk.weight.detach(), trainer


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_trains_in_pml_metric_loss_only(name):
    loss = build_loss(name, num_classes=4, embedding_dim=5, **LOSSES[name].example)
    start = [parameter.detach().clone() for parameter in loss.parameters()]
    before, after, _ = trained(loss)
    assert after.isfinite().all()
    assert not torch.equal(before, after)
    assert all(not torch.equal(old, new) for old, new in zip(start, loss.parameters(), strict=True))


def test_sec_trains_in_pml_metric_loss_only():
    loss = losses.TripletMarginLoss(embedding_regularizer=pml.SECRegularizer(rho=0.5), embedding_reg_weight=1.0)
    trained(loss)
    assert loss.embedding_regularizer.regularizer.initialized
