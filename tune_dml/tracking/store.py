"""Choose the MLflow store of a sweep, check it, and show how to open it.

    uri, origin = tracking_uri(flag, sweeps)   # flag, else MLFLOW_TRACKING_URI, else SQLite in the working directory
    check(uri)                             # problems, within seconds
    ui_command(uri)                        # mlflow ui --backend-store-uri sqlite:////home/me/mlflow.db

Imports no MLflow: the import takes seconds, its client creates the database that it checks, and its error for an absent
server names no remedy (ADR 1).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from trainables.errors import Problem
from tune_dml.planning.plan import Plan
from tune_dml.record.origin.commands import SUBMITTED_TO
from tune_dml.record.origin.provenance import mask, without_login
from tune_dml.record.origin.proxies import directly

_TIMEOUT = 4.0
"""Seconds that a check waits for a server."""

_CELL_METRICS = ("mean", "low", "high", "seeds")
"""Columns of the page that the printed link opens."""

_LONGEST_PATH = 470
"""Bytes of a path. SQLite takes 511, and a new database is created one folder deeper."""

_PLACE = "MLflow tracking URI"
_DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_DRIVERS = {"postgresql": "psycopg2", "mysql": "pymysql", "mssql": "pymssql"}
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "fuse.", "ceph", "gpfs", "beegfs", "9p")


def tracking_uri(flag: str | None, sweeps: Path | None = None) -> tuple[str, str]:
    """Return the store and its origin: the flag, MLFLOW_TRACKING_URI, or mlflow.db in the working directory.

    In a job, whose working directory is temporary, the folder of the sweeps is used instead. SQLite paths become absolute.
    """
    folder = sweeps if sweeps is not None and SUBMITTED_TO in os.environ else Path()
    if flag:
        return _absolute(flag, folder), "flag"
    if named := os.environ.get("MLFLOW_TRACKING_URI"):
        return _absolute(named, folder), "MLFLOW_TRACKING_URI"
    return f"sqlite:///{(folder / 'mlflow.db').absolute()}", "default"


def experiment_name(flag: str | None, plan: Plan) -> str:
    """Return the experiment: the flag, MLFLOW_EXPERIMENT_NAME, or the space's name."""
    return flag or os.environ.get("MLFLOW_EXPERIMENT_NAME") or plan.space.name


