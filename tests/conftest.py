"""Shared by all tests: a quiet environment of their own, and one small Ray for those that sweep."""

import itertools
import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - another program's memory must not kill a test's trial
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["COLUMNS"] = "120"
for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
    os.environ.pop(name, None)


def pytest_addoption(parser):
    parser.addoption("--record-curves", action="store_true", help="record what tests/golden compares with")


def pytest_collection_modifyitems(items):
    """What waits longest starts first: the sweeps of integration/, then the driver that is killed."""
    first = ("tests/integration/", "tests/faults/")
    items.sort(key=lambda item: next((n for n, place in enumerate(first) if item.nodeid.startswith(place)), len(first)))


def pytest_xdist_make_scheduler(config, log):
    """With several processes, a file stays in one of them, and all of integration/ in one: its tests share Ray and sweeps."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "integration" if nodeid.startswith("tests/integration/") else nodeid.partition("::")[0]

    return ByFile(config, log)


@pytest.fixture(scope="session")
def _working_directories(tmp_path_factory):
    """New folders, counted here: pytest's own numbering reads all earlier ones each time, nine seconds in all."""
    base = tmp_path_factory.mktemp("cwd")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_working_directory(_working_directories, monkeypatch):
    """Every test runs in an empty folder: sweeps and mlflow.db go there."""
    folder = next(_working_directories)
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory) -> Path:
    """Decoded data sets, shared by the session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def ray_session():
    """One local Ray for all tests that sweep in this process, as engine `train` starts it: engine `local` needs less."""
    from tune_dml.running import cluster

    with cluster.connected(None, engine="train") as capacity:
        yield capacity
