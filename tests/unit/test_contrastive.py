"""Contrastive learning: two views a picture, labels never seen, linear evaluation of frozen features."""

import numpy as np
import pytest
import torch
from helpers import published_formats as fixtures
from helpers.trials import TASKS, config_of, learner_of, run

from trainables.context import read_sealed
from trainables.metrics.linear_evaluation import fit_linear_probes

DIGITS = TASKS["contrastive"]


def test_the_objective_is_nt_xent_plus_sec_over_both_views(tmp_path):
    """A loop over 2N views (docs/specification.md, section 4), in double precision."""
    config = config_of(DIGITS, training__precision="float64", loss__temperature=0.5)
    learner = learner_of(config, tmp_path)
    step, n = 30, config.batch.batch_size
    indices = learner.split.train[learner.sampler.batch(step)]
    first, second = (learner.views.train(indices, step=step, view=view) for view in (0, 1))
    assert not torch.equal(first, second)
    with torch.no_grad():
        z = learner.network(torch.cat([first, second]))  # batch statistics over both views
        value = learner.objective(learner.network, step)
    unit = z / z.norm(dim=1, keepdim=True)
    losses = []
    for i in range(2 * n):
        others = torch.stack([unit[i] @ unit[k] / 0.5 for k in range(2 * n) if k != i])
        losses.append(torch.logsumexp(others, 0) - unit[i] @ unit[(i + n) % (2 * n)] / 0.5)
    norms = z.norm(dim=1)
    eta = config.regularizer.eta * step / config.training.steps
    expected = torch.stack(losses).mean() + eta * norms.var(correction=0)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    assert float(learner.diagnostics()["eta"]) == pytest.approx(eta)


def test_labels_are_never_seen_in_training(tmp_path):
    learner = learner_of(config_of(DIGITS), tmp_path)
    seen = []
    learner.loss.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
    learner.objective(learner.network, 0)
    assert seen[0].tolist() == [*range(16), *range(16)]


def test_linear_evaluation_reads_the_features_before_the_projection_head(tmp_path):
    learner = learner_of(config_of(DIGITS), tmp_path)
    validated = learner.validate()
    found = validated.figures
    with torch.no_grad():
        features = {
            part: learner.network.features(learner.views.evaluation(getattr(learner.split, part)))
            for part in ("train", "validation", "test")
        }
    labels = {part: learner.pictures.labels[getattr(learner.split, part)] for part in features}
    probes = fit_linear_probes(features["train"], labels["train"], num_classes=10, epochs=5)
    tops = probes.top_k(features["validation"], labels["validation"])
    best = int(np.argmax(tops[1]))
    assert found["val/linear_top1"] == pytest.approx(tops[1][best], abs=0.3)
    assert found["val/linear_top5"] == pytest.approx(tops[5][best], abs=0.3)
    assert found["val/linear_lr"] == probes.lrs[best]
    sealed = learner.test(validated).figures
    assert sealed["test/linear_top1"] == pytest.approx(probes.top_k(features["test"], labels["test"])[1][best], abs=0.3)


def test_an_evaluation_keeps_the_classifier_it_chose(tmp_path):
    learner = learner_of(config_of(DIGITS), tmp_path)
    before = learner.validate()
    weights = before.probes.weight.clone()
    with torch.no_grad():
        learner.objective(learner.network, 0)
        learner.network.backbone.layers[0].weight.mul_(-1)
    after = learner.validate()
    assert torch.equal(before.probes.weight, weights)
    assert not torch.equal(after.probes.weight, weights)
    fresh = learner.test(after).figures
    assert learner.test(before).figures != fresh
    assert learner.test(after).figures == fresh


def test_evaluation_leaves_the_training_stream_alone(tmp_path):
    learner = learner_of(config_of(DIGITS), tmp_path)
    before = torch.get_rng_state(), {k: v.clone() for k, v in learner.network.state_dict().items()}
    learner.test(learner.validate())
    assert torch.equal(before[0], torch.get_rng_state())
    assert all(torch.equal(value, before[1][key]) for key, value in learner.network.state_dict().items())


def test_the_official_test_pictures_of_cifar_are_the_test_half(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_DML_CACHE", str(tmp_path / "cache"))
    fixtures.cifar10(tmp_path / "cifar-10-batches-py", each=40)
    config = config_of(
        DIGITS,
        data__name="cifar10",
        data__root=str(tmp_path),
        data__strict=False,
        augment__crop=32,
        augment__resize=32,
        training__steps=2,
        training__eval_every=2,
    )
    learner = learner_of(config, tmp_path / "task")
    assert learner.split.test.tolist() == learner.pictures.extras["official_test"].tolist()
    assert set(learner.pictures.labels[learner.split.test]) <= set(learner.pictures.labels[learner.split.train])
    run(config, tmp_path / "run")
    sealed = read_sealed(tmp_path / "run")
    assert 0 <= sealed["test/linear_top1"] <= sealed["test/linear_top5"] <= 100


def test_any_pair_loss_tells_pictures_apart(tmp_path):
    config = config_of(DIGITS, loss__name="triplet", training__steps=2, training__eval_every=2)
    outcome, _ = run(config, tmp_path)
    assert np.isfinite(outcome.metrics["val/linear_top1"])
