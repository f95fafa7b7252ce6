"""A real tracking server on the loopback."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

from helpers.clusters import free_port


class Server:
    """`mlflow server` on loopback that can be restarted; its store is SQLite by default."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.store = f"sqlite:///{folder / 'mlflow.db'}"

    def __enter__(self):
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--backend-store-uri", self.store]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_healthy()
        return self

    def __exit__(self, kind, error, trace):
        os.killpg(self.process.pid, signal.SIGKILL)  # its workers too; as hard as an outage can be
        self.process.wait()

    def _wait_until_healthy(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:  # noqa: S310
                    if answer.status == 200:
                        return
            except OSError:
                threading.Event().wait(0.1)  # a poll's pause, not a guess of how long a start takes
        raise AssertionError((self.folder / "server.log").read_text())
