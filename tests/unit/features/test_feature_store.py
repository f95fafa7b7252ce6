"""Stored features equal the network's output and read back; a folder that does not match its digest is refused."""

import json
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
import torch
from helpers import features
from helpers.features import stored

from trainables import generators
from trainables.context import TrialContext, read_sealed
from trainables.data import build_dataset
from trainables.data.formats import feature_store
from trainables.data.formats.feature_store import (
    FEATURES,
    METADATA,
    RowTable,
    StoreDigest,
    finish_store,
    store_problems,
)
from trainables.errors import ConfigError, DataError, Diverged
from trainables.models import BACKBONES, extraction
from trainables.models.extraction import FeaturePass, write_features
from trainables.models.views import Views
from trainables.resolve import Layer, resolve
from trainables.tasks import build_learner, task_of
from trainables.tasks.floors import measure_floors
from trainables.training import train
from tune_dml.cli.features import EXAMPLES

HEAD = features.HEAD | {"loss.name": "multi_similarity", "batch.instances_per_class": 3, "optim.lr": 0.01}
HEAD |= {"training.steps": 60, "training.eval_every": 60}


def config(root, **more):
    return resolve(Layer("test", {**HEAD, "data.root": str(root), **more})).config


def opened(root, tmp_path):
    return build_dataset("features", root=root, cache_dir=tmp_path / "cache").prepare()


def test_rows_classes_and_views_are_read_as_written(tmp_path):
    root = stored(tmp_path / "f", classes=6, each=2, views=3)
    rows, pictures = np.load(root / FEATURES), opened(root, tmp_path)
    assert np.array_equal(pictures.images[np.arange(12)][:, 0, 0], rows[::3])
    assert np.array_equal(pictures.images[5][0, 0], rows[15])
    assert pictures.labels.tolist() == np.repeat(range(6), 2).tolist()
    assert pictures.test_classes == (3, 4, 5)
    assert StoreDigest.read(root).network == "toy"
    assert pickle.loads(pickle.dumps(pictures)).digest == pictures.digest  # noqa: S301 - our own bytes


def test_training_sees_stored_views_and_evaluation_the_first(tmp_path):
    root = stored(tmp_path / "f", classes=6, each=2, views=3)
    rows, pictures = np.load(root / FEATURES).astype(np.float32), opened(root, tmp_path)
    views = Views(pictures.images, None, seed=4)
    some = np.array([7, 7, 7, 7, 7, 7, 7, 7])
    drawn = views.train(some, step=2).float()[:, :, 0, 0].numpy()
    place = [int(np.flatnonzero((rows[21:24] == row).all(axis=1))[0]) for row in drawn]
    assert set(place) == {0, 1, 2}
    first, second = (views.feature_rows(some, step=2, view=view) - 21 for view in (0, 1))
    assert first.tolist() == place
    assert {*second.tolist()} <= {0, 1, 2}
    assert not (first == second).any()  # a pair of equal rows would teach nothing
    assert {*((second - first) % 3).tolist()} == {1, 2}
    halves = [views.train(some[part], step=2, first=part.start) for part in (slice(0, 3), slice(3, 8))]
    assert np.array_equal(torch.cat(halves).float()[:, :, 0, 0].numpy(), drawn)  # as with two workers
    assert np.array_equal(views.evaluation(some).float()[:, :, 0, 0].numpy(), rows[[21] * 8])


def test_a_head_learns_and_its_test_figures_are_sealed(tmp_path):
    root = stored(tmp_path / "f")
    rows = []
    outcome = train(config(root), TrialContext(tmp_path / "t", torch.device("cpu"), sink=rows.append))
    floors = measure_floors(config(root), [0])
    assert outcome.metrics["val/recall_at_1"] > floors["raw_features"]["val/recall_at_1"] + 5
    assert not any(name.startswith("test/") for row in rows for name in row)
    assert read_sealed(tmp_path / "t")["test/recall_at_1"] > 0


