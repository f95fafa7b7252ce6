"""One SLURM of three virtual nodes for all its tests; `make test-slurm` installs Debian's packages first."""

import json
import os
from pathlib import Path

import pytest
from helpers.slurm import HAS_SLURM, Slurm

FOUND = os.environ.get("TUNE_DML_FAULTS")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    if not HAS_SLURM:
        pytest.skip("slurmctld, slurmd and sbatch are not installed, or this is not root: `make test-slurm`")
    with Slurm(tmp_path_factory.mktemp("slurm") / "s", nodes=3) as running:
        yield running


@pytest.fixture
def found():
    """Return a function that records an event and its outcome."""

    def note(fault, outcome):
        assert outcome["lost"] == outcome["doubled"] == 0, outcome
        if FOUND:
            with Path(FOUND).open("a") as file:
                file.write(json.dumps({"fault": fault, **outcome}) + "\n")

    return note
