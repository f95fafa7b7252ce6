"""Face recognition: figures against loops, benchmarks read through their lists, every misuse named."""

import numpy as np
import pytest
import torch
from helpers import published_formats as fixtures
from helpers.trials import TASKS, config_of, learner_of, run

from trainables import training
from trainables.context import read_sealed
from trainables.errors import ConfigError
from trainables.evidence.record import Tile
from trainables.metrics.faces import verification_metrics
from trainables.resolve import Layer, resolve
from trainables.tasks import face_recognition, task_of

DIGITS = TASKS["face_recognition"]


@pytest.fixture
def faces(tmp_path, monkeypatch):
    """Settings of a small training set with two benchmarks and distractors in the papers' formats."""
    monkeypatch.setenv("TUNE_DML_CACHE", str(tmp_path / "cache"))
    fixtures.webface(tmp_path / "web", people=(6,) * 8)
    for name in ("lfw.bin", "agedb_30.bin"):
        fixtures.face_bin(tmp_path / "bins" / name, pairs=20)
    for i in range(12):
        fixtures.picture(tmp_path / "bins" / "distractors" / f"{i}.png", i)
    return {
        **{"task.name": "face_recognition", "task.evaluation_root": str(tmp_path / "bins")},
        **{"task.strict": False, "task.pairs": 40, "data.name": "webface", "data.root": str(tmp_path / "web")},
        **{"augment.name": "crop_flip", "augment.crop": 24, "augment.resize": 24, "loss.name": "cosface"},
        **{"batch.sampler": "random", "batch.batch_size": 8, "model.embedding_dim": 4},
        **{"training.steps": 2, "training.eval_every": 1},
    }


@pytest.mark.slow
def test_figures_equal_a_loop_over_pairs_probes_and_distractors(tmp_path):
    learner = learner_of(config_of(DIGITS, task__mirror=True), tmp_path)
    found = learner.validate().figures
    half = learner.validation_half
    benchmark = half.benchmarks[0]
    learner.modules.eval()

    def descriptor(index):
        image = torch.from_numpy(np.array(learner.pictures.images[index])).permute(2, 0, 1)[None]
        with torch.no_grad():
            total = learner.network(image) + learner.network(image.flip(-1))
        return (total / total.norm())[0].double().numpy()

    vectors = {index: descriptor(index) for index in learner.split.validation}
    first, second = (np.stack([vectors[i] for i in side]) for side in benchmark.pairs.T)
    expected = verification_metrics(first, second, benchmark.same)
    assert found["val/verification_accuracy"] == pytest.approx(expected.accuracy, abs=0.5)
    assert found["val/tar_at_far_1e-3"] == pytest.approx(expected.tar_at_far, abs=0.5)
    distractors = np.stack([vectors[i] for i in half.distractors])
    assert len(distractors) == 100
    for size in (10, 100):
        hits = trials = 0
        for i, own in zip(benchmark.probes, benchmark.probe_labels, strict=True):
            nearest = (distractors[:size] @ vectors[i]).max()
            for j, other in zip(benchmark.probes, benchmark.probe_labels, strict=True):
                if i != j and own == other:
                    trials += 1
                    hits += vectors[i] @ vectors[j] > nearest
        assert found[f"val/rank1_at_{size}"] == pytest.approx(100 * hits / trials, abs=0.2)


def test_no_benchmark_class_is_trained_on_and_distractors_show_no_probe(tmp_path):
    learner = learner_of(config_of(DIGITS), tmp_path)
    labels = learner.pictures.labels
    trained = set(labels[learner.split.train])
    for half, part in ((learner.validation_half, learner.split.validation), (learner.test_half, learner.split.test)):
        (benchmark,) = half.benchmarks
        assert set(benchmark.pairs.ravel()) <= set(part)
        assert not trained & set(labels[benchmark.pairs.ravel()])
        assert not set(benchmark.probe_labels) & set(labels[half.distractors])
    again = learner_of(config_of(DIGITS, seed=5), tmp_path)
    assert np.array_equal(again.test_half.benchmarks[0].pairs, learner.test_half.benchmarks[0].pairs)


