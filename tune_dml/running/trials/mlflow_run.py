"""Serve an MLflow run to a program: a loopback server writes what MLflow's client logs into the trial's log.

Only the driver writes to the MLflow store, so that test figures stay sealed and a retried trial leaves no second run.
The server has one run and supports only the calls that a training script makes.
"""

import base64
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tune_dml.programs.client import append
from tune_dml.record.events import JsonRow

_HOST, _USER = "127.0.0.1", "trial"
_PREFIX = "/api/2.0/mlflow/"
_EXPERIMENT = {"experiment_id": "0", "name": "trial", "lifecycle_stage": "active"}


class ProgramRunServer:
    """Serves one MLflow run while a program runs."""

    def __init__(self, log: Path, artifacts: Path):
        self._log = log
        self._names: set[str] = set()
        self._token, self._id = secrets.token_hex(16), secrets.token_hex(16)
        self._info = {
            "run_id": self._id, "run_uuid": self._id, "run_name": "trial", "experiment_id": "0", "user_id": "",
            "status": "RUNNING", "start_time": int(time.time() * 1000), "lifecycle_stage": "active",
            "artifact_uri": artifacts.absolute().as_uri(),
        }  # fmt: skip
        login = base64.b64encode(f"{_USER}:{self._token}".encode()).decode()
        handler = type("Handler", (_Handler,), {"answer": staticmethod(self.answer), "login": f"Basic {login}"})
        self._server = ThreadingHTTPServer((_HOST, 0), handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """Return the variables that make MLflow's client log to this run."""
        no_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or _HOST
        if no_proxy != "*" and _HOST not in no_proxy.split(","):
            no_proxy = f"{no_proxy},{_HOST}"
        return {
            "MLFLOW_TRACKING_URI": f"http://{_HOST}:{self._server.server_port}",
            "MLFLOW_TRACKING_USERNAME": _USER,  # the client prefers the user's own login to a token
            "MLFLOW_TRACKING_PASSWORD": self._token,
            "MLFLOW_RUN_ID": self._id,
            "MLFLOW_EXPERIMENT_ID": "0",
            "no_proxy": no_proxy,
            "NO_PROXY": no_proxy,
        }

    def answer(self, call: str, body: JsonRow) -> JsonRow | None:
        """Return the answer to a call of MLflow's client; None if the call is not supported."""
        if call == "runs/log-metric":
            self._append_metrics([body])
        elif call == "runs/log-batch":
            self._append_metrics(body.get("metrics", []))
        elif call == "runs/update":
            return {"run_info": self._info}
        elif call in {"runs/get", "runs/create"}:
            return {"run": {"info": self._info, "data": {}, "inputs": {}}}
        elif call in {"experiments/get", "experiments/get-by-name"}:
            return {"experiment": _EXPERIMENT}
        elif call not in {"runs/log-parameter", "runs/set-tag", "runs/log-inputs", "runs/delete-tag"}:
            return None
        return {}

    def _append_metrics(self, metrics: list[JsonRow]) -> None:
        for metric in metrics:
            name, step = metric["key"], int(metric.get("step", 0))
            row = {name: float(metric["value"])}  # in JSON, NaN is a string
            has_no_step = step == 0 and name in self._names  # MLflow's client sends 0 where a script gives no step
            self._names.add(name)
            append(self._log, row if has_no_step else {"step": step, **row})


class _Handler(BaseHTTPRequestHandler):
    answer: Callable[[str, JsonRow], JsonRow | None]
    login: str

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if not secrets.compare_digest(self.headers.get("Authorization") or "", self.login):
            self._send(403, {"error_code": "PERMISSION_DENIED", "message": "the run of another trial"})
            return
        call = urlsplit(self.path).path.removeprefix(_PREFIX)
        try:
            answer = self.answer(call, json.loads(body or b"{}"))
        except (ValueError, KeyError, TypeError) as error:
            self._send(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": str(error)})
            return
        if answer is None:
            message = f"a trial's run takes metrics, parameters, tags and artifacts; {call} is not supported"
            self._send(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": message})
        else:
            self._send(200, answer)

    do_GET = do_POST = do_PATCH = _serve  # noqa: N815 - names of http.server

    def _send(self, status: int, body: Mapping[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
