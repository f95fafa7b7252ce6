"""Record the outcomes of fault tests, which `make test-faults` writes to docs/reliability.md; an undisturbed sweep."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from helpers.sweeps import SweepProcess, sweep_file

FOUND = os.environ.get("TUNE_DML_FAULTS")


def pytest_collection_modifyitems(items):
    """Raise the time limit: three starts of Ray take minutes on a busy machine."""
    for item in items:
        ours = item.path.parent == Path(__file__).parent and item.get_closest_marker("slow")
        if ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def found(request):
    """Return a function that records a fault and its outcome."""

    def note(fault, outcome):
        assert outcome["lost"] == outcome["doubled"] == 0, outcome
        assert not outcome.get("steps") or "torn" in fault, outcome  # a trial resumes from any intact checkpoint
        if FOUND:
            with Path(FOUND).open("a") as file:
                file.write(json.dumps({"fault": fault, **outcome}) + "\n")

    return note


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, cache_dir):
    """Return the table of an undisturbed sweep."""
    place = tmp_path_factory.mktemp("undisturbed")
    with contextlib.chdir(place):
        words = ["sweep", sweep_file(), "--name", "toy", "--cache-dir", cache_dir]
        return SweepProcess(words, place / "sweeps" / "toy").final_table()