def test_benchmarks_validate_and_test_through_their_own_lists(faces, tmp_path):
    config = config_of(faces, task__validation_sets=["lfw_bin"], task__test_sets=["agedb30"], task__distractors=[5, 12])
    learner = learner_of(config, tmp_path / "task")
    assert len(learner.split.train) == 48  # no class is held out if benchmarks validate
    (benchmark,) = learner.validation_half.benchmarks
    assert benchmark.name == "lfw_bin"
    assert benchmark.pairs[3].tolist() == [6, 7]
    assert benchmark.probes.tolist() == [i for pair in range(0, 20, 2) for i in (2 * pair, 2 * pair + 1)]
    outcome, rows = run(config, tmp_path / "run")
    named = task_of(config).metrics()
    assert "val/rank1_at_12_lfw_bin" in named
    assert set(named) <= set(rows[-1])
    assert outcome.metrics["val/verification_accuracy"] == outcome.metrics["val/verification_accuracy_lfw_bin"]
    assert "test/tar_at_far_1e-3_agedb30" in read_sealed(tmp_path / "run")


def test_feature_maps_are_those_of_the_first_picture_in_each_row_of_the_benchmarks_sheet(faces, tmp_path, monkeypatch):
    drawn, row = [], (None, None, None, Tile(7, "a"), Tile(6, "b", False, 0.5))
    monkeypatch.setattr(face_recognition, "hardest_pairs", lambda *given, **options: (row,))
    monkeypatch.setattr(training, "draw_feature_maps", lambda *given: drawn.append(given) or b"")
    sets = {"task__validation_sets": ["lfw_bin"], "task__test_sets": ["agedb30"]}
    run(config_of(faces, **sets, evaluation__feature_maps=True), tmp_path / "run")
    ((maps, numbers, pictures),) = drawn
    assert (len(maps), numbers.tolist(), pictures.name) == (1, [7], "lfw_bin")


def test_descriptors_that_overflow_are_not_finite_embeddings(tmp_path):
    learner = learner_of(config_of(DIGITS, task__mirror=True), tmp_path)
    with torch.no_grad():
        for parameter in learner.network.head.parameters():
            parameter.fill_(3e38 if parameter.ndim == 1 else 0.0)
    assert np.isnan(learner.validate().figures["val/mean_cosine"])


def test_figures_of_several_benchmarks_are_averaged(faces, tmp_path):
    config = config_of(faces, task__test_sets=["lfw_bin", "agedb30"], data__validation_fraction=0.5)
    learner = learner_of(config, tmp_path)
    validated = learner.validate()
    found = learner.test(validated).figures
    for figure in ("verification_accuracy", "tar_at_far_1e-3"):
        own = [found[f"test/{figure}_{name}"] for name in ("lfw_bin", "agedb30")]
        assert found[f"test/{figure}"] == pytest.approx(np.mean(own))
    assert "val/verification_accuracy" in validated.figures  # of held-out people


def test_paper_test_selection_validates_on_the_test_sets_and_is_labelled(faces, tmp_path):
    config = config_of(faces, task__test_sets=["lfw_bin"], data__split="paper_test_selection")
    learner = learner_of(config, tmp_path)
    assert learner.split.protocol == "paper_test_selection"
    assert learner.validation_half is learner.test_half
    validated = learner.validate()
    assert set(learner.task.metrics()) <= set(validated.figures)
    tested = {name.replace("test/", "val/"): value for name, value in learner.test(validated).figures.items()}
    assert tested == validated.figures
    drawn = learner_of(config_of(DIGITS, data__split="paper_test_selection"), tmp_path)
    assert drawn.validation_half is drawn.test_half


