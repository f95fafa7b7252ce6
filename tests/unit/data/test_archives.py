"""Archives and pickles from strangers."""

import io
import os
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

from trainables.data.formats.archives import unpack
from trainables.data.formats.safe_pickle import load_pickle
from trainables.errors import DataError


def _tar(path, entries):
    with tarfile.open(path, "w") as tar:
        for info, data in entries:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:/evil.txt"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_escaping_paths_are_refused_before_anything_is_written(tmp_path, name, kind):
    archive, folder = tmp_path / f"a.{kind}", tmp_path / "out"
    folder.mkdir()
    if kind == "tar":
        _tar(archive, [(tarfile.TarInfo("good.txt"), b"1"), (tarfile.TarInfo(name), b"2")])
    else:
        with zipfile.ZipFile(archive, "w") as target:
            target.writestr("good.txt", "1")
            target.writestr(zipfile.ZipInfo(name), "2")
    with pytest.raises(DataError, match="plain file or folder inside"):
        unpack(archive, folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    _tar(tmp_path / "a.tar", [(_link("link", "/etc/passwd", kind), b"")])
    with pytest.raises(DataError, match="plain file or folder"):
        unpack(tmp_path / "a.tar", tmp_path)


def test_zip_links_are_refused(tmp_path):
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(DataError, match="plain file or folder"):
        unpack(tmp_path / "a.zip", tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_plain_archives_are_unpacked(tmp_path, mode):
    with tarfile.open(tmp_path / "a.tar", mode) as tar:
        info = tarfile.TarInfo("b/c.txt")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"hi"))
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "a.tar", tmp_path / "out")
    assert (tmp_path / "out" / "b" / "c.txt").read_bytes() == b"hi"


def test_a_truncated_archive_is_a_data_error(tmp_path):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        info = tarfile.TarInfo("c.bin")
        info.size = 100_000
        tar.addfile(info, io.BytesIO(os.urandom(100_000)))
    data = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "a.tgz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="readable archive"):
        unpack(tmp_path / "a.tgz", tmp_path)


def test_a_bomb_larger_than_the_disk_is_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * (8 << 20))
    free = shutil.disk_usage(tmp_path)._replace(free=65 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(DataError, match="MiB free"):
        unpack(tmp_path / "a.zip", tmp_path)


class _Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/evil",)


@pytest.mark.parametrize(
    "content",
    [
        *(pickle.dumps({"data": _Evil()}, protocol=protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        *(
            b"c" + name + b"\n."
            for name in (b"builtins\neval", b"numpy\nload", b"numpy.lib.npyio\nload", b"os\nsystem")
        ),
    ],
)
def test_a_pickle_that_names_more_than_array_makers_is_refused(tmp_path, content):
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not allowed"):
        load_pickle(path)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_numbers_text_bytes_and_arrays_are_read(tmp_path, protocol):
    value = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "x": [b"ab", True, 1.5, np.float32(2), "é"]}
    (tmp_path / "batch").write_bytes(pickle.dumps(value, protocol=protocol))
    read = load_pickle(tmp_path / "batch")
    assert np.array_equal(read["data"], value["data"])
    assert read["x"] == value["x"]


def test_a_truncated_pickle_is_a_data_error(tmp_path):
    data = pickle.dumps(list(range(1000)))
    (tmp_path / "batch").write_bytes(data[:100])
    with pytest.raises(DataError, match="plain numbers"):
        load_pickle(tmp_path / "batch")
