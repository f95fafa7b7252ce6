"""Choose the MLflow store of a sweep, check it, and show how to open it.

This module does not import MLflow. The import takes seconds, MLflow's client creates the database that it checks, and
its error for an unreachable server names no remedy (ADR 1).
"""

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
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from trainables.errors import Problem
from trainables.files import expand_home
from tune_dml.planning.plan import Plan
from tune_dml.record.origin.commands import SUBMITTED_TO
from tune_dml.record.origin.provenance import mask, proxy_hint, without_login

_TIMEOUT = 4.0  # seconds to wait for the answer of a server
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500  # HTTP statuses; all from 500 are errors of the server

_CELL_METRICS = ("mean", "low", "high", "seeds")  # columns of the page to which `sweep_link` leads

_MAX_PATH = 470  # bytes of a database's path; SQLite allows 511, and a new database is created one folder deeper

_ORIGIN = "MLflow tracking URI"
_DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_OTHER_LOGINS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")  # of MLflow's client, unknown to our check
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "fuse.", "ceph", "gpfs", "beegfs", "9p")


def tracking_uri(flag: str | None, sweeps: Path | None = None) -> tuple[str, str]:
    """Return the store and its origin: the flag, MLFLOW_TRACKING_URI, or mlflow.db in the working directory.

    A submitted job, whose working directory is temporary, uses the folder of the sweeps instead. SQLite paths become
    absolute.
    """
    folder = sweeps if sweeps is not None and SUBMITTED_TO in os.environ else Path()
    if flag:
        return _absolute(flag, folder), "flag"
    if from_environment := os.environ.get("MLFLOW_TRACKING_URI"):
        return _absolute(from_environment, folder), "MLFLOW_TRACKING_URI"
    return f"sqlite:///{(folder / 'mlflow.db').absolute()}", "default"


def experiment_name(flag: str | None, plan: Plan) -> str:
    """Return the name of the experiment: the flag, MLFLOW_EXPERIMENT_NAME, or the name of the space."""
    return flag or os.environ.get("MLFLOW_EXPERIMENT_NAME") or plan.space.name


