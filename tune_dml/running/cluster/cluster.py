"""Connect to Ray, check that every trial can run, and count how many fit at once."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from trainables.errors import ConfigError, Problem
from trainables.option_names import option_place, spell
from tune_dml.planning.checks.gpus import visibility_problems, visible_gpus
from tune_dml.planning.request import Resources
from tune_dml.record.origin.several_jobs import TASK_GPUS
from tune_dml.running.cluster.autoscaler_limits import autoscaler_nodes
from tune_dml.running.cluster.probe_address import REACH, address_problems
from tune_dml.running.cluster.start_checks import start_failure, start_problems

_Answer = TypeVar("_Answer")
_HEAD_TIMEOUT, _MAX_UNANSWERED = 5.0, 9
"""Seconds to wait for the head's answer, and unanswered calls in a row after which it counts as lost: a minute in all.

Ray's processes wait as long for a restarted head (`gcs_rpc_server_reconnect_timeout_s`, 60), while trials train. If the
driver exited earlier, these trials would be lost, and a command restarts its driver only twice.
"""
_SHUTDOWN_SECONDS = 20.0  # seconds that Ray may take to shut down
_DRIVERS_PER_NODE = 64  # trial drivers of engine `train`, which only wait: a limit that is never reached


@dataclass(frozen=True)
class Capacity:
    """Resources of the connected cluster."""

    nodes: tuple[Mapping[str, float], ...]
    future_nodes: tuple[Mapping[str, float], ...] = ()  # of a growing cluster at its full size

    def total(self, resource: str) -> float:
        """Return the sum of a resource over the present nodes."""
        return sum(node.get(resource, 0.0) for node in self.nodes)

    @property
    def has_gpus(self) -> bool:
        """Whether a present or future node has a GPU."""
        return any(node.get("GPU") for node in (*self.nodes, *self.future_nodes))

    def trials_that_fit(self, resources: Resources) -> int:
        """Return the number of trials that fit on the empty cluster at its full size. No worker spans two nodes."""
        present, future = (sum(_workers_on(n, resources) for n in nodes) for nodes in (self.nodes, self.future_nodes))
        return max(present, future) // resources.workers


def _workers_on(node: Mapping[str, float], resources: Resources) -> int:
    fits = int(node.get("CPU", 0.0) // resources.cpus_per_worker)
    if (share := resources.share) > 0:
        gpus = node.get("GPU", 0.0)
        # A worker with a fraction of a GPU cannot use parts of two.
        fits = min(fits, int(gpus // share) if share >= 1 else int(gpus) * int(1 / share + 1e-9))
    return fits


def address_of(flag: str | None) -> tuple[str | None, str]:
    """Return the Ray address and its origin: the flag, otherwise RAY_ADDRESS, otherwise None for a local Ray."""
    if flag:
        return (None if flag == "local" else flag), option_place("address")
    if from_environment := os.environ.get("RAY_ADDRESS"):
        return (None if from_environment == "local" else from_environment), "RAY_ADDRESS"
    return None, "default"


def lost_node_problem(flag: str | None) -> Problem:
    """Return the problem of a Ray whose processes ended before a trial started; `flag` is --address."""
    address, origin = address_of(flag)
    error = ConnectionError("its processes ended before a trial had begun")
    return start_failure(error) if address is None else _unreachable_problem(address, origin, error)


def _unreachable_problem(address: str, origin: str, error: Exception) -> Problem:
    reason = str(getattr(error, "strerror", None) or error).strip().partition("\n")[0]
    return Problem(origin, f"the Ray cluster must be reachable ({reason})", address, REACH)


def resource_problems(resources: Resources, address: tuple[str | None, str] = (None, "default")) -> list[Problem]:
    """Return the problems of the request, the address (from `address_of`), the cluster's size and its nodes."""
    if problems := resources.problems() or address_problems(*address):
        return problems
    where, origin = address
    if where is None:
        start = [] if _has_ray() else start_problems(int(local_capacity().total("CPU")))
        return [*start, *(visibility_problems() or capacity_problems(capacity_at(None), resources))]
    try:
        with connect(where, origin=origin) as capacity:
            from tune_dml.running.cluster.versions import version_problems

            return [*capacity_problems(capacity, resources), *version_problems(where, origin, resources)]
    except ConfigError as error:
        return list(error.problems)