def test_the_floor_is_the_nearest_neighbour_of_the_raw_features(tmp_path):
    root = stored(tmp_path / "f")
    learner = build_learner(config(root), TrialContext(tmp_path / "t", torch.device("cpu")))
    part, hits = learner.split.validation, 0
    x = np.load(root / FEATURES).astype(np.float64)[part]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for query in range(len(part)):
        cosine = x @ x[query]
        cosine[query] = -2
        hits += learner.pictures.labels[part[cosine.argmax()]] == learner.pictures.labels[part[query]]
    floor = measure_floors(config(root), [0])["raw_features"]["val/recall_at_1"]
    assert floor == pytest.approx(100 * hits / len(part), abs=1e-3)


CONTRASTIVE = {"task.name": "contrastive", "loss.name": "nt_xent", "batch.sampler": "random"}
CONTRASTIVE |= {"data.split": "shared_classes", "task.linear_epochs": 2}
FACES = {"task.name": "face_recognition", "loss.name": "cosface", "task.pairs": 40}


@pytest.mark.parametrize("more", [{"training.precision": "float64"}, {"model.head": "mlp"}, CONTRASTIVE, FACES])
def test_float64_a_small_network_and_other_tasks_train_on_features_too(more, tmp_path):
    root = stored(tmp_path / "f", views=2)
    chosen = config(root, **{"training.steps": 2, "training.eval_every": 2, **more})
    assert train(chosen, TrialContext(tmp_path / "t", torch.device("cpu"))).step == 2


def test_a_trial_whose_norms_overflow_has_diverged(tmp_path):
    root = stored(tmp_path / "f")
    chosen = config(root, **{"loss.name": "contrastive", "optim.lr": 1e20, "optim.weight_decay": 0.0})
    with pytest.raises(Diverged, match="norms of embeddings are not finite at step 60"):
        train(chosen, TrialContext(tmp_path / "t", torch.device("cpu")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.backbone": "small_conv"}, "small_conv needs pictures of at least 16 pixels"),
        ({"augment.name": "crop_flip"}, "stored features cannot be cropped or coloured"),
        (CONTRASTIVE, "each picture has one stored view"),
    ],
)
def test_networks_and_augmentations_that_need_pictures_are_refused(settings, message, tmp_path):
    root = stored(tmp_path / "f")
    (problem,) = task_of(config(root, **settings)).data_problems(opened(root, tmp_path))
    assert message in str(problem)


def test_pictures_of_the_command_line_example_are_large_enough():
    """It left out data.size: glyphs have 24 pixels, EfficientNet-Lite0 needs 32."""
    example = EXAMPLES.replace("\\\n", "")
    size = int(re.search(r"features glyphs --backbone efficientnet_lite0.*--set data.size=(\d+)", example)[1])
    assert BACKBONES["efficientnet_lite0"].size_problems(size) == []
    (problem,) = BACKBONES["efficientnet_lite0"].size_problems(24)
    assert "Set data.size or augment.crop to 32 or more" in str(problem)


def test_identity_refuses_pictures(cache_dir):
    pictures = build_dataset("digits", cache_dir=cache_dir).prepare()
    chosen = resolve(Layer("t", {"data.name": "digits", "model.backbone": "identity"})).config
    assert any("identity passes stored features on" in str(p) for p in task_of(chosen).data_problems(pictures))


