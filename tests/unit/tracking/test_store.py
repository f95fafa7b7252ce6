"""The choice of a store, and its problems, reported before anything is written."""

import contextlib
import json
import socket
import sqlite3
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.answers import AnsweringServer

from tune_dml.planning.request import Session
from tune_dml.tracking import experiment_name, store_problems, tracking_uri, with_last_store
from tune_dml.tracking import store as tracking_store
from tune_dml.tracking.client import open_client
from tune_dml.tracking.store import is_on_local_disk, sweep_link, ui_command


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


@pytest.fixture
def serve():
    """Return a function that starts a server with one answer."""
    with contextlib.ExitStack() as servers:
        yield lambda *answer: servers.enter_context(AnsweringServer(answer))


def test_store_and_experiment_are_chosen_by_precedence(tmp_path, monkeypatch, plan):
    assert tracking_uri(None) == (f"sqlite:///{tmp_path}/mlflow.db", "default")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
    assert tracking_uri(None) == ("http://server:5000", "MLFLOW_TRACKING_URI")
    assert tracking_uri("sqlite:///my.db") == (f"sqlite:///{tmp_path}/my.db", "flag")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    assert experiment_name(None, plan) == "toy_margin"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert experiment_name(None, plan) == "mine"
    assert experiment_name("flag", plan) == "flag"


def test_a_job_keeps_its_store_beside_the_sweeps(tmp_path, monkeypatch):
    assert tracking_uri(None, tmp_path / "shared") == (f"sqlite:///{tmp_path}/mlflow.db", "default")
    monkeypatch.setenv("TUNE_DML_SUBMITTED_TO", "cluster.yaml")
    assert tracking_uri(None, tmp_path / "shared") == (f"sqlite:///{tmp_path}/shared/mlflow.db", "default")
    assert tracking_uri("sqlite:///my.db", tmp_path / "shared")[0] == f"sqlite:///{tmp_path}/shared/my.db"
    assert tracking_uri("sqlite:////my.db", tmp_path / "shared")[0] == "sqlite:////my.db"


def test_a_new_or_mlflows_own_database_is_fine(tmp_path, uri):
    assert store_problems(uri) == []
    assert store_problems(f"sqlite:///{tmp_path}/new/folder/x.db") == []
    (tmp_path / "empty.db").touch()
    assert store_problems(f"sqlite:///{tmp_path}/empty.db") == []


def one_problem(uri):
    (problem,) = store_problems(uri)
    assert problem.place == "MLflow tracking URI"
    assert problem.remedy
    return str(problem)


def test_a_database_of_another_mlflow_is_reported(uri):
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'older'")
    assert "must have the schema of the installed MLflow" in one_problem(uri)


def test_a_link_to_a_network_file_system_is_not_local(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "far")
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/far nfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda path, *_: mounts)
    assert is_on_local_disk(tmp_path / "x.db")
    assert not is_on_local_disk(tmp_path / "link" / "x.db")


def test_unusable_databases_are_reported(tmp_path, monkeypatch):
    assert "in memory" in one_problem("sqlite://")
    assert "in memory" in one_problem("sqlite:///:memory:")
    (tmp_path / "text.db").write_text("this is no database at all, but long enough to be read as one")
    spoilt = one_problem(f"sqlite:///{tmp_path}/text.db")
    assert "must open for writing" in spoilt
    assert "move this one away" in spoilt
    assert "must be writable" in one_problem(f"sqlite:///{tmp_path}")
    assert "must be writable" in one_problem(f"sqlite:///{tmp_path}/text.db/inside.db")
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE mine (x)")
    assert "must be MLflow's or empty" in one_problem(f"sqlite:///{tmp_path}/other.db")
    monkeypatch.setattr(tracking_store, "_TIMEOUT", 0.01)
    holder = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    assert "locked" in one_problem(f"sqlite:///{tmp_path}/x.db")
    holder.close()


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("file:///data/mlruns", "Use sqlite:////data/mlflow.db"),  # beside it
        ("./mlruns", "Use sqlite:///"),
        ("/data/mlruns", "Use sqlite:///"),
        ("ftp://host/x", "Use sqlite:///"),
        *((malformed, "") for malformed in ("http://", "http://host:notaport/", "https://[::1")),
    ],
)
def test_folders_unknown_schemes_and_malformed_addresses_are_problems(uri, remedy):
    assert remedy in one_problem(uri)


