"""Wrap every use of Ray's unstable names, one function each.

tests/contracts/test_ray_internals.py fails if a version of Ray lacks one of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import ray
from ray import ActorID, NodeID, PlacementGroupID
from ray._private.authentication.authentication_token_generator import generate_new_authentication_token
from ray._private.authentication.authentication_token_setup import _enable_token_auth
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._private.state import state
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]
from ray.core.generated.common_pb2 import NodeDeathInfo
from ray.core.generated.gcs_pb2 import PlacementGroupTableData
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.experimental import internal_kv
from ray.util.placement_group import PlacementGroup, remove_placement_group

if TYPE_CHECKING:
    from ray.air.execution import PlacementGroupResourceManager, ResourceManager, ResourceRequest
    from ray.tune.experiment import Trial as TuneTrial

_START_SECONDS, _CHECK_SECONDS = 10.0, 0.02  # seconds to wait for a new node, and between two checks


@contextmanager
def _replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a module or class within the block."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def load_token() -> str | None:
    """Return this user's token and make Ray's clients send it; None without one or under another RAY_AUTH_MODE.

    By default Ray's clients send it only under RAY_AUTH_MODE=token.
    """
    loader = AuthenticationTokenLoader.instance()
    if not loader.has_token(ignore_auth_mode=True):
        return None
    if "RAY_AUTH_MODE" not in os.environ:
        _enable_token_auth()
    return str(loader.get_raw_token()) if is_token_auth_enabled() else None


def create_token() -> None:
    """Create the token of a local Ray, in the home folder or, if that is read-only, in this process.

    Ray's own function fails on a read-only home folder. Two processes that call it together write different tokens.
    """
    loader = AuthenticationTokenLoader.instance()
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token" or loader.has_token(ignore_auth_mode=True):
        return
    token = generate_new_authentication_token()
    try:
        path = Path.home() / ".ray" / "auth_token"
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name) as new:  # readable by its owner alone
            new.write(token)
            new.flush()
            with suppress(FileExistsError):  # another process was first
                os.link(new.name, path)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        os.environ["RAY_AUTH_TOKEN"] = token
    loader.reset_cache()


def cancel_actor_reset(controller: Any, trial: TuneTrial) -> bool:
    """Stop waiting for an actor to take over a trial; return whether Tune was waiting.

    If such an actor is lost, Tune tells the scheduler but still waits for its answer.
    """
    was_waiting: bool = trial in controller._resetting_trials
    controller._resetting_trials.discard(trial)
    return was_waiting


def end_with_trial(controller: Any, trial: TuneTrial) -> None:
    """End a trial's actor with the trial, instead of reusing it for the next one."""
    controller._started_actors.discard(controller._trial_to_actor.get(trial))


def mark_paused(controller: Any, trial: TuneTrial) -> None:
    """Mark a trial as paused in Tune's own lists too, which `Trial.set_status` leaves unchanged."""
    controller._set_trial_status(trial, trial.PAUSED)


def drop_finished(controller: Any, trial: TuneTrial) -> None:
    """Remove a finished trial from Tune's lists. Tune keeps it for a summary that we do not print."""
    controller.get_trials().remove(trial)
    controller.get_live_trials().discard(trial)
    for trials in (controller._stopped_trials, controller._failed_trials, controller._trials_to_cache):
        trials.discard(trial)


def actor_being_created(controller: Any, trial: TuneTrial) -> Any:
    """Return the actor of a trial that has resources but has not answered yet; None if there is none."""
    tracked = controller._trial_to_actor.get(trial)
    process, _ = controller._actor_manager._live_actors_to_ray_actors_resources.get(tracked, (None, None))
    return process if trial.temporary_state.ray_actor is None else None


def is_placed(controller: Any, trial: TuneTrial) -> bool:
    """Return whether a trial has an actor, or resources for the one being created. Tune calls such a trial pending."""
    return controller._trial_to_actor.get(trial) in controller._actor_manager._live_actors_to_ray_actors_resources