DIGEST = "digest.json"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (FEATURES, lambda content: content[:-64], "was changed or cut"),
        (FEATURES, lambda content: content[:-8] + bytes(8), "was changed or cut"),
        (DIGEST, lambda content: re.sub(rb'("sha256": ")\w+', rb"\g<1>00", content), "was changed or cut"),
        (METADATA, lambda content: b"PAR1", "was changed or cut"),
        (DIGEST, lambda content: None, "no digest.json"),
        (DIGEST, lambda content: re.sub(rb'("dimension": )\d+', rb"\g<1>5", content), "rows of 5 float16"),
        (DIGEST, lambda content: b"{]", "must be the digest"),
        (DIGEST, lambda content: b"[" * 100_000, "must be the digest"),
        (DIGEST, lambda content: content.replace(b'"origin": {', b'"origin": {"settings": 5,'), "must be the digest"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_refused_in_one_line(name, damage, message, tmp_path):
    root = stored(tmp_path / "f")
    before = (root / name).read_bytes()
    damaged = damage(before)
    assert damaged != before
    (root / name).unlink() if damaged is None else (root / name).write_bytes(damaged)
    (problem,) = store_problems(root)
    assert message in str(problem)
    assert "\n" not in str(problem)
    with pytest.raises(DataError):
        opened(root, tmp_path)


def test_a_change_that_keeps_the_size_and_hides_between_samples_is_found_by_verify(tmp_path):
    root = stored(tmp_path / "f", classes=300, each=40, dimension=64)
    content = bytearray((root / FEATURES).read_bytes())
    size, samples, block = len(content), 64, 4096
    between = 5 * (size - block) // (samples - 1) + block + (size // samples - block) // 2
    content[between] ^= 1
    (root / FEATURES).write_bytes(bytes(content))
    assert store_problems(root) == []
    (problem,) = store_problems(root, whole=True)
    assert "was changed or cut" in str(problem)


@pytest.mark.parametrize(
    ("row", "splits", "lines", "message"),
    [
        (np.nan, ["train", "train", "test", "test"], 4, "row 2 has one that is not"),
        (1.0, ["train", "test", "test", "test"], 4, "1 are both"),
        (1.0, ["train", "train", "testing", "testing"], 4, "column split must hold"),
        (1.0, ["train", "train", "test"], 3, "same number of rows"),
        (1.0, ["train", "train", "query", "query"], 4, "no query has a gallery picture of its class"),
        (1.0, ["train", "train", "gallery", "gallery"], 4, "no query has a gallery picture of its class"),
        (1.0, ["query", "query", "gallery", "gallery"], 4, "no query has a gallery picture of its class"),
        (1.0, ["query", "gallery", "test", "test"], 4, "no row may be test"),
    ],
)
def test_unfit_rows_and_tables_are_refused(row, splits, lines, message, tmp_path):
    rows = np.ones((4, 3), np.float16)
    rows[2, 1] = row
    np.save(tmp_path / FEATURES, rows)
    with pytest.raises(ConfigError, match=message):
        finish_store(tmp_path, RowTable.of_pictures(["a", "a", "b", "b"][:lines], splits, 1), 1, {})


AUGMENTED = {"augment.name": "crop_flip", "augment.crop": 16, "augment.resize": 16}


@pytest.fixture
def order(cache_dir, tmp_path):
    def make(folder="f", views=1, **more):
        config = resolve(Layer("test", {"data.name": "digits", "model.backbone": "small_conv", **more})).config
        return FeaturePass(config, tmp_path / folder, views, cache_dir)

    return make


def test_features_equal_the_output_of_the_network_per_view(order):
    digest = write_features(order(views=2, **AUGMENTED), workers=1)
    chosen = order(views=2, **AUGMENTED)
    rows = np.load(chosen.folder / feature_store.FEATURES)
    pictures = chosen.task.dataset(chosen.cache_dir).prepare()
    generators.seed_all(0)
    network = chosen.task.build_network(pictures).eval()
    views = Views(pictures.images, chosen.task.augmentation(), seed=0)
    some = np.arange(300, 310)
    with torch.no_grad():
        first = network.features(views.evaluation(some))
        second = network.features(views.train(some, step=0, first=300, view=1))
    assert np.abs(rows[600:620:2] - first.numpy()).max() < 5e-3
    assert np.abs(rows[601:621:2] - second.numpy()).max() < 5e-3
    assert (digest.rows, digest.views) == (2 * 1797, 2)
    assert digest.origin["data"] == pictures.digest
    assert feature_store.store_problems(chosen.folder, whole=True) == []
    table = feature_store.read_table(chosen.folder)
    assert set(table.classes[table.splits == "test"]) == {"5", "6", "7", "8", "9"}


@pytest.mark.parametrize(("precision", "error"), [("float64", 1e-3), ("bf16", 3e-2)])
def test_the_precision_is_that_of_the_settings(order, precision, error):
    write_features(order("plain"), workers=1)
    write_features(order("other", **{"training.precision": precision}), workers=1)
    plain, other = (np.load(order(name).folder / FEATURES).astype(np.float32) for name in ("plain", "other"))
    difference = np.abs(plain - other).max() / np.abs(plain).max()
    assert (error / 30 if precision == "bf16" else 0) <= difference <= error


def test_a_killed_extraction_continues_with_missing_chunks(order, monkeypatch):
    whole = write_features(order("whole"), workers=1)
    written, store = [], extraction._Chunk.store

    def store_one(chunk, folder, views):
        written.append(int(chunk.pictures[0]))
        return store(chunk, folder, views)

    def until_killed(chunk, folder, views):
        if len(written) == 3:
            raise KeyboardInterrupt
        return store_one(chunk, folder, views)

    monkeypatch.setattr(extraction._Chunk, "store", until_killed)
    with pytest.raises(KeyboardInterrupt):
        write_features(order("killed"), workers=1)
    with pytest.raises(ConfigError, match="has no digest"):
        feature_store.StoreDigest.read(order("killed").folder)
    with pytest.raises(ConfigError, match="holds other features: settings, weights differ"):
        write_features(order("killed", **{"model.width": 8}), workers=1)
    monkeypatch.setattr(extraction._Chunk, "store", store_one)
    assert write_features(order("killed"), workers=1) == whole
    assert sorted(written) == list(range(0, 1797, extraction._CHUNK))  # each chunk once
    assert write_features(order("killed"), workers=1) == whole  # finished: nothing to do


def test_an_extraction_killed_before_its_first_chunk_restarts(order, monkeypatch):
    whole = write_features(order("whole"), workers=1)

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(extraction.disk, "reserve", killed)
        with pytest.raises(KeyboardInterrupt):
            write_features(order("killed"), workers=1)
    assert write_features(order("killed"), workers=1) == whole


def test_a_damaged_folder_does_not_count_as_finished(order):
    write_features(order(), workers=1)
    with (order().folder / feature_store.FEATURES).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ConfigError, match="Delete the folder and make it again"):
        write_features(order(), workers=1)


