"""Sweeps that run once and are looked at by many tests."""

import os
import shutil
import sys
from pathlib import Path

import pytest

QUICK = {"training.steps": 10, "training.eval_every": 5}


@pytest.fixture(scope="session")
def two_sweeps(tmp_path_factory, ray_session, cache_dir):
    """A working directory with two finished sweeps: the grid `rho1`, by the command line, and the search `lr1`, by Python.

    Nobody may change it: who goes on with a sweep takes `a_copy`.
    """
    import tune_dml
    from tune_dml.cli import main
    from tune_dml.space import Knob, LogRange, Space

    place = tmp_path_factory.mktemp("two_sweeps")
    space = Space(
        name="lr",
        title="own",
        question="",
        citation=None,
        scientific=(Knob("optim.lr", LogRange(1e-5, 1e-3), "lr"),),
        fixed={**QUICK, "loss.name": "semihard_triplet", "regularizer.name": "sec", "regularizer.eta": 0.1},
        default_dataset="digits",
    )
    here, before = Path.cwd(), sys.argv
    os.chdir(place)
    try:
        grid = ["sweep", "sec_rho", "--dataset", "digits", "--seeds", "2", "--name", "rho1"]
        settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
        sys.argv = ["tune-dml", *grid, *settings, "--cache-dir", str(cache_dir)]
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        tune_dml.run_sweep(space, seeds=2, search="tpe", num_samples=4, name="lr1", cache_dir=cache_dir)
    finally:
        os.chdir(here)
        sys.argv = before
    return place


@pytest.fixture(scope="module")
def a_copy(two_sweeps, tmp_path_factory):
    """The same working directory for one module's own use."""
    return Path(shutil.copytree(two_sweeps, tmp_path_factory.mktemp("copy") / "work"))