def local_database(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for other stores."""
    match = re.match(r"sqlite(?:\+\w+)?:///(?P<path>[^?]+)", uri)
    return Path(match["path"]) if match and match["path"] != ":memory:" else None


def on_local_disk(path: Path) -> bool:
    """Whether a file is on a local disk; network file systems break SQLite's write-ahead log."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    target = str(path.absolute())
    holding = [(len(point), kind) for point, kind in mounts if target.startswith(point.rstrip("/") + "/")]
    return not max(holding, default=(0, "nfs"))[1].startswith(_NETWORK_FILE_SYSTEMS)


def ui_command(uri: str) -> str:
    """Return the command that opens a store in MLflow's pages."""
    if uri.startswith(("http://", "https://")):
        return f"python -m webbrowser {shlex.quote(without_login(uri))}"
    if mask(uri) != uri:  # keeps the secret in the environment
        return f'{_program()} ui --backend-store-uri "$MLFLOW_TRACKING_URI"'
    return f"{_program()} ui --backend-store-uri {shlex.quote(uri)}"


def sweep_link(uri: str, experiment_id: str, sweep: str) -> str:
    """Return the page with the `shared_view` of a sweep; for a database, at the default port of `mlflow ui`."""
    if not experiment_id:
        return ""
    server = without_login(uri).rstrip("/") if uri.startswith(("http://", "https://")) else "http://127.0.0.1:5000"
    view = quote(sweep, safe="")
    return f"{server}/#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={view}"


def shared_view(sweep: str, parameters: Sequence[str]) -> dict[str, str]:
    """Return the experiment's tag from which MLflow's page shows the cells of a sweep, the best mean first.

    The columns are the parameters of the cells, the mean over seeds and its interval.
    """
    name = sweep.replace("'", "")
    columns = [*(f"params.`{name}`" for name in parameters), *(f"metrics.`{name}`" for name in _CELL_METRICS)]
    view = {
        "searchFilter": f"tags.sweep = '{name}' AND tags.level = 'cell'",
        "orderByKey": "metrics.`mean`",  # sorted by a metric, runs are not folded below their parents
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
    }
    return {f"mlflow.sharedViewState.{sweep}": json.dumps(view)}


def _program() -> str:
    """Return `mlflow` if it is on the PATH, else its path in this environment."""
    beside = Path(sys.executable).parent / "mlflow"
    on_path = shutil.which("mlflow")
    if not beside.exists() or (on_path and Path(on_path).samefile(beside)):
        return "mlflow"
    with contextlib.suppress(FileNotFoundError, ValueError):  # a working directory that was removed; it lies elsewhere
        return shlex.quote(str(beside.relative_to(Path.cwd())))
    return shlex.quote(str(beside))


def check(uri: str) -> list[Problem]:
    """Check that the store can be reached and written. Return at most one problem, within about five seconds."""
    scheme = uri.partition(":")[0].partition("+")[0] if ":" in uri else ""
    if scheme == "sqlite":
        return _check_sqlite(uri)
    if scheme in {"http", "https"}:
        return _check_server(uri)
    if scheme in _DEFAULT_PORTS:
        return _check_database(uri, scheme)
    if uri.partition(":")[0] == "databricks":
        return []  # its own client authenticates
    rule = "must name a database or a server; MLflow no longer writes runs to plain folders"
    folder = unquote(urlsplit(uri).path) if scheme == "file" else uri
    database = Path(folder if "://" not in folder else "mlruns").absolute().parent / "mlflow.db"
    return [_problem(rule, uri, f"Use sqlite:///{database}, or the http:// address of a server.")]


def _problem(rule: str, uri: str, remedy: str) -> Problem:
    return Problem(_PLACE, rule, mask(uri), remedy)


def _absolute(uri: str, folder: Path) -> str:
    path = local_database(uri)
    if path is None or path.is_absolute():
        return uri
    return uri.replace(f":///{path}", f":///{(folder / path).absolute()}", 1)


def _check_sqlite(uri: str) -> list[Problem]:
    path = local_database(uri)
    if path is None:
        rule = "a SQLite store must be a file; one in memory is gone when the process ends"
        return [_problem(rule, uri, f"Use sqlite:///{Path.cwd() / 'mlflow.db'}.")]
    if (length := len(os.fsencode(path.absolute()))) > _LONGEST_PATH:
        rule = f"the path of a SQLite database must have at most {_LONGEST_PATH} bytes, it has {length}"
        return [_problem(rule, uri, "Name a file with a shorter path.")]
    if path.exists():
        return _check_database_file(uri, path)
    holder = next(parent for parent in path.absolute().parents if parent.exists())
    if holder.is_dir() and os.access(holder, os.W_OK | os.X_OK):
        return []
    return [_problem(f"the folder {holder} must be writable", uri, "Name a file in a folder of yours.")]


def _check_database_file(uri: str, path: Path) -> list[Problem]:
    if not (path.is_file() and os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        return [_problem("the file and its folder must be writable", uri, "Name a file of yours.")]
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # a writer's lock, released at once
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        moved = (
            "Name another file, or move this one away: `tune-dml sync SWEEP` brings each sweep's runs into a new one."
        )
        remedy = "Stop what else is writing to it." if "locked" in str(error) else moved
        return [_problem(f"the database must open for writing ({error})", uri, remedy)]
    if tables and "experiments" not in tables:
        return [_problem("the database must be MLflow's or empty", uri, "Name another file.")]
    return []


def _check_server(uri: str) -> list[Problem]:
    """Write a batch to a run that cannot exist: a working MLflow server answers that there is no such run."""
    try:
        parts = urlsplit(uri)
        user_part, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            f"{parts.scheme}://{host}{parts.path.rstrip('/')}/api/2.0/mlflow/runs/log-batch",
            data=json.dumps({"run_id": "0" * 32}).encode(),
            headers={"Content-Type": "application/json", **_credentials(unquote(user_part))},
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=_tls(parts.scheme)):  # noqa: S310
            return []
    except urllib.error.HTTPError as error:
        return _answer_problems(uri, error)
    except (OSError, ValueError, http.client.HTTPException) as error:  # absent, silent, or a malformed address
        reason = mask(str(getattr(error, "reason", error)) or type(error).__name__)
        remedy = "Start it (`mlflow server`), correct the address, or leave it out to log to SQLite."
        return [_problem(f"the server must answer within {_TIMEOUT:g} s ({reason})", uri, remedy + directly(uri))]


def _answer_problems(uri: str, error: urllib.error.HTTPError) -> list[Problem]:
    with contextlib.suppress(ValueError, AttributeError, OSError):
        if json.loads(error.read(100_000)).get("error_code") == "RESOURCE_DOES_NOT_EXIST":
            return []
    if error.code in {401, 403}:
        rule = f"the server must let us write (it answered {error.code} {error.reason})"
        accounts = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        remedy = f"{accounts}; if it has no accounts, start it with --allowed-hosts naming its address."
        return [_problem(rule, uri, remedy + directly(uri))]
    rule = f"an MLflow server must answer there (got {error.code} {error.reason})"
    return [_problem(rule, uri, "Give the server's address, without the path of a page." + directly(uri))]


def _credentials(user_part: str) -> dict[str, str]:
    """Return the header that MLflow's client would send."""
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    pair = user_part or (f"{user}:{password}" if user and password else "")
    if pair:
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _tls(scheme: str) -> ssl.SSLContext | None:
    if scheme != "https":
        return None
    context = ssl.create_default_context(cafile=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH"))
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in {"1", "true"}:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _check_database(uri: str, scheme: str) -> list[Problem]:
    """Check that a database server listens; its driver reports other problems at the first sync."""
    from importlib.util import find_spec

    parts = urlsplit(uri)
    driver = parts.scheme.partition("+")[2] or _DRIVERS[scheme]
    if find_spec(driver) is None:
        rule = f"{scheme} needs the package {driver}, which is not installed"
        return [_problem(rule, uri, f"pip install {driver}")]
    try:
        address = (parts.hostname or "localhost", parts.port or _DEFAULT_PORTS[scheme])
        socket.create_connection(address, timeout=_TIMEOUT).close()
    except (OSError, ValueError) as error:
        rule = f"the database server must accept connections ({mask(str(error))})"
        return [_problem(rule, uri, "Start it, or correct the address.")]
    return []
