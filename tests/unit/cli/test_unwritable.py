"""Verbs where the disk is full or a folder cannot be written, and what the doctor checks."""

import errno
import json
import os
import shutil
from types import SimpleNamespace

from helpers.toys import write_sweep

from tune_dml.cli.doctor import _disk


def test_mv_changes_nothing_if_the_plan_cannot_be_written(output_of, tmp_path, monkeypatch):
    write_sweep(tmp_path / "toy")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in output_of("mv", "toy", "new", "--storage", tmp_path, code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_doctor_names_folders_that_cannot_be_written(output_of):
    words = ("--storage", "/proc/sweeps", "--cache-dir", "/proc/cache", "--json")
    findings = {row["subject"]: row["level"] for row in json.loads(output_of("doctor", *words, code=1))["findings"]}
    assert findings["storage"] == findings["cache"] == "problem"


def test_doctor_measures_the_disk_of_the_storage(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=(folder == tmp_path) * 2**31))
    assert (_disk(tmp_path / "new" / "sweeps").level, _disk(tmp_path.parent).level) == ("ok", "problem")


def test_init_refuses_an_unwritable_folder_before_it_reads_pictures(output_of):
    assert "-o: must be a folder that can be written" in output_of("init", "few", "-o", "/proc/few.yaml", code=1)