def test_an_absent_or_silent_server_is_named_without_its_password(monkeypatch):
    text = one_problem("http://me:hunter2@127.0.0.1:9/")
    assert "(Connection refused)" in text
    assert "hunter2" not in text
    assert "http://***@127.0.0.1:9/" in text
    monkeypatch.setattr(tracking_store, "_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "timed out" in one_problem(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_writable_server_is_accepted(serve, monkeypatch):
    server = serve(404, '{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "Run not found"}')
    uri = server.url
    assert store_problems(uri) == []
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    assert store_problems(uri) == []
    assert store_problems(uri.replace("//", "//me:pw@")) == []
    assert server.seen == ["", "Bearer t0ken", "Basic bWU6cHc="]


def test_a_server_that_only_mlflows_own_login_opens_is_accepted(serve, tmp_path, monkeypatch):
    uri = serve(401, "who are you").url
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "must let us write" in one_problem(uri)
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").touch()
    assert store_problems(uri) == []


def test_a_store_of_a_plugin_is_accepted(monkeypatch):
    plugin = lambda group, name: ["azureml"] * (group == "mlflow.tracking_store" and name == "azureml")  # noqa: E731
    monkeypatch.setattr(tracking_store.metadata, "entry_points", plugin)
    assert store_problems("azureml://host/mlflow") == []
    assert "must name a database or a server" in one_problem("azure://host/mlflow")


def test_certificates_are_those_of_mlflows_client(tmp_path, monkeypatch):
    loaded: list[object] = []
    context = SimpleNamespace(load_cert_chain=loaded.append)
    load = lambda cafile, capath: loaded.append((cafile, capath)) or context  # noqa: E731
    monkeypatch.setattr(tracking_store.ssl, "create_default_context", load)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("CURL_CA_BUNDLE", str(tmp_path))
    tracking_store._tls("https")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "all.pem")
    monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", "me.pem")
    tracking_store._tls("https")
    assert loaded == [(None, str(tmp_path)), ("all.pem", None), "me.pem"]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, "who are you", "must let us write"),
        (403, "Invalid Host header", "--allowed-hosts"),
        (404, "<html>nothing here</html>", "an MLflow server must answer"),
        (404, "[1]", "an MLflow server must answer"),
        (502, "bad gateway", "must accept requests (got 502 Bad Gateway)"),
        (429, "slow down", "must accept requests (got 429 Too Many Requests)"),
        (200, "<html><form>Sign in</form></html>", "got a web page, such as a login"),
        (200, "", "got a web page, such as a login"),
    ],
)
def test_unexpected_answers_of_a_server_are_named(serve, status, body, said):
    assert said in one_problem(serve(status, body).url)


def test_a_database_server_needs_its_driver_and_must_listen(monkeypatch):
    for scheme in ("mysql", "mysql+mysqldb", "mysql+nosuchdriver"):
        monkeypatch.setitem(sys.modules, "MySQLdb", None)
        assert "driver of the database must be installed" in one_problem(f"{scheme}://me:hunter2@127.0.0.1:9/db")
    monkeypatch.setitem(sys.modules, "MySQLdb", SimpleNamespace())  # SQLAlchemy's driver of both addresses
    assert "must accept connections" in one_problem("mysql://me:hunter2@127.0.0.1:9/db")
    text = one_problem("mysql+mysqldb://me:hunter2@127.0.0.1:9/db")
    assert "must accept connections" in text
    assert "hunter2" not in text


@pytest.mark.slow
@pytest.mark.parametrize("length", [470, 471])
def test_a_path_that_sqlite_does_not_take_is_refused(tmp_path, length):
    """MLflow would retry for a long time, and the end of the sweep would wait for it."""
    folder = tmp_path
    while (rest := length - len(f"{folder}//mlflow.db")) > 0:
        folder = folder / ("d" * min(rest, 200))
    folder.mkdir(parents=True)
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    if length == 470:
        assert store_problems(uri) == []
        assert open_client(uri).search_experiments()
    else:
        assert "at most 470 bytes, it has 471" in one_problem(uri)


def test_a_removed_working_directory_does_not_hide_the_command(tmp_path, monkeypatch):
    """As in a sweep with storage and store elsewhere: it ended without its table."""
    monkeypatch.setenv("PATH", "")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ui_command("sqlite:////a/mlflow.db").endswith("mlflow ui --backend-store-uri sqlite:////a/mlflow.db")
    assert tracking_uri("sqlite:////a/mlflow.db") == ("sqlite:////a/mlflow.db", "flag")


def test_the_ui_command_names_the_store(monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    assert ui_command("sqlite:////a b/mlflow.db") == "mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'"
    assert ui_command("http://me:pw@h:5000") == "python -m webbrowser http://h:5000"
    assert sweep_link("https://me:pw@h:5000/", "7", "toy").startswith("https://h:5000/#/experiments/7/runs?")
    assert ui_command("postgresql://me:pw@h/db") == 'mlflow ui --backend-store-uri "$MLFLOW_TRACKING_URI"'


def test_a_proxy_that_answers_for_the_server_is_named(serve, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # which reads the environment when it is first used
    monkeypatch.setenv("http_proxy", serve(502, "no such host").url)
    (problem,) = store_problems("http://127.0.0.1:5000")
    assert "got 502" in problem.rule
    assert "To avoid it: `export no_proxy=127.0.0.1`." in problem.remedy
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "proxy" not in store_problems("http://127.0.0.1:9")[0].remedy


def test_a_sweep_keeps_its_last_store_and_experiment(tmp_path, monkeypatch):
    folder = tmp_path / "sweep"
    folder.mkdir()
    plain = Session(str(tmp_path))
    assert with_last_store(plain, folder) == plain  # nothing stored yet

    def last(uri):
        (folder / "mlflow.json").write_text(json.dumps({"uri": uri, "experiment": "mine"}))
        found = with_last_store(plain, folder)
        return found.tracking_uri, found.experiment

    assert last(f"sqlite:///{tmp_path}/own.db") == (f"sqlite:///{tmp_path}/own.db", "mine")
    assert with_last_store(replace(plain, experiment="named"), folder).experiment == "named"
    flagged = replace(plain, tracking_uri="sqlite:///other.db")
    assert with_last_store(flagged, folder) == flagged
    assert last(f"sqlite:///{tmp_path}/moved/away/own.db") == (None, None)
    assert last("https://user:***@example.org") == (None, None)  # the secret is not stored
    (folder / "mlflow.json").write_text('{"uri": tor')
    assert with_last_store(plain, folder) == plain
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.org")
    last("http://example.net")
    assert with_last_store(plain, folder) == plain