def test_benchmarks_may_lie_beside_the_training_set(faces, tmp_path):
    (tmp_path / "bins" / "lfw.bin").rename(tmp_path / "web" / "lfw.bin")
    settings = {**faces, "task.test_sets": ["lfw_bin"], "data.validation_fraction": 0.5}
    del settings["task.evaluation_root"]
    assert learner_of(config_of(settings), tmp_path).test_half.benchmarks[0].name == "lfw_bin"


def test_the_file_of_one_benchmark_is_never_read_as_another(faces, tmp_path):
    settings = {
        **faces,
        "task.test_sets": ["lfw_bin", "agedb30"],
        "task.evaluation_root": str(tmp_path / "bins" / "lfw.bin"),
    }
    further = task_of(config_of(settings)).further_datasets(tmp_path / "cache")
    assert [dataset.path.name for dataset in further] == ["lfw.bin", "agedb_30.bin"]
    assert not [problem for dataset in further for problem in dataset.check()]


def test_a_benchmark_of_another_size_is_refused_with_the_setting_that_allows_it(faces, tmp_path):
    config = config_of(faces, task__test_sets=["lfw_bin"], task__strict=True)
    (problem,) = task_of(config).further_datasets(tmp_path / "cache")[0].check()
    assert "--set task.strict=false" in problem.remedy


def test_further_data_sets_of_a_trial_are_known_before_training(faces, tmp_path):
    config = config_of(faces, task__test_sets=["lfw_bin", "agedb30"], task__distractors=[5])
    further = task_of(config).further_datasets(tmp_path / "cache")
    assert [dataset.name for dataset in further] == ["lfw_bin", "agedb30", "distractors"]
    assert not [problem for dataset in further for problem in dataset.check()]
    (tmp_path / "bins" / "lfw.bin").unlink()
    assert any("lfw.bin" in problem.place for dataset in further for problem in dataset.check())


def test_too_few_pairs_distractors_or_tests_are_reported_before_training(faces, tmp_path):
    learner = learner_of(config_of(DIGITS), tmp_path)

    def said(**settings):
        problems = task_of(config_of(DIGITS, **settings)).data_problems(learner.pictures)
        return "\n".join(map(str, problems))

    assert not said()
    assert "distractors" in said(task__distractors=[5000])
    assert "pairs of one class" in said(task__pairs=200_000)
    assert "Set task.evaluation_root" in said(task__test_sets=["lfw_bin"])
    unusable = {"task__test_sets": ["digits"], "task__evaluation_root": ".", "task__distractors": []}
    assert "must list pairs of pictures, but got 'digits'" in said(**unusable)
    untested = resolve(Layer("test", faces)).config
    web = learner_of(config_of(faces, task__test_sets=["lfw_bin"], data__validation_fraction=0.5), tmp_path)
    problems = task_of(untested).data_problems(web.pictures)
    assert "task.test_sets" in [problem.place for problem in problems]
    few = config_of(faces, task__test_sets=["lfw_bin"], task__distractors=[13], data__validation_fraction=0.5)
    assert "12 distractors" in "\n".join(map(str, task_of(few).data_problems(web.pictures)))
    with pytest.raises(ConfigError, match="12 distractors"):
        learner_of(few, tmp_path)


def test_benchmarks_with_other_preprocessing_are_refused(faces, tmp_path):
    plain = {"augment__name": "none", "data__size": 24, "task__test_sets": ["lfw_bin"]}
    with pytest.raises(ConfigError, match="24 pixels of webface"):
        learner_of(config_of(faces, **plain), tmp_path)
    grey = {"task__test_sets": ["lfw_bin"], "task__evaluation_root": faces["task.evaluation_root"]}
    with pytest.raises(ConfigError, match="1 channels of digits"):
        learner_of(config_of(DIGITS, **grey, task__strict=False, task__distractors=[]), tmp_path)