def capacity_problems(capacity: Capacity, resources: Resources) -> list[Problem]:
    """Return the problem if no trial can ever fit on the cluster: Ray would wait silently."""
    if capacity.trials_that_fit(resources) >= 1:
        return []
    has = f"{capacity.total('CPU'):g} CPUs and {capacity.total('GPU'):g} GPUs on {len(capacity.nodes)} node(s)"
    needs = f"{resources.workers} worker(s) x {resources.cpus_per_worker} CPU"
    if resources.share:
        needs += f" and {resources.share:g} GPU"
    rule = f"a trial must fit on the cluster, which has {has}"
    remedy = f"Lower {spell('workers')}, {spell('cpus_per_worker')} or {spell('gpus_per_worker')}."
    # Ray knows the resources of on-premises machines only when they have joined.
    machines = sum(not node for node in capacity.future_nodes)
    if machines > (joined_count := max(len(capacity.nodes) - 1, 0)):
        found = f"Only {joined_count} of its {machines} machines beside the head have joined"
        remedy = f"{found}: try again in a minute. {remedy}"
    return [Problem("resources", rule, needs, remedy)]


def local_capacity() -> Capacity:
    """Return the capacity that a local Ray would have; in a job array, that of one task."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = max(visible_gpus(), int(os.environ.get(TASK_GPUS, "0")))
    return Capacity(({"CPU": float(cpus), "GPU": float(gpus)},))


def capacity_at(address: str | None, origin: str = "default") -> Capacity:
    """Return a cluster's capacity, or that of a local Ray without starting it. Raise ConfigError if none answers."""
    if address is None and not _has_ray():
        return local_capacity()
    with connect(address, origin=origin) as capacity:
        return capacity


def _has_ray() -> bool:
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized())


