"""Sweeps that run once and are read by many tests."""

import shutil
import sys
from pathlib import Path

import pytest
from helpers.published_formats import image_folder

QUICK = {"training.steps": 10, "training.eval_every": 5}


OWN = """
method: tpe
metric: {name: val/map_at_r, goal: maximize}
parameters:
  loss.margin: {values: [0.1, 0.5]}
  optim.lr: {min: 1.0e-5, max: 1.0e-3, distribution: log_uniform}
  loss.name: {value: semihard_triplet}
run_cap: 4
dataset: image_folder
data_root: mine
seeds: 2
fixed: {batch.batch_size: 4, batch.instances_per_class: 2, data.validation_fraction: 0.5, regularizer.name: sec,
  regularizer.eta: 0.1}
"""
"""A user's own sweep file: a search on the user's own pictures."""


@pytest.fixture(scope="session")
def two_sweeps(tmp_path_factory, ray_session, cache_dir, new_database):
    """A working directory with two finished sweeps: the grid `rho1` on digits, and the search `lr1` of a sweep file.

    Nobody may change it: who goes on with a sweep takes `a_copy`.
    """
    from tune_dml.cli import main

    place = tmp_path_factory.mktemp("two_sweeps")
    new_database(place)
    image_folder(place / "mine")
    (place / "lr1.yaml").write_text(OWN)
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(place)
        for sweep in (
            ["sec_rho", "--dataset", "digits", "--seeds", "2", "--name", "rho1", "--max-concurrent", "1"],
            ["lr1.yaml", "--max-concurrent", "1"],
        ):
            words = ["tune-dml", "sweep", *sweep, *settings, "--cache-dir", str(cache_dir)]
            monkeypatch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as end:
                main()
            assert not end.value.code
    return place


@pytest.fixture(scope="module")
def a_copy(two_sweeps, tmp_path_factory):
    """A copy of the same working directory for one module."""
    return Path(shutil.copytree(two_sweeps, tmp_path_factory.mktemp("copy") / "work"))


@pytest.fixture
def refused(command_line, cache_dir):
    """Run `sweep sec_rho` with options and check its message; nothing may be stored."""

    def check(words, message):
        code, out, err = command_line("sweep", "sec_rho", "--dataset", "digits", "--cache-dir", cache_dir, *words)
        assert code == 1
        assert message in " ".join((out + err).split())
        assert not Path("sweeps").exists()

    return check