def test_a_killed_worker_is_one_problem(order, monkeypatch):
    class Killed(ThreadPoolExecutor):
        """As the pool raises if the system ends a process."""

        def submit(self, *call):
            return super().submit(self.fail)

        def fail(self):
            raise BrokenProcessPool

    monkeypatch.setattr(extraction, "ProcessPoolExecutor", lambda count, mp_context: Killed(count))
    with pytest.raises(ConfigError, match="--workers: a process was killed, perhaps for lack of memory, but got 2"):
        write_features(order(), workers=2)


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_bytes(order):
    assert write_features(order("one"), workers=1).files == write_features(order("two"), workers=2).files


def test_features_that_cannot_be_stored_are_refused(order, tmp_path):
    with pytest.raises(ConfigError, match="several views need an augmentation"):
        write_features(order(views=2))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="the folder must be empty"):
        write_features(order())


def test_the_command_stores_features_and_prints_the_next_command(command_line, cache_dir, tmp_path):
    words = ("features", "digits", "--cache-dir", cache_dir, "-o", tmp_path / "f", "--workers", "1")
    code, _, err = command_line(*words)
    assert code == 1
    assert "--backbone: a data set needs the backbone" in err
    code, out, _ = command_line(*words, "--backbone", "small_conv", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == 1797
    assert StoreDigest.read(tmp_path / "f").network == "small_conv with random weights"
    code, out, _ = command_line("datasets", "verify", "features", "--root", tmp_path / "f", "--json")
    assert code == 0
    assert json.loads(out)["counts"]["test_images"] == 896
    out = command_line("datasets", "verify", "features", "--root", tmp_path / "f")[1]
    assert "The features are those that digest.json describes, byte for byte." in out
    assert "picture decodes" not in out
    assert "must be a data set, or a file" in command_line("features", "nothing", "-o", tmp_path / "g")[2]
    (tmp_path / "x.npy").write_bytes(b"")
    code, _, err = command_line("features", tmp_path / "x.npy", "--set", "data.size=9", "-o", tmp_path / "g")
    assert code == 1
    assert "--set: has no effect: published features" in err


def test_features_given_as_a_folder_of_pictures_are_named(tmp_path):
    (tmp_path / FEATURES).touch()
    (problem,) = build_dataset("image_folder", root=tmp_path, cache_dir=tmp_path / "cache").check()
    assert problem.remedy == f"It has stored features: use --dataset features --data-root {tmp_path}."
