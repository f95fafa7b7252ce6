"""Fixtures of all tests: a quiet environment for each, and one small Ray for the tests that run sweeps."""

import functools
import gc
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

gc.disable()  # until all is imported: collecting garbage takes a quarter of the time that torch, ray and mlflow need
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin for each other take what other tests need
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - another program's memory must not kill a test's trial
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"  # one process less; tests have no preemption
os.environ["COLUMNS"] = "120"
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # `python`, `ray`
os.environ |= {"AWS_ACCESS_KEY_ID": "ours", "AWS_SECRET_ACCESS_KEY": "ours", "AWS_EC2_METADATA_DISABLED": "true"}
for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
    os.environ.pop(name, None)

TOGETHER = {
    "tests/faults/test_killed_driver.py": "sweeps",
    "tests/integration/": "sweeps",
    "tests/equivalence/": "ranks",
    "tests/unit/report/": "reports",
}
"""Groups of tests that share a Ray, sweeps, ranks or reports; the longest waits come first."""


def pytest_addoption(parser):
    parser.addoption("--record-curves", action="store_true", help="record what tests/golden compares with")


def shared(nodeid: str) -> str:
    """Return the group of a test: its file, or a resource that it shares with other files."""
    return next((group for start, group in TOGETHER.items() if nodeid.startswith(start)), nodeid.partition("::")[0])


def pytest_collection_modifyitems(items):
    """Start slow tests first: killed drivers, then other sweeps."""
    killed = next(iter(TOGETHER))
    items.sort(key=lambda item: (not item.nodeid.startswith(killed), shared(item.nodeid) != "sweeps"))


def pytest_collection_finish():
    """Exempt present objects from garbage collection, and disable waiting for the disk."""
    from sqlalchemy import Engine, event

    gc.enable()
    gc.freeze()
    os.fsync = lambda file: None  # no test cuts the power, and each of thousands of calls takes milliseconds
    event.listen(Engine, "connect", lambda connection, record: connection.execute("PRAGMA synchronous=OFF"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With several processes, run tests that share a resource in one of them."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return shared(nodeid)

    return GroupScheduling(config, log)


@pytest.fixture(scope="session")
def _working_directories(tmp_path_factory):
    """Create numbered folders; pytest's own numbering lists all earlier ones each time, nine seconds in all."""
    base = tmp_path_factory.mktemp("cwd")
    return (base / str(number) for number in itertools.count())


@pytest.fixture
def tmp_path(_working_directories) -> Path:
    """An empty folder for this test."""
    folder = next(_working_directories)
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _own_working_directory(tmp_path, monkeypatch):
    """Every test runs in its `tmp_path`: sweeps and mlflow.db go there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def of_the_run(tmp_path_factory) -> Path:
    """Return a folder shared by all processes of the run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def cache_dir(of_the_run) -> Path:
    """Decoded data sets, shared by all processes of the run."""
    folder = of_the_run / "decoded"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def ray_session():
    """One local Ray for all tests that sweep in this process."""
    from tune_dml.running.cluster import cluster

    with cluster.connect(None, engine="local") as capacity:
        yield capacity


def follows_its_schema(arguments, code, text):
    """Check that the output of --json is strict JSON and follows the verb's schema."""
    import jsonschema

    from tune_dml.cli._json import schemas

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    printed, known = json.loads(text, parse_constant=refuse), schemas()
    words = [" ".join(map(str, arguments[:2])), str(arguments[0])]
    words = [f"{words[1]} {flag}" for flag in ("--show", "--rank") if flag in arguments] + words
    failed = isinstance(printed, dict) and "error" in printed and code in {1, 2}
    name = "error" if failed else next((word for word in words if word in known), None)
    several = name == "report" and "conclusions" in printed
    if name and not several:
        jsonschema.validate(printed, known[name])


@pytest.fixture(scope="session", autouse=True)
def _one_command():
    """Build the command of `main` only once."""
    import typer.main

    from tune_dml import cli

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "application", functools.cache(cli.application))
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        cli.application()  # before any test changes what it is made of
        yield


@pytest.fixture
def command_line(capsys, monkeypatch):
    """Run a command line in this process: (exit code, standard output, standard error)."""
    from tune_dml.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tune-dml", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        code = int(end.value.code or 0)
        if "--json" in arguments:
            follows_its_schema(arguments, code, captured.out)
        return code, captured.out, captured.err

    return run


@pytest.fixture
def output_of(command_line):
    """Run a command line that must end with `code`; return its output, or of a refused one the message."""

    def run(*arguments, code=0):
        ended, out, err = command_line(*arguments)
        assert ended == code, out + err
        return (err or out) if code else out

    return run


@pytest.fixture(scope="session")
def new_database(of_the_run):
    """Copy an MLflow store without runs into a folder; MLflow takes seconds to create its tables."""
    from filelock import FileLock

    from tune_dml.tracking.client import open_client, quiet_mlflow

    source = of_the_run / "database"
    with FileLock(f"{source}.lock"), quiet_mlflow():
        if not source.exists():
            source.mkdir()
            open_client(f"sqlite:///{source}/mlflow.db")

    def copied(folder) -> str:
        for file in source.glob("mlflow.db*"):
            shutil.copy(file, folder)
        return f"sqlite:///{folder}/mlflow.db"

    return copied


@pytest.fixture
def store():
    """An S3 server on loopback with an empty bucket."""
    from helpers.bucket import Store

    with Store() as served:
        yield served