def out_of_memory_as_lost_process() -> AbstractContextManager[None]:
    """Treat an actor that Ray killed for lack of memory as a lost process.

    Tune handles only `RayActorError`; any other error of Ray ends the sweep instead of the trial.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager

    original = RayActorManager._actor_task_failed

    def report_loss(self: RayActorManager, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, RayActorError | RayTaskError):
            exception = RayActorError(error_msg=str(exception))
        original(self, tracked_actor_task, exception)

    return _replaced(RayActorManager, _actor_task_failed=report_loss)


def without_dashboard() -> AbstractContextManager[None]:
    """Start Ray without dashboard, log monitor and autoscaler, which cost a second of processor time each.

    Under `include_dashboard=False` Ray still starts the dashboard, to collect usage statistics, and waits for it.
    """
    from ray._private.node import Node

    methods = ("start_api_server", "start_log_monitor", "start_monitor")
    return _replaced(Node, **dict.fromkeys(methods, lambda self, **arguments: None))


def on_loopback() -> AbstractContextManager[None]:
    """Let a started Ray listen only on 127.0.0.1.

    By default Ray listens on all addresses. It replaces 127.0.0.1 by the machine's address, even in `_node_ip_address`.
    """
    from ray._private import ray_constants

    return _replaced(ray_constants, ENABLE_RAY_CLUSTER=False)


@contextmanager
def fast_start() -> Iterator[None]:
    """Start Ray with a free agent port, frequent checks for the node, and this Python.

    By default the agent uses port 52365, which costs 3.3 s if another Ray has it, and Ray checks for its node once a
    second. Under `uv run` Ray starts each process by `uv run`, in a copy of the working directory; under `uv run --`
    no process ever starts.
    """
    from ray._private import ray_constants, services
    from ray._private.state import GlobalState

    start, find = services.start_raylet, services.get_node

    def start_on_any_port(*arguments: Any, **keywords: Any) -> Any:
        return start(*arguments, **{**keywords, "dashboard_agent_listen_port": 0})

    def find_with_short_pauses(gcs_address: str, node_id: str) -> Any:
        state = GlobalState()
        state._initialize_global_state(services._get_gcs_client_options(gcs_address))
        until = time.monotonic() + _START_SECONDS
        while not any(node["NodeID"] == node_id for node in state.node_table()) and time.monotonic() < until:
            time.sleep(_CHECK_SECONDS)
        return find(gcs_address, node_id)

    with (
        _replaced(services, start_raylet=start_on_any_port, get_node=find_with_short_pauses),
        _replaced(ray_constants, RAY_ENABLE_UV_RUN_RUNTIME_ENV=False),
    ):
        yield


@contextmanager
def reuse_idle_processes(*, inherit: bool) -> Iterator[None]:
    """Let Tune's actors run in idle processes, by passing no environment variables to them.

    An actor with a `runtime_env` gets a new process, which imports Ray again. Tune sets one to pass variables of
    Lightning and S3 credentials. Processes of a Ray that we started `inherit` the credentials anyway.
    """
    from ray.tune.execution.class_cache import DEFAULT_ENV_VARS, ENV_VARS_TO_PROPAGATE

    before, propagated = dict(DEFAULT_ENV_VARS), set(ENV_VARS_TO_PROPAGATE)
    DEFAULT_ENV_VARS.clear()
    if inherit:
        ENV_VARS_TO_PROPAGATE.clear()
    try:
        yield
    finally:
        DEFAULT_ENV_VARS.update(before)
        ENV_VARS_TO_PROPAGATE.update(propagated)


def use_resource_manager(manager: Callable[[], ResourceManager]) -> AbstractContextManager[None]:
    """Make Tune's controller use a resource manager; Tune has no public argument for it."""
    from ray.tune.execution import tune_controller

    return _replaced(tune_controller, PlacementGroupResourceManager=manager)


def without_usage_tags() -> AbstractContextManager[None]:
    """Turn off Tune's usage statistics of callbacks, which import every callback, MLflow's included."""
    from ray.air._internal import usage

    return _replaced(usage, tag_callbacks=lambda *_: False)


def pass_to_train_workers(name: str, value: str) -> None:
    """Pass an environment variable to Ray Train's own processes; a `runtime_env` reaches only its workers."""
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE

    os.environ[name] = value
    ENV_VARS_TO_PROPAGATE.add(name)