def run_on_free_gpu(address: str, origin: str, function: Callable[[], _Answer], seconds: float) -> _Answer:
    """Run a function on a GPU of the cluster. Raise TimeoutError if it does not return within `seconds`."""
    import ray

    with connect(address, origin=origin):
        answer = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(function).remote()
        try:
            result: _Answer = ray.get(answer, timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            ray.cancel(answer, force=True)
            raise TimeoutError from error
        return result


@contextmanager
def connect(
    address: str | None, *, engine: str = "local", preload: bool = False, origin: str = "Ray"
) -> Iterator[Capacity]:
    """Connect to Ray for the duration of the block; an existing connection is used and stays open.

    Without an address, start a local Ray; its processes may `preload` what trials need. `origin` is where the address
    was given, for the ConfigError of a Ray that does not start or answer.
    """
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        from tune_dml.running import ray_internals

        if address is None:
            ray_internals.create_token()
        else:
            ray_internals.load_token()
        with ray_internals.on_loopback(), ExitStack() as start:
            if address is None:
                start.enter_context(ray_internals.fast_start())
            if address is None and engine == "local":
                # Engine `train` needs it: without it a stopped trial keeps its workers, and the sweep hangs.
                start.enter_context(ray_internals.without_dashboard())
            try:
                ray.init(**_init_arguments(address, engine, preload))
            except Exception as error:  # such as a timeout, or a path that is too long
                problem = start_failure(error) if address is None else _unreachable_problem(address, origin, error)
                raise ConfigError(problem) from error
        _protect_token()
    try:
        yield Capacity(_node_resources(), autoscaler_nodes())
    finally:
        if is_ours:
            ray.shutdown()


class Connection:
    """A Ray connection that a thread opens and closes while the driver imports, plans and reports.

    `begin` is optional: it connects before `capacity` is called. `end` returns at once; leaving the block waits.
    If every initial process of a local Ray gets a trial, the processes import what trials need when they start. The
    thread stays alive because Linux ends Ray's processes with the thread that started them. A second connection of a
    process raises ConfigError, because a process has one Ray.
    """

    _is_in_use = Lock()

    def __init__(self, address: str | None, resources: Resources):
        self._address, self._resources = address, resources
        self.has_others = address is not None or _has_ray()  # whether other sweeps may use the same Ray
        self._thread = ThreadPoolExecutor(1, "ray")
        self._ray = ExitStack()
        self._capacity: Future[Capacity] | None = None

    def __enter__(self) -> Connection:
        if not self._is_in_use.acquire(blocking=False):
            rule = "a process can run one sweep at a time, and another thread of this process is running one"
            raise ConfigError(Problem("Ray", rule, None, "Wait until it ends, or start this sweep in another process."))
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.end().result(_SHUTDOWN_SECONDS)
        except TimeoutError:
            from tune_dml.running.ray_internals import kill_node

            kill_node()
            with suppress(TimeoutError):  # a node that we did not start can hang, too
                self.end().result(_SHUTDOWN_SECONDS)
        finally:
            self._thread.shutdown(wait=False)
            self._is_in_use.release()

    def begin(self, trials: int) -> Future[Capacity]:
        """Connect in the background; `trials` is the number of trials that can start at once."""
        self._capacity = self._thread.submit(self._connect, trials)
        return self._capacity

    def capacity(self) -> Capacity:
        """Wait for the connection, and return the cluster's capacity."""
        return (self._capacity or self.begin(0)).result()

    def end(self) -> Future[None]:
        """Disconnect in the background; stop a Ray that this connection started."""
        return self._thread.submit(self._ray.close)

    def _connect(self, trials: int) -> Capacity:
        local = local_capacity()
        concurrent = min(trials, local.trials_that_fit(self._resources))
        preloads = self._resources.engine == "local" and concurrent >= local.total("CPU")  # a process per CPU
        return self._ray.enter_context(connect(self._address, engine=self._resources.engine, preload=preloads))


def _init_arguments(address: str | None, engine: str, preload: bool) -> dict[str, object]:
    if engine == "train":
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if address is not None:
        return {"address": address, **common}
    if os.environ.get("RAY_ADDRESS") == "local":
        del os.environ["RAY_ADDRESS"]
    if engine == "train":
        os.environ["RAY_TRAIN_V2_ENABLED"] = "1"  # some shell profiles set 0, but we need version 2
    from tune_dml.running.ray_internals import preload_argument

    capacity = local_capacity()
    return {
        **common,
        "address": "local",  # by default Ray joins another Ray of this machine
        "num_cpus": int(capacity.total("CPU")),
        "include_dashboard": engine == "train",
        "resources": {"trial_driver": _DRIVERS_PER_NODE} if engine == "train" else None,
        **(preload_argument("tune_dml.running.trials.preload") if preload else {}),
    }


class NodeWatch:
    """Detects that this process's Ray node is lost."""

    _unanswered_calls = 0

    def is_lost(self) -> bool:
        """Return whether the raylet is gone, the node counts as dead, or the head has not answered for a minute.

        Return False if this process is not connected to a node.
        """
        ray: Any = sys.modules.get("ray")
        is_initialized = getattr(ray, "is_initialized", None)  # missing while Ray is being imported
        if is_initialized is None or not is_initialized():
            return False
        from tune_dml.running.ray_internals import is_node_alive, raylet_socket

        if (socket_path := raylet_socket()) is None:  # a Ray client
            return False
        if not _accepts_connection(socket_path):
            return bool(is_initialized())  # False: it was just shut down
        alive = is_node_alive(_HEAD_TIMEOUT)
        self._unanswered_calls = self._unanswered_calls + 1 if alive is None else 0
        return bool(is_initialized()) and (alive is False or self._unanswered_calls >= _MAX_UNANSWERED)


def _accepts_connection(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5.0)
            client.connect(path)
    except TimeoutError:  # busy
        return True
    except OSError:
        return False
    return True


def _protect_token() -> None:
    """Make Ray's token file readable only by its owner."""
    with suppress(OSError, RuntimeError):  # no home folder, or another user's file
        token = Path.home() / ".ray" / "auth_token"
        if token.exists() and token.stat().st_mode & 0o077:
            token.chmod(0o600)


def _node_resources() -> tuple[Mapping[str, float], ...]:
    import ray

    return tuple(node["Resources"] for node in ray.nodes() if node["Alive"])


def trials_that_fit_now(capacity: Capacity, resources: Resources, limit: int | None) -> int:
    """Return the number of trials that fit on the present and future nodes, at most `limit`."""
    now = replace(capacity, nodes=_node_resources()).trials_that_fit(resources)
    return min(now, limit or now)
