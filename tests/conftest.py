"""Shared by all tests: a quiet environment of their own, and one small Ray for those that sweep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - another program's memory must not kill a test's trial
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["COLUMNS"] = "120"
for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
    os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _own_working_directory(tmp_path_factory, monkeypatch):
    """Every test runs in an empty folder: sweeps and mlflow.db go there."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory) -> Path:
    """Decoded data sets, shared by the session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def ray_session():
    """One local Ray for all tests that sweep in this process."""
    from tune_dml import cluster

    with cluster.connected(None, engine="local") as capacity:
        yield capacity