def is_placement_timeout(error: BaseException) -> bool:
    """Return whether a Ray Train run ended because its workers were not placed in time."""
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    return isinstance(getattr(error, "controller_failure", None), WorkerGroupStartupTimeoutError)


def raylet_socket() -> str | None:
    """Return the socket of this process's raylet; None for a Ray client, where public calls would hang."""
    node = ray._private.worker._global_node
    return None if node is None else str(node.raylet_socket_name)


def is_node_alive(seconds: float) -> bool | None:
    """Return whether the head counts this node as alive; None if it does not answer in time.

    Public calls wait for the head forever. Return True for a Ray client, and while Ray shuts down.
    """
    head, node = internal_kv.internal_kv_get_gcs_client(), ray._private.worker._global_node
    if head is None or node is None:
        return True
    identity = NodeID.from_hex(node.node_id)  # Ray crashes on plain text
    try:
        return all(head.check_alive([identity], timeout=seconds))
    except RayError:
        return None


def kill_node() -> None:
    """Kill the processes of the Ray that this process started; `ray.shutdown` waits forever for a frozen one."""
    node = ray._private.worker._global_node
    if node is not None:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def autoscaler_node_groups() -> Any:
    """Return the node groups that an autoscaler may start; public calls list only running nodes."""
    config = state.get_cluster_config()
    return () if config is None else config.node_group_configs


def has_autoscaler() -> bool:
    """Return whether Ray's autoscaler runs. Its version 2 writes no status, so it is asked for."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return is_autoscaler_v2(fetch_from_server=True) or internal_kv._internal_kv_get(b"__autoscaling_status") is not None


def cluster_file_schema() -> dict[str, Any]:
    """Return the JSON schema of Ray's cluster launcher."""
    import ray.autoscaler

    schema: dict[str, Any] = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    return schema


def validate_cluster_file(config: Mapping[str, object]) -> None:
    """Check a cluster file with Ray's launcher, which prints a message and may raise an error of any class."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(dict(config)))


def kuberay_limits(namespace: str, cluster: str) -> dict[str, object] | None:
    """Return the autoscaler configuration of a KubeRay cluster; None if its size is fixed. Raise RequestException."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

    resource = KubernetesHttpApiClient(namespace).get(f"rayclusters/{cluster}")
    if not resource["spec"].get("enableInTreeAutoscaling"):
        return None
    limits: dict[str, object] = _derive_autoscaling_config_from_ray_cr(resource)
    return limits


def preload_argument(module: str) -> dict[str, object]:
    """Return the argument of `ray.init` that makes each process import a module when it starts."""
    return {"_system_config": {"preload_python_modules": [module]}}


def transfer_placement_group(
    manager: PlacementGroupResourceManager, group: PlacementGroup, request: ResourceRequest
) -> None:
    """Give a request a placement group that the manager counts as acquired; public calls free it first."""
    manager._acquired_pgs.remove(group)
    manager._request_to_ready_pgs[request].add(group)


def orphaned_placement_groups() -> list[str]:
    """Return the ids of this driver's placement groups whose creating actor is dead; none for a Ray client.

    Ray keeps them until the driver ends. Ray Train frees only those of workers that had started.
    """
    if internal_kv.internal_kv_get_gcs_client() is None:
        return []
    groups = map(PlacementGroupTableData.FromString, state._connect_and_get_accessor().get_placement_group_table())
    job = ray.get_runtime_context().get_job_id()
    return [
        group.placement_group_id.hex()
        for group in groups
        if group.creator_actor_dead  # also true for groups that the driver created
        and not ActorID(group.creator_actor_id).is_nil()
        and group.creator_job_id.hex() == job
        and group.state != PlacementGroupTableData.REMOVED
    ]


def preempted_nodes() -> set[str]:
    """Return the ids of the nodes that were drained or terminated with notice."""
    announced = {NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED, NodeDeathInfo.EXPECTED_TERMINATION}
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"] and node["DeathReason"] in announced}


def remove_placement_groups(placement_groups: Iterable[str]) -> None:
    """Remove placement groups by id. Ids that no longer exist are ignored."""
    for number in placement_groups:
        with suppress(RayError):
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(number)))
