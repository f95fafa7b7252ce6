"""Real Ray clusters on this machine: head and raylets in separate process groups, with a token, without a checkout."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tune_dml.cli"]
BARE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Cluster:
    """Ray cluster: `with Cluster(folder, workers=2) as cluster:`. The head has no CPU, each worker has one.

    Nodes have separate folders and cannot import the project: neither the editable install nor PYTHONPATH reaches them.
    """

    def __init__(self, folder, workers=2, environment=(), head_cpus=0, host="127.0.0.1", head_has_project=False):
        self.head_has_project = head_has_project
        self.folder, self.workers, self.head_cpus = Path(folder), workers, head_cpus
        self.gcs, self.dashboard, self.client = free_port(), free_port(), free_port()
        self.host = host
        self.address, self.http = f"{host}:{self.gcs}", f"http://127.0.0.1:{self.dashboard}"
        self.nodes = []
        self.home = self.folder / "home"
        (self.home / ".ray").mkdir(parents=True)
        token = self.home / ".ray" / "auth_token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(16))
        (self.folder / "bare").mkdir()
        (self.folder / "bare" / "sitecustomize.py").write_text(BARE)
        # A short path: Ray's sockets must fit in 107 characters.
        self.temporary = Path(f"/tmp/r{os.getpid()}-{self.gcs}")  # noqa: S108
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "RAY_ADDRESS"}},
            **{
                "HOME": str(self.home),
                "RAY_AUTH_MODE": "token",
                "RAY_USAGE_STATS_ENABLED": "0",
                "OMP_NUM_THREADS": "1",
            },
            **{"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RAY_memory_monitor_refresh_ms": "0"},
            **{"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"},
            **dict(environment),
        }

    def __enter__(self):
        self.start(
            *("--head", f"--port={self.gcs}", f"--dashboard-port={self.dashboard}", "--dashboard-host=127.0.0.1"),
            *(f"--ray-client-server-port={self.client}", f"--num-cpus={self.head_cpus}"),
            *(f"--dashboard-agent-listen-port={free_port()}", "--resources", json.dumps({"trial_driver": 64})),
            *([] if self.host == "127.0.0.1" else [f"--node-ip-address={self.host}"]),
            has_project=self.head_has_project,
        )
        self.wait_for(1)
        for number in range(self.workers):  # one after the other: raylets that start together choose the same ports
            self.add_worker()
            self.wait_for(2 + number)
        return self

    def add_worker(self, *arguments, cpus=1, gpus=0, within=(), has_project=False):
        """Start a node with CPUs and nominal GPUs; `within` is a command prefix that runs it."""
        agent = f"--dashboard-agent-listen-port={free_port()}"
        words = (f"--address={self.address}", f"--num-cpus={cpus}", agent, *arguments)
        return self.start(*words, gpus=gpus, within=within, has_project=has_project)

    def start(self, *arguments, gpus=0, within=(), has_project=False):
        """Start a node in a new process group and working directory."""
        number = len(self.nodes)
        place = self.folder / f"node{number}"
        place.mkdir()
        command = [*within, str(Path(sys.executable).with_name("ray")), "start", "--block", *arguments]
        # Separate folders, as on separate machines: each node unpacks and removes the files of jobs.
        command += [f"--temp-dir={self.temporary}/{number}"]
        command += ["--object-store-memory=80000000", "--disable-usage-stats", f"--num-gpus={gpus}"]
        environment = {**self.environment, "PYTHONPATH": str(PROJECT if has_project else self.folder / "bare")}
        with (place / "ray.log").open("w") as log:
            node = subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.nodes.append(node)
        return node

    def wait_for(self, number, seconds=90):
        deadline = time.monotonic() + seconds
        while (alive := self.alive()) != number:
            logs = [log.read_text() for log in self.folder.glob("node*/ray.log")]
            assert time.monotonic() < deadline, (alive, logs)
            time.sleep(0.3)

    def alive(self):
        from urllib.request import Request, urlopen

        token = (self.home / ".ray" / "auth_token").read_text()
        headers = {"Authorization": f"Bearer {token}"}
        request = Request(f"{self.http}/nodes?view=summary", headers=headers)  # noqa: S310
        try:
            with urlopen(request, timeout=5) as answer:  # noqa: S310
                nodes = json.loads(answer.read())["data"]["summary"]
        except OSError:
            return 0
        return sum(node["raylet"].get("state") == "ALIVE" for node in nodes)

    def raylet(self, number):
        for pid in self.processes(number):
            if "/raylet/raylet" in command_of(pid).partition(" ")[0]:
                return pid
        raise AssertionError("no raylet")

    def processes(self, number):
        group = self.nodes[number].pid
        return [pid for pid in all_pids() if group_of(pid) == group]

    def run(self, *words, timeout=240, cwd=None):
        """Run `tune-dml WORDS` as a user who has the project and the token."""
        environment = {**self.environment, "PYTHONPATH": str(PROJECT)}
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [*COMMAND, *map(str, words)]
        return subprocess.run(command, env=environment, cwd=cwd, timeout=timeout, check=False, **both)

    def __exit__(self, *error):
        for number, node in enumerate(self.nodes):
            kill([*self.processes(number), *children_of(node.pid)])
        for node in self.nodes:
            node.wait()
        ours = (str(self.temporary), self.address)
        # Workers that left the group.
        kill(pid for pid in all_pids() if any(words in command_of(pid) for words in ours))
        subprocess.run(["rm", "-rf", str(self.temporary)], check=False)


def kill(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def all_pids():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _stat(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def group_of(pid):
    stat = _stat(pid)
    return int(stat[2]) if stat else -1


def children_of(pid):
    parents = {child: int(stat[1]) for child in all_pids() if (stat := _stat(child))}
    found, layer = [], [pid]
    while layer:
        layer = [child for child, parent in parents.items() if parent in layer]
        found += layer
    return found
