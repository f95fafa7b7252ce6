"""The decoded cache: complete or absent, built once, and pickled by path instead of by content."""

import errno
import multiprocessing
import pwd
from pathlib import Path

import numpy as np
import pytest

from trainables.data import build_dataset, default_cache_dir
from trainables.data.base import Contents, DataSet, digest_of
from trainables.data.formats import cache
from trainables.errors import DataError, Problem
from trainables.files import expand_home


def _target(tmp_path):
    return tmp_path / "cache" / "birds-123"


def _write(directory):
    cache.create_images(directory, (3, 4, 4, 1))[:] = 7
    (directory / "about.json").write_text("{}")


def _whole(directory):
    try:
        return (directory / "about.json").exists() and len(cache.open_images(directory)) == 3
    except (OSError, ValueError):
        return False


def _build(target, build):
    cache.build_once(target, build, complete=_whole)


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (KeyboardInterrupt(), {".birds-123.lock", ".building-birds-123"}),
        (DataError(Problem("x.png", "the picture cannot be decoded")), {".birds-123.lock"}),
    ],
)
def test_a_failed_build_leaves_no_complete_cache(tmp_path, error, left):
    target = _target(tmp_path)

    def fails(directory):
        _write(directory)
        raise error

    with pytest.raises(type(error)):
        _build(target, fails)
    assert {path.name for path in target.parent.iterdir()} == left
    _build(target, _write)
    assert (target / "about.json").exists()


def test_a_change_anywhere_in_a_large_file_is_detected(tmp_path):
    file = tmp_path / "pixels.bin"
    file.write_bytes(bytes(3_000_000))
    before = cache.fingerprint(file)
    for start in (0, 1_234_567, 2_950_000):
        with file.open("r+b") as opened:
            opened.seek(start)
            opened.write(b"x" * 50_000)
        assert cache.fingerprint(file) != before
        file.write_bytes(bytes(3_000_000))
    assert cache.fingerprint(file) == before


def test_an_unwritable_cache_is_named_with_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="must be writable"):
        _build(tmp_path / "file" / "birds", _write)

    def refuse(lock):
        raise OSError(errno.EROFS, "Read-only file system", lock.lock_file)

    monkeypatch.setattr(cache.FileLock, "acquire", refuse)
    with pytest.raises(DataError, match=r"the cache directory must be writable.*Read-only.*TUNE_DML_CACHE"):
        _build(_target(tmp_path), _write)


def test_a_build_that_is_killed_before_its_rename_is_complete_after_the_next_one(tmp_path, monkeypatch):
    data = Squares(cache_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_fsync", raises(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            data.prepare()
    data.prepare()
    assert data.is_prepared()


@pytest.mark.parametrize("damage", ["images.npy", "about.json"])
def test_a_damaged_cache_is_rebuilt(tmp_path, damage):
    target = _target(tmp_path)
    _build(target, _write)
    file = target / damage
    if damage == "about.json":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-20])
    _build(target, _write)
    assert np.array_equal(cache.open_images(target), np.full((3, 4, 4, 1), 7))


def _append_and_write(directory):
    with (directory.parent / "builds.txt").open("a") as log:
        log.write("built\n")
    _write(directory)


def _build_together(target, barrier):
    barrier.wait()
    _build(target, _append_and_write)


