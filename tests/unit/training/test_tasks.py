"""The contract of tasks: resuming bit-identically, paired seeds, sealed test metrics, named metrics."""

from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated

import numpy as np
import pytest
import torch
from helpers import published_formats as fixtures
from helpers.trials import TASKS, config_of, learner_of, poison, run
from pydantic import Field

from trainables.context import read_sealed
from trainables.errors import ConfigError, Diverged
from trainables.metrics.linear_evaluation import fit_linear_probes
from trainables.resolve import Layer, resolve
from trainables.tasks import TASKS as KNOWN
from trainables.tasks import task_of
from trainables.tasks.retrieval import RetrievalTask


def test_every_task_is_found_and_tested_here():
    assert set(KNOWN) == set(TASKS)
    for task in KNOWN.values():
        assert task.citation
        assert task.__doc__


@pytest.mark.parametrize("name", TASKS)
def test_named_metrics_are_reported_and_test_stays_sealed(tmp_path, name):
    config = config_of(TASKS[name], training__steps=4, training__eval_every=2)
    _, rows = run(config, tmp_path)
    named, final = set(task_of(config).metrics()), set(task_of(config).final_metrics())
    assert task_of(config).headline in named - final
    assert final <= named
    for row in rows:
        expected = named if row is rows[-1] else named - final
        assert expected == named & set(row)
        assert {*expected, "val/mean_cosine", "val/norm_mean", "train/loss"} <= set(row)
        assert all(np.isfinite(value) for value in row.values())
        assert not any(key.startswith("test/") for key in row)
    sealed = {key.replace("test/", "val/") for key in read_sealed(tmp_path)}
    assert named <= sealed


@pytest.mark.parametrize("name", TASKS)
def test_best_validation_keeps_the_highest_headline(tmp_path, name):
    config = config_of(TASKS[name], evaluation__epoch="best_validation", training__steps=6, training__eval_every=1)
    outcome, rows = run(config, tmp_path)
    headline = task_of(config).headline
    seen = [row[headline] for row in rows]
    assert outcome.metrics[headline] == max(seen)
    assert outcome.step == 1 + int(np.argmax(seen))


@pytest.mark.parametrize("name", TASKS)
def test_seeds_are_paired_every_cell_starts_from_the_same_weights_and_sees_the_same_batches(tmp_path, name):
    loss = {"loss__name": "triplet" if name == "contrastive" else "proxy_anchor"}
    regularizer = {"regularizer__name": "l2", "regularizer__eta": 1.0}
    cells = ({}, loss, regularizer, {"optim__lr": 0.1})
    one, *others = (learner_of(config_of(TASKS[name], seed=3, **cell), tmp_path) for cell in cells)
    for other in others:
        for mine, theirs in zip(one.network.parameters(), other.network.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert all((one.sampler.batch(step) == other.sampler.batch(step)).all() for step in range(5))
        assert np.array_equal(one.split.validation, other.split.validation)
    moved = learner_of(config_of(TASKS[name], seed=4), tmp_path)
    assert not np.array_equal(one.split.validation, moved.split.validation)
    assert np.array_equal(one.split.test, moved.split.test)


@pytest.mark.parametrize(
    "method", [{"loss__name": "margin_dws"}, {"loss__name": "dro_kl", "loss__gamma": 0.2, "loss__samples": 30}]
)
def test_random_numbers_of_a_loss_follow_the_seed(tmp_path, method):
    def drawn(**more):
        learner = learner_of(config_of(TASKS["retrieval"], **method, **more), tmp_path)
        return learner.loss.stream.uniform((8,), like=torch.zeros(()))

    assert torch.equal(drawn(seed=3), drawn(seed=3, loss__margin=0.3))
    assert not torch.equal(drawn(seed=3), drawn(seed=4))
    assert not torch.equal(drawn(seed=3), drawn(seed=3, loss__sampling_seed=1))


def test_a_loss_with_a_vector_for_each_class_is_refused_without_classes():
    with pytest.raises(ConfigError, match=r"holds a vector for each.*Set loss\.name to one of .*nt_xent"):
        config_of(TASKS["contrastive"], loss__name="proxy_anchor")


def test_knobs_of_a_task_are_part_of_the_identity_and_its_folder_is_not():
    face = config_of(TASKS["face_recognition"])
    fewer = config_of(TASKS["face_recognition"], task__pairs=200)
    moved = config_of(TASKS["face_recognition"], task__evaluation_root="/somewhere")
    assert face.digest() != fewer.digest()
    assert face.digest() == moved.digest()
    again = resolve(Layer("again", face.settings())).config
    assert again == face


def test_a_ramp_that_never_begins_is_refused_before_training(tmp_path):
    config = config_of(TASKS["face_recognition"], regularizer__schedule="epoch_ramp")
    learner = learner_of(config_of(TASKS["face_recognition"]), tmp_path)
    problems = task_of(config).data_problems(learner.pictures)
    assert [problem.place for problem in problems] == ["regularizer.schedule"]
    assert not learner.task.data_problems(learner.pictures)


@pytest.mark.parametrize("name", ["face_recognition", "contrastive"])
def test_embeddings_that_are_not_finite_end_the_trial(tmp_path, monkeypatch, name):
    poison(monkeypatch, after=19)
    with pytest.raises(Diverged, match="step 20"):
        run(config_of(TASKS[name]), tmp_path)


@pytest.mark.parametrize("name", TASKS)
def test_describing_a_task_reads_and_builds_nothing(name, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a description was asked, not a learner")

    config = config_of(TASKS[name])
    for place in ("trainables.tasks.task.build_dataset", "trainables.tasks.task.build_model"):
        monkeypatch.setattr(place, refuse)
    task = task_of(config)
    assert task.headline in task.metrics()
    assert not task.problems()
    assert {knob: getattr(task, knob) for knob in config.task.knobs()} == config.task.knobs()
    with pytest.raises(FrozenInstanceError):
        task.config = None


@dataclass(frozen=True, kw_only=True)
class FewShotTask(RetrievalTask):
    """A third-party task with a knob."""

    name = "few_shots"
    shots: Annotated[int, Field(ge=1, description="pictures a class")] = 3


def test_a_third_party_task_has_typed_knobs(monkeypatch):
    monkeypatch.setitem(KNOWN, "few_shots", FewShotTask)
    settings = {**TASKS["retrieval"], "task.name": "few_shots"}
    assert task_of(config_of(settings)).shots == 3
    assert config_of(settings, task__shots=5).settings()["task.shots"] == 5
    with pytest.raises(ConfigError, match=r"task\.shots.*greater than or equal to 1"):
        config_of(settings, task__shots=0)


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


def test_contrastive_training_uses_no_labels(tmp_path):
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


def test_an_evaluation_keeps_its_selected_classifier(tmp_path):
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
    data = {"data.name": "cifar10", "data.root": str(tmp_path), "data.strict": False}
    config = config_of({**DIGITS, **data, "augment.crop": 32, "augment.resize": 32})
    learner = learner_of(config, tmp_path / "task")
    assert learner.split.test.tolist() == learner.pictures.extras["official_test"].tolist()
    assert set(learner.pictures.labels[learner.split.test]) <= set(learner.pictures.labels[learner.split.train])
