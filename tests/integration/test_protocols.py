"""Every paper's protocol in the training loop, on small copies of its data in their published formats."""

import json

import pytest
import torch
from helpers import published_formats as fixtures
from helpers.costly import slow_after

from trainables.context import TrialContext, read_sealed
from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve
from trainables.training import train
from tune_dml.catalogue import protocols
from tune_dml.planning.arms.settings import protocol_layer

RETRIEVAL = ("cub200", "cars196", "sop", "inshop")
PAPERS = [name for name, p in protocols().items() if p.origin == "paper" and p.dataset in RETRIEVAL]
ITEMS = [(i, ["train"] * 4) for i in range(1, 13)] + [(20 + i, ["query", "gallery", "gallery"]) for i in range(6)]
LATE = {  # what the protocols decide late in training, brought forward
    "milestones": {"optim.lr_milestones": [1, 2], "training.steps": 4},
    "every_epochs": {"optim.lr_decay_epochs": 1, "training.epochs": 2, "batch.batch_size": 10},
    "epoch_milestones": {"optim.lr_epochs": [1], "training.epochs": 2, "batch.batch_size": 10},
    "constant": {"training.steps": 4},
}

SMALL = {"model.backbone": "small_conv", "model.embedding_dim": 8, "training.eval_every": 2}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    made = {
        "cub200": fixtures.cub(folder / "CUB_200_2011", classes=24, each=6),
        "cars196": fixtures.cars_original(folder / "cars", [f"Car {i}" for i in range(24)], each=5),
        "sop": fixtures.sop(folder / "sop", train=12, test=8, each=4),
        "inshop": fixtures.inshop(folder / "shop", items=ITEMS),
    }
    return made, folder / "cache"


def small(name, roots, **more):
    """Return a protocol with smaller sizes and otherwise unchanged settings."""
    protocol = protocols()[name]
    instances = int(protocol.settings.get("batch.instances_per_class", 2))
    own = {"data.root": str(roots[0][protocol.dataset]), "batch.batch_size": 4 * instances}
    pictures = {"data.strict": False, "data.shorter_side": 20, "augment.crop": 16, "augment.resize": 18}
    late = LATE[str(protocol.settings["optim.lr_schedule"])]
    layers = [Layer("data", {"data.name": protocol.dataset}), protocol_layer(protocol)]
    layers += [Layer("small", {**SMALL, **own, **pictures, **late}), Layer("more", more)]
    return resolve(*layers).config


def resolved(name):
    protocol = protocols()[name]
    config = resolve(Layer("data", {"data.name": protocol.dataset}), protocol_layer(protocol)).config
    return config.settings()


def run(config, folder, cache):
    rows = []
    context = TrialContext(folder, torch.device("cpu"), sink=lambda row: rows.append(dict(row)))
    return train(config, context, cache_dir=cache), rows


@pytest.mark.parametrize("name", slow_after(2, sorted(PAPERS, key=lambda name: (PAPERS.index(name) % 14, name))))
def test_a_protocol_of_a_paper_trains_and_is_evaluated(name, roots, tmp_path):
    config = small(name, roots)
    outcome, rows = run(config, tmp_path, roots[1])
    assert outcome.step == rows[-1]["step"]
    sealed = read_sealed(tmp_path)
    assert {f"test/recall_at_{k}" for k in config.evaluation.ks} <= set(sealed)
    assert all(torch.isfinite(torch.tensor(row["train/loss"])) for row in rows)
    if config.data.name == "inshop":
        assert sealed["test/queries"] == 6


def test_every_data_set_of_the_papers_has_a_protocol_here():
    assert {protocols()[name].dataset for name in PAPERS} == set(RETRIEVAL)
    assert len(PAPERS) > 30