def test_processes_that_start_together_build_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    workers = [context.Process(target=_build_together, args=(_target(tmp_path), barrier)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert (_target(tmp_path).parent / "builds.txt").read_text() == "built\n"


def test_digits_are_those_of_scikit_learn(tmp_path):
    from sklearn.datasets import load_digits

    pictures = build_dataset("digits", cache_dir=tmp_path).prepare()
    expected = load_digits()
    assert np.array_equal(pictures.labels, expected.target)
    assert np.allclose(pictures.images[:, ::2, ::2, 0], expected.images * 255 / 16, atol=0.5)
    assert pictures.test_classes == (5, 6, 7, 8, 9)


def test_the_environment_sets_the_cache_folder_which_must_be_named_without_a_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TUNE_DML_CACHE", raising=False)
    assert default_cache_dir() == tmp_path / "xdg" / "tune_dml"
    monkeypatch.setenv("TUNE_DML_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
    for name in ("HOME", "TUNE_DML_CACHE", "XDG_CACHE_HOME"):  # as under `docker run --user 12345`
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    with pytest.raises(DataError, match=r"HOME: the cache needs a folder.*Set HOME, or else: Point TUNE_DML_CACHE"):
        default_cache_dir()
    assert expand_home("~/pictures") == Path("~/pictures")  # as a shell leaves it
    (problem,) = build_dataset("image_folder", root="~x/y", cache_dir=tmp_path).check()
    assert "~x/y" in str(problem)


def test_ragged_pictures_index_like_an_array(tmp_path):
    shapes = np.array([[2, 3], [4, 1], [1, 5]], dtype=np.int32)
    images = cache.create_ragged(tmp_path, shapes, channels=3)
    for i in range(3):
        images[i][:] = i + 1
    images.pixels.flush()
    cache.select_images(tmp_path, np.array([2, 0]))
    opened = cache.open_images(tmp_path)
    assert opened.shape == (2, 0, 0, 3)
    assert [opened[i].shape for i in range(2)] == [(1, 5, 3), (2, 3, 3)]
    assert [set(opened[i].ravel()) for i in range(2)] == [{3}, {1}]
    with pytest.raises(TypeError, match="Views makes batches"):
        opened[np.array([0, 1])]


class Squares(DataSet):
    """Four grey squares, changed by `said`."""

    name = citation = licence = source = "squares"
    said = Contents(np.array([0, 0, 1, 1]), ("black", "white"))

    def check(self):
        return []

    def digest(self):
        return digest_of(self.name)

    def test_classes(self, class_names):
        return (1,)

    def write(self, directory, progress):
        cache.create_images(directory, (4, 2, 2, 1))
        return self.said


def returns_nothing(*given):
    pass


@pytest.mark.parametrize(
    ("part", "wrong", "rule"),
    [
        ("check", returns_nothing, r"check\(\) must return Iterable, but got 'NoneType'"),
        ("digest", returns_nothing, r"digest\(\) must return str, but got 'NoneType'"),
        ("test_classes", returns_nothing, r"test_classes\(\) must return Iterable, but got 'NoneType'"),
        ("test_classes", lambda *given: (1, 2), r"test_classes must be numbers of its 2 classes.* \[2\]"),
        ("test_classes", lambda *given: [False, True], r"\[False, True\]. For a mask, return np.flatnonzero\(mask\)"),
        ("test_classes", lambda *given: np.array([0, 1]) > 0, r"classes, from 0, but got \[False, True\]"),
        ("test_classes", lambda *given: ("white",), r"classes, from 0, but got \['white'\]"),
        ("test_classes", lambda *given: np.array([[1]]), r"classes, from 0, but got \[\[1\]\]"),
        ("test_classes", lambda *given: (0.5,), r"classes, from 0, but got \[0.5\]"),
        ("said", None, r"write\(\) must return Contents, but got 'NoneType'"),
        ("said", Contents(np.arange(3), ("a", "b", "c")), r"the 4 pictures, but got 'int64 of shape \(3,\)'"),
        ("said", Contents(np.arange(4) / 2, ("a", "b")), r"but got 'float64 of shape \(4,\)'"),
        ("said", Contents(np.arange(4) - 1, ("a", "b", "c")), "numbers of its 3 classes, from 0, but got '-1 to 2'"),
        ("said", Contents(np.array([0, 0, 1, 2]), ("a", "b")), "but got '0 to 2'"),
        ("said", Contents(np.array([0, 0, 1, 1]), (b"a", b"b")), "class_names must be text, but got 'bytes'"),
    ],
)
def test_a_wrong_part_of_a_data_set_is_refused_and_nothing_is_kept(tmp_path, part, wrong, rule):
    with pytest.raises(DataError, match=f"data set squares: .*{rule}"):
        type("Wrong", (Squares,), {part: wrong})(cache_dir=tmp_path).prepare()
    sound = Squares(cache_dir=tmp_path)
    assert not sound.is_prepared()
    assert sound.prepare().labels.tolist() == [0, 0, 1, 1]


def raises(error):
    def method(*given):
        raise error

    return method


@pytest.mark.parametrize("name", ["check", "digest", "test_classes", "write"])
@pytest.mark.parametrize("error", [KeyError("x"), FileNotFoundError(2, "No such file", "list.txt"), SystemExit("bye")])
def test_an_error_in_a_method_of_a_data_set_is_one_line_with_its_name(tmp_path, name, error):
    wrong = type("Wrong", (Squares,), {name: raises(error)})
    data = wrong(cache_dir=tmp_path)
    with pytest.raises(DataError) as caught:
        data.prepare()
    (problem,) = caught.value.problems

    assert problem.place == "data set squares"
    assert problem.rule == f"{name}() must not fail"
    assert type(error).__name__ in problem.value
    assert "trainables.testing" in problem.remedy
    assert caught.value.__cause__ is error
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_a_file_without_permission_is_named(tmp_path):
    denied = PermissionError(errno.EACCES, "Permission denied", "list.txt")
    with pytest.raises(DataError, match=r"^list\.txt: access must be permitted, but got 'Permission denied'"):
        type("Wrong", (Squares,), {"check": raises(denied)})(cache_dir=tmp_path).prepare()


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), MemoryError(), DataError(Problem("a", "b"))]
)
def test_errors_outside_a_data_set_are_raised_unchanged(tmp_path, error):
    wrong = type("Wrong", (Squares,), {"write": raises(error)})
    with pytest.raises(type(error)) as caught:
        wrong(cache_dir=tmp_path).prepare()
    assert caught.value is error
