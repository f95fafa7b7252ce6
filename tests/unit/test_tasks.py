"""What every task owes the training loop: resumes bit-identically, pairs seeds, keeps test sealed, names its metrics."""

from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated

import numpy as np
import pytest
import torch
from helpers.trials import TASKS, config_of, learner_of, run
from pydantic import Field

from trainables import training
from trainables.context import read_sealed
from trainables.errors import ConfigError, Diverged
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
    one, *others = (learner_of(config_of(TASKS[name], seed=3, **cell), tmp_path) for cell in ({}, loss, regularizer))
    for other in others:
        for mine, theirs in zip(one.network.parameters(), other.network.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert all((one.sampler.batch(step) == other.sampler.batch(step)).all() for step in range(5))
        assert np.array_equal(one.split.validation, other.split.validation)
    moved = learner_of(config_of(TASKS[name], seed=4), tmp_path)
    assert not np.array_equal(one.split.validation, moved.split.validation)
    assert np.array_equal(one.split.test, moved.split.test)


@pytest.mark.parametrize(
    "method",
    [{"loss__name": "margin_dws"}, {"loss__name": "dro_kl", "loss__gamma": 0.2, "loss__samples": 30}],
)
def test_what_a_loss_draws_belongs_to_the_seed(tmp_path, method):
    def drawn(**more):
        learner = learner_of(config_of(TASKS["retrieval"], **method, **more), tmp_path)
        return learner.loss.stream.uniform((8,), like=torch.zeros(()))

    assert torch.equal(drawn(seed=3), drawn(seed=3, loss__margin=0.3))
    assert not torch.equal(drawn(seed=3), drawn(seed=4))
    assert not torch.equal(drawn(seed=3), drawn(seed=3, loss__sampling_seed=1))


BENCHMARK = {"task__validation_sets": ["lfw_bin"], "task__evaluation_root": "/faces"}
MISUSES = [
    ("contrastive", {"data__split": "class_disjoint"}, r"Set data\.split=shared_classes"),
    ("contrastive", {"batch__sampler": "m_per_class", "batch__batch_size": 18}, r"Set batch\.sampler=random"),
    ("contrastive", {"loss__name": "proxy_anchor"}, r"holds a vector for each.*Set loss\.name to one of .*nt_xent"),
    ("contrastive", {"augment__name": "none"}, r"Set augment\.name to .*simclr"),
    ("face_recognition", {"data__split": "shared_classes"}, r"Set data\.split=class_disjoint"),
    ("face_recognition", {"task__test_sets": ["lfw_bim"]}, "Did you mean 'lfw_bin'"),
    ("face_recognition", {"task__pairs": 10}, "need at least 20 pairs"),
    ("face_recognition", {"task__pears": 3}, r"task\.pears.*Did you mean 'task.pairs'"),
    ("face_recognition", {**BENCHMARK, "task__test_sets": ["lfw_bin"]}, "a test set must not validate"),
    ("face_recognition", {**BENCHMARK, "data__split": "paper_test_selection"}, "validates on the test sets"),
    ("retrieval", {"task__name": "contrastiv"}, "Did you mean 'contrastive'"),
]


@pytest.mark.parametrize(("name", "settings", "message"), MISUSES)
def test_settings_that_contradict_each_other_or_the_task_are_refused(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        config_of(TASKS[name], **settings)


def test_a_task_has_knobs_of_its_own_that_count_and_a_folder_that_does_not():
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
def test_embeddings_that_left_the_finite_numbers_end_the_trial(tmp_path, monkeypatch, name):
    update = training.update

    def poisoned(run):
        loss = update(run)
        if run.state.step == 19:
            with torch.no_grad():
                next(run.learner.network.parameters()).fill_(float("nan"))
        return loss

    monkeypatch.setattr(training, "update", poisoned)
    with pytest.raises(Diverged, match="step 20"):
        run(config_of(TASKS[name]), tmp_path)


@pytest.mark.parametrize("name", TASKS)
def test_a_description_reads_nothing_builds_nothing_and_stays_as_it_is(name, monkeypatch):
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
class FewShots(RetrievalTask):
    """A task of somebody else's, with a knob of its own."""

    name = "few_shots"
    shots: Annotated[int, Field(ge=1, description="pictures a class")] = 3


def test_a_task_of_somebody_elses_has_typed_knobs(monkeypatch):
    monkeypatch.setitem(KNOWN, "few_shots", FewShots)
    settings = {**TASKS["retrieval"], "task.name": "few_shots"}
    assert task_of(config_of(settings)).shots == 3
    assert config_of(settings, task__shots=5).settings()["task.shots"] == 5
    with pytest.raises(ConfigError, match=r"task\.shots.*greater than or equal to 1"):
        config_of(settings, task__shots=0)