@pytest.mark.slow
def test_bn_inception_trains_under_the_papers_protocol_and_needs_its_weights(roots, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    own = {"model.backbone": "bn_inception", "augment.crop": 32, "augment.resize": 36}
    with pytest.raises(ConfigError, match="checkpoints"):
        run(small("sec/cub200", roots, **own, **{"model.weights": "bn_inception-52deb4733.pth"}), tmp_path, roots[1])
    config = small("sec/cub200", roots, **own, **{"training.steps": 2})
    assert config.model.freeze_bn
    outcome, _ = run(config, tmp_path / "run", roots[1])
    assert outcome.step == 2


def test_the_command_line_shows_a_protocol_with_the_source_of_each_value(command_line):
    code, out, _ = command_line("train", "--protocol", "sec/cars196", "--show", "--json")
    assert code == 0
    shown = json.loads(out)
    assert shown["data.name"] == {"value": "cars196", "origin": "--protocol"}
    assert shown["optim.lr"]["value"] == 1e-5
    assert "paper: SEC, supplement" in shown["optim.lr"]["origin"]
    assert "code: Dyfine/SphericalEmbedding" in shown["optim.weight_decay"]["origin"]
    assert shown["model.weights"]["origin"].startswith("protocol sec/cars196: code: ")
    assert shown["data.split"]["origin"].startswith("protocol sec/cars196: open: ")
    assert shown["optim.beta1"]["origin"] == "default"
    assert set(shown) == set(resolved("sec/cars196"))


FACES = [name for name, p in protocols().items() if p.origin == "paper" and p.dataset == "webface"]
CIFAR = [name for name, p in protocols().items() if p.origin == "paper" and p.dataset.startswith("cifar")]


def settings(**more):
    small = {**SMALL, "training.steps": 2, "training.precision": "float32", **more}
    return [word for path, value in small.items() for word in ("--set", f"{path}={json.dumps(value)}")]


@pytest.fixture
def faces(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_DML_CACHE", str(tmp_path / "cache"))
    folder = fixtures.webface(tmp_path / "faces_webface_112x112", people=(6,) * 10)
    for name in ("lfw", "agedb_30", "cfp_fp"):
        fixtures.face_bin(folder / f"{name}.bin", pairs=10)
    return folder


FACE_SETTINGS = settings(
    **{"augment.crop": 32, "augment.resize": 32, "batch.batch_size": 8, "task.pairs": 20},
    **{"data.validation_fraction": 0.3},
)


@pytest.mark.parametrize("name", FACES)
def test_a_face_protocol_trains_and_is_evaluated_on_its_benchmarks(name, faces, command_line):
    words = ("train", "--protocol", name, "--data-root", faces, *FACE_SETTINGS, "--json")
    benchmarks = ("--set", f"task.evaluation_root={faces}", "--set", "task.strict=false")
    code, out, err = command_line(*words, *benchmarks)
    assert (code, json.loads(out)["status"]) == (0, "finished"), err
    assert any(name.startswith("val/") for name in json.loads(out)["metrics"])


def test_missing_or_wrong_benchmarks_of_faces_are_reported_before_training(faces, command_line):
    words = ("train", "--protocol", FACES[0], "--data-root", faces, *FACE_SETTINGS)
    (faces / "lfw.bin").unlink()
    code, _, err = command_line(*words, "--set", f"task.evaluation_root={faces}")
    assert code == 1
    assert "lfw.bin: the verification file must exist" in err
    assert "agedb30 has 6000 pairs, but got 10" in err


@pytest.mark.parametrize("name", CIFAR)
def test_a_contrastive_protocol_trains_and_is_evaluated(name, tmp_path, monkeypatch, command_line):
    monkeypatch.setenv("TUNE_DML_CACHE", str(tmp_path / "cache"))
    dataset = protocols()[name].dataset
    root = getattr(fixtures, dataset)(tmp_path / "batches", each=60)
    small = settings(
        **{"batch.batch_size": 16, "task.linear_epochs": 1, "data.strict": False, "data.validation_fraction": 0.3}
    )
    code, out, err = command_line("train", "--protocol", name, "--data-root", root, *small, "--json")
    assert (code, json.loads(out)["status"]) == (0, "finished"), err
    assert "val/linear_top1" in json.loads(out)["metrics"]
    assert "(published: 60000)" in err