def local_database(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for other stores."""
    match = re.match(r"sqlite(?:\+\w+)?:///(?P<path>[^?]+)", uri)
    return Path(match["path"]) if match and match["path"] != ":memory:" else None


def is_on_local_disk(path: Path) -> bool:
    """Return whether a file is on a local disk. SQLite's write-ahead log fails on network file systems."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    target = str(path.resolve())
    mount_points = [(len(point), kind) for point, kind in mounts if target.startswith(point.rstrip("/") + "/")]
    return not max(mount_points, default=(0, "nfs"))[1].startswith(_NETWORK_FILE_SYSTEMS)


def ui_command(uri: str) -> str:
    """Return the command that shows a store in MLflow's pages."""
    if uri.startswith(("http://", "https://")):
        return f"python -m webbrowser {shlex.quote(without_login(uri))}"
    if mask(uri) != uri:  # the secret stays in the environment
        return f'{_program()} ui --backend-store-uri "$MLFLOW_TRACKING_URI"'
    return f"{_program()} ui --backend-store-uri {shlex.quote(uri)}"


def sweep_link(uri: str, experiment_id: str, sweep: str) -> str:
    """Return the address of the `shared_view` of a sweep; for a database, at the default port of `mlflow ui`."""
    if not experiment_id:
        return ""
    server = without_login(uri).rstrip("/") if uri.startswith(("http://", "https://")) else "http://127.0.0.1:5000"
    view = quote(_view_key(sweep), safe="")
    return f"{server}/#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={view}"


def shared_view(sweep: str, parameters: Sequence[str]) -> dict[str, str]:
    """Return the experiment tag by which MLflow's page shows the cells of a sweep, with the best mean first.

    The columns are the parameters of the cells, the mean over seeds and its interval.
    """
    name = sweep.replace("'", "")
    columns = [*(f"params.`{name}`" for name in parameters), *(f"metrics.`{name}`" for name in _CELL_METRICS)]
    view = {
        "searchFilter": f"tags.sweep = '{name}' AND tags.level = 'cell'",
        "orderByKey": "metrics.`mean`",  # if sorted by a metric, runs are not hidden below their parents
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
    }
    return {f"mlflow.sharedViewState.{_view_key(sweep)}": json.dumps(view)}


def _view_key(sweep: str) -> str:
    """Replace characters that MLflow refuses: a sweep has its folder's name, which may be a copy's: `rho1 (copy)`."""
    return re.sub(r"[^\w. :-]", "_", sweep)


def _program() -> str:
    """Return `mlflow` if this environment's is on the PATH, otherwise its path."""
    program = Path(sys.executable).parent / "mlflow"
    on_path = shutil.which("mlflow")
    if not program.exists() or (on_path and Path(on_path).samefile(program)):
        return "mlflow"
    with contextlib.suppress(FileNotFoundError, ValueError):  # no working directory, or the path is not below it
        return shlex.quote(str(program.relative_to(Path.cwd())))
    return shlex.quote(str(program))


def store_problems(uri: str) -> list[Problem]:
    """Check within about five seconds that the store can be reached and written. Return at most one problem."""
    scheme = uri.partition(":")[0].partition("+")[0] if ":" in uri else ""
    if scheme == "sqlite":
        return _check_sqlite(uri)
    if scheme in {"http", "https"}:
        return _check_server(uri)
    if scheme in _DEFAULT_PORTS:
        return _check_database(uri, scheme)
    if uri.partition(":")[0] == "databricks" or metadata.entry_points(group="mlflow.tracking_store", name=scheme):
        return []  # its own client, or that of a plugin, authenticates
    rule = "must name a database or a server; MLflow no longer writes runs to plain folders"
    folder = unquote(urlsplit(uri).path) if scheme == "file" else uri
    database = Path(folder if "://" not in folder else "mlruns").absolute().parent / "mlflow.db"
    return [_problem(rule, uri, f"Use sqlite:///{database}, or the http:// address of a server.")]


def _problem(rule: str, uri: str, remedy: str) -> Problem:
    return Problem(_ORIGIN, rule, mask(uri), remedy)


def _absolute(uri: str, folder: Path) -> str:
    path = local_database(uri)
    if path is None or path.is_absolute():
        return uri
    return uri.replace(f":///{path}", f":///{(folder / path).absolute()}", 1)


def _check_sqlite(uri: str) -> list[Problem]:
    path = local_database(uri)
    if path is None:
        rule = "a SQLite store must be a file; a store in memory is lost when the process ends"
        return [_problem(rule, uri, f"Use sqlite:///{Path.cwd() / 'mlflow.db'}.")]
    if (length := len(os.fsencode(path.absolute()))) > _MAX_PATH:
        rule = f"the path of a SQLite database must have at most {_MAX_PATH} bytes, it has {length}"
        return [_problem(rule, uri, "Name a file with a shorter path.")]
    if path.exists():
        return _check_database_file(uri, path)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    return [_problem(f"the folder {folder} must be writable", uri, "Name a file in a folder of yours.")]


def _check_database_file(uri: str, path: Path) -> list[Problem]:
    if not (path.is_file() and os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        return [_problem("the file and its folder must be writable", uri, "Name a file of yours.")]
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # takes a writer's lock, which ROLLBACK releases
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            versions = (
                database.execute("SELECT * FROM alembic_version").fetchall() if "alembic_version" in tables else []
            )
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        advice = (
            "Name another file, or move this one away: `tune-dml sync SWEEP` writes each sweep's runs to a new one."
        )
        remedy = "Stop the other program that writes to it." if "locked" in str(error) else advice
        return [_problem(f"the database must open for writing ({error})", uri, remedy)]
    if tables and "experiments" not in tables:
        return [_problem("the database must be MLflow's or empty", uri, "Name another file.")]
    if versions and (newest := _newest_schema()) and versions != [(newest,)]:
        rule = "the database must have the schema of the installed MLflow"
        remedy = "Copy it, then run `mlflow db upgrade` on it; if a newer MLflow wrote it, install that one."
        return [_problem(rule, uri, f"{remedy} Or name another file.")]
    return []


def _newest_schema() -> str:
    """Return the schema version of the installed MLflow: the migration that no other one follows; empty if unknown."""
    spec = find_spec("mlflow")
    scripts = Path(spec.origin or "").parent.glob("store/db_migrations/versions/*.py") if spec else ()
    text = "".join(script.read_text(encoding="utf-8") for script in scripts)
    versions, followed = (set(re.findall(rf'^{name} = "(\w+)"', text, re.M)) for name in ("revision", "down_revision"))
    return next(iter(versions - followed), "")


def _check_server(uri: str) -> list[Problem]:
    """Write to a run that cannot exist. A working MLflow server answers that there is no such run."""
    try:
        parts = urlsplit(uri)
        user_part, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            f"{parts.scheme}://{host}{parts.path.rstrip('/')}/api/2.0/mlflow/runs/log-batch",
            data=json.dumps({"run_id": "0" * 32}).encode(),
            headers={"Content-Type": "application/json", **_credentials(unquote(user_part))},
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=_tls(parts.scheme)) as answer:  # noqa: S310
            return _page_problems(uri, answer.read1(100_000))
    except urllib.error.HTTPError as error:
        return _answer_problems(uri, error)
    except (OSError, ValueError, http.client.HTTPException) as error:  # no answer, or a malformed address
        cause = getattr(error, "reason", error)
        reason = mask(getattr(cause, "strerror", None) or str(cause) or type(error).__name__)
        remedy = "Start it (`mlflow server`), correct the address, or leave it out to log to SQLite."
        return [_problem(f"the server must answer within {_TIMEOUT:g} s ({reason})", uri, remedy + proxy_hint(uri))]


def _answer_problems(uri: str, error: urllib.error.HTTPError) -> list[Problem]:
    with contextlib.suppress(ValueError, AttributeError, OSError):
        if json.loads(error.read(100_000)).get("error_code") == "RESOURCE_DOES_NOT_EXIST":
            return []
    if error.code in {401, 403}:
        if any(map(os.environ.get, _OTHER_LOGINS)) or expand_home("~/.mlflow/credentials").is_file():
            return []
        rule = f"the server must let us write (it answered {error.code} {error.reason})"
        accounts = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        remedy = f"{accounts}; if it has no accounts, start it with --allowed-hosts naming its address."
        return [_problem(rule, uri, remedy + proxy_hint(uri))]
    if error.code == _TOO_MANY_REQUESTS or error.code >= _SERVER_ERROR:
        rule = f"the server must accept requests (got {error.code} {error.reason})"
        remedy = (
            "Look into its log and try again, or leave it out to log to SQLite: `tune-dml sync` writes to it later."
        )
        return [_problem(rule, uri, remedy + proxy_hint(uri))]
    rule = f"an MLflow server must answer there (got {error.code} {error.reason})"
    return [_problem(rule, uri, "Give the server's address, without the path of a page." + proxy_hint(uri))]


def _page_problems(uri: str, body: bytes) -> list[Problem]:
    """Refuse a web page: it is the login of a proxy, or belongs to another program."""
    if body.lstrip()[:1] == b"{":
        return []
    rule = "an MLflow server must answer there (got a web page, such as a login)"
    remedy = "Give the server's address, without the path of a page; behind a login, set MLFLOW_TRACKING_TOKEN."
    return [_problem(rule, uri, remedy + proxy_hint(uri))]


def _credentials(user_part: str) -> dict[str, str]:
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    pair = user_part or (f"{user}:{password}" if user and password else "")
    if pair:
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _tls(scheme: str) -> ssl.SSLContext | None:
    if scheme != "https":
        return None
    variables = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # as MLflow's client
    bundle = next(filter(None, map(os.environ.get, variables)), None)
    folder = bundle if bundle and Path(bundle).is_dir() else None
    context = ssl.create_default_context(cafile=None if folder else bundle, capath=folder)
    if certificate := os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"):
        context.load_cert_chain(certificate)
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in {"1", "true"}:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _check_database(uri: str, scheme: str) -> list[Problem]:
    """Check that the driver is installed and the server listens. Other problems are reported at the first sync."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ImportError, SQLAlchemyError, ValueError) as error:
        remedy = "Install it with pip, or name an installed one: mysql+pymysql://, postgresql+psycopg2://."
        return [_problem(f"the driver of the database must be installed ({mask(str(error))})", uri, remedy)]
    try:
        parts = urlsplit(uri)
        address = (parts.hostname or "localhost", parts.port or _DEFAULT_PORTS[scheme])
        socket.create_connection(address, timeout=_TIMEOUT).close()
    except (OSError, ValueError) as error:
        rule = f"the database server must accept connections ({mask(str(error))})"
        return [_problem(rule, uri, "Start it, or correct the address.")]
    return []
