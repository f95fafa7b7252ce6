"""What we use of Ray that it does not promise to keep: one function a name, and why no public one will do.

tests/contracts/test_ray_internals.py says which of these names a version of Ray lacks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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
    from ray.air.execution import ResourceManager
    from ray.tune.experiment import Trial as TuneTrial

_START, _LOOK = 10.0, 0.02
"""Seconds within which a node mostly begins, and between two looks whether it has."""


def load_token() -> str | None:
    """This user's token; from now on Ray's clients show it to a cluster that is joined, too. None where RAY_AUTH_MODE says so.

    Of themselves they do so only under RAY_AUTH_MODE=token, which nobody sets on a laptop. None too where it is no text
    that a header takes.
    """
    loader = AuthenticationTokenLoader.instance()
    if not loader.has_token(ignore_auth_mode=True):
        return None
    if "RAY_AUTH_MODE" not in os.environ:
        _enable_token_auth()
    try:
        token = str(loader.get_raw_token()) if is_token_auth_enabled() else ""
    except UnicodeDecodeError:
        return None
    return token if token.isascii() and token.isprintable() and token else None  # what no header takes opens no cluster


def create_token() -> None:
    """See to the token of a Ray that is to be started: in the home folder, whole and for its owner alone; else in this process.

    Ray's own ends where that folder cannot be written, as on a node that mounts it read-only, and lets two that start at the
    same time in a new one write a token each, of which one then is another than what its processes have read.
    """
    loader = AuthenticationTokenLoader.instance()
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token" or loader.has_token(ignore_auth_mode=True):
        return
    token = generate_new_authentication_token()
    try:
        place = Path.home() / ".ray" / "auth_token"
        place.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=place.parent, prefix=place.name) as new:  # its owner's to read
            new.write(token)
            new.flush()
            with suppress(FileExistsError):  # another one's, which serves as well
                os.link(new.name, place)
    except (OSError, RuntimeError):  # RuntimeError: nobody knows of a home
        os.environ["RAY_AUTH_TOKEN"] = token
    loader.reset_cache()


def cancel_actor_reset(controller: Any, trial: TuneTrial) -> bool:
    """Whether Tune waits for a process to take over a trial; from now on it does not.

    A scheduler is told that a trial's process was lost, and not that nobody but Tune still waits for it.
    """
    waited: bool = trial in controller._resetting_trials
    controller._resetting_trials.discard(trial)
    return waited


def end_with_trial(controller: Any, trial: TuneTrial) -> None:
    """End a trial's process with the trial. Tune hands any on that has begun, unless all are to be new."""
    controller._started_actors.discard(controller._trial_to_actor.get(trial))


def mark_paused(controller: Any, trial: TuneTrial) -> None:
    """Count a trial as paused. `Trial.set_status` alone leaves it in the controller's lists, from which it is then missed."""
    controller._set_trial_status(trial, trial.PAUSED)


def drop_finished(controller: Any, trial: TuneTrial) -> None:
    """Let go of a trial that has ended. Tune keeps every one, with settings and Ray's references, for a summary of its own."""
    controller.get_trials().remove(trial)
    controller.get_live_trials().discard(trial)
    for kept in (controller._stopped_trials, controller._failed_trials, controller._trials_to_cache):
        kept.discard(trial)


def actor_being_created(controller: Any, trial: TuneTrial) -> Any:
    """The process that has a place and is yet to answer that it is a trial's; None where there is none.

    Tune gives a trial its process only when that has answered, so for one that never does there is no public handle.
    """
    tracked = controller._trial_to_actor.get(trial)
    process, _ = controller._actor_manager._live_actors_to_ray_actors_resources.get(tracked, (None, None))
    return process if trial.temporary_state.ray_actor is None else None


def is_placed(controller: Any, trial: TuneTrial) -> bool:
    """Whether a trial has a process, or room for the one that is being created. Tune calls a trial pending until that answers."""
    return controller._trial_to_actor.get(trial) in controller._actor_manager._live_actors_to_ray_actors_resources


@contextmanager
def out_of_memory_as_lost_process() -> Iterator[None]:
    """Meanwhile a process that Ray ended for want of memory is a lost process to Tune.

    Of Ray's own errors Tune expects `RayActorError` alone and raises at any other, `OutOfMemoryError` among them, which ends
    the sweep and not the trial.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager

    tell = RayActorManager._actor_task_failed

    def tell_of_loss(self: RayActorManager, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, RayActorError | RayTaskError):
            exception = RayActorError(error_msg=str(exception))
        tell(self, tracked_actor_task, exception)

    RayActorManager._actor_task_failed = tell_of_loss
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = tell


@contextmanager
def without_dashboard() -> Iterator[None]:
    """Meanwhile a Ray that is started has no dashboard's process, reader of logs or autoscaler, a second of processor each.

    `include_dashboard=False` alone starts the first all the same, to count how Ray is used, and waits for it.
    """
    from ray._private.node import Node

    before = Node.start_api_server, Node.start_log_monitor, Node.start_monitor
    Node.start_api_server = Node.start_log_monitor = Node.start_monitor = lambda self, **given: None
    try:
        yield
    finally:
        Node.start_api_server, Node.start_log_monitor, Node.start_monitor = before


@contextmanager
def on_loopback() -> Iterator[None]:
    """Meanwhile a Ray that is started listens on 127.0.0.1 alone, and an address there is joined as it was given.

    By default Ray listens on every address of the machine, and takes 127.0.0.1 for another name of the first. What Ray has a
    switch for is clusters on Windows and macOS, which asks for a firewall's leave otherwise; `_node_ip_address` would not do,
    since that is taken for another name too.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def fast_start() -> Iterator[None]:
    """Meanwhile a Ray that is started takes any free port for its agent, is seen as soon as it is there, and runs our Python.

    By default the agent wants 52365. Where another Ray's has that, or that of one whose driver was just killed, it tries for
    3.3 s before it goes without, and all else waits. Whether a node is there Ray looks once a second. Below `uv run` it begins
    each process by that, in a copy of the working directory; below `uv run --` none ever comes.
    """
    from ray._private import ray_constants, services
    from ray._private.state import GlobalState

    start, find, by_uv = services.start_raylet, services.get_node, ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV

    def start_on_any_port(*given: Any, **named: Any) -> Any:
        return start(*given, **{**named, "dashboard_agent_listen_port": 0})

    def find_soon(gcs_address: str, node_id: str) -> Any:
        state = GlobalState()
        state._initialize_global_state(services._get_gcs_client_options(gcs_address))
        until = time.monotonic() + _START
        while not any(node["NodeID"] == node_id for node in state.node_table()) and time.monotonic() < until:
            time.sleep(_LOOK)
        return find(gcs_address, node_id)

    services.start_raylet, services.get_node = start_on_any_port, find_soon
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    try:
        yield
    finally:
        services.start_raylet, services.get_node, ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = start, find, by_uv


@contextmanager
def reuse_idle_processes(*, inherit: bool) -> Iterator[None]:
    """Meanwhile Tune gives its processes no variable of its own, and none of ours where they `inherit` them all.

    It sets one for Lightning, and passes on credentials of S3 and what Ray Train reads. Whatever has a `runtime_env` gets a new
    process, which imports Ray twice, beside idle ones. Processes of a Ray that this one has started inherit its variables.
    """
    from ray.tune.execution.class_cache import DEFAULT_ENV_VARS, ENV_VARS_TO_PROPAGATE

    before, passed_on = dict(DEFAULT_ENV_VARS), set(ENV_VARS_TO_PROPAGATE)
    DEFAULT_ENV_VARS.clear()
    if inherit:
        ENV_VARS_TO_PROPAGATE.clear()
    try:
        yield
    finally:
        DEFAULT_ENV_VARS.update(before)
        ENV_VARS_TO_PROPAGATE.update(passed_on)


@contextmanager
def use_resource_manager(manager: Callable[[], ResourceManager]) -> Iterator[None]:
    """Meanwhile Tune asks such a manager for the places of its processes; only the controller that it makes itself takes one."""
    from ray.tune.execution import tune_controller

    before = tune_controller.PlacementGroupResourceManager
    tune_controller.PlacementGroupResourceManager = manager
    try:
        yield
    finally:
        tune_controller.PlacementGroupResourceManager = before


@contextmanager
def without_usage_tags() -> Iterator[None]:
    """Meanwhile Tune does not count which of its own callbacks are used, for which it imports them all, and with them MLflow."""
    from ray.air._internal import usage

    count, usage.tag_callbacks = usage.tag_callbacks, lambda *_: False
    try:
        yield
    finally:
        usage.tag_callbacks = count


def pass_to_train_workers(name: str, value: str) -> None:
    """Give a variable to Ray Train's own processes; a `runtime_env` reaches its workers alone, not what frees their places."""
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE

    os.environ[name] = value
    ENV_VARS_TO_PROPAGATE.add(name)


def is_placement_timeout(error: BaseException) -> bool:
    """Whether a run of Ray Train ended because its workers did not get their places in time, a minute a try."""
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    return isinstance(getattr(error, "controller_failure", None), WorkerGroupStartupTimeoutError)


def raylet_socket() -> str | None:
    """Where the raylet listens that this process is attached to; None by way of a client server.

    Every public call asks the cluster, and waits where the raylet is gone.
    """
    node = ray._private.worker._global_node
    return None if node is None else str(node.raylet_socket_name)


def is_node_alive(seconds: float) -> bool | None:
    """Whether the cluster's head takes the node of this process to be alive; None where it does not answer in time.

    Public calls wait for the head for ever. True by way of a client server, and as Ray ends.
    """
    head, node = internal_kv.internal_kv_get_gcs_client(), ray._private.worker._global_node
    if head is None or node is None:
        return True
    identity = NodeID.from_hex(node.node_id)  # Ray takes what it is given for one, and crashes
    try:
        return all(head.check_alive([identity], timeout=seconds))
    except RayError:
        return None


def kill_node() -> None:
    """End the processes of a Ray that this process has started; `ray.shutdown` waits for ever for one that is frozen."""
    node = ray._private.worker._global_node
    if node is not None:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def autoscaler_node_groups() -> Any:
    """The groups of nodes that an autoscaler has told the cluster it may start; public calls know only nodes that are there."""
    config = state.get_cluster_config()
    return () if config is None else config.node_group_configs


def has_autoscaler() -> bool:
    """Whether an autoscaler of Ray's own looks after this cluster; the second version of it leaves no status in the store."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return is_autoscaler_v2(fetch_from_server=True) or internal_kv._internal_kv_get(b"__autoscaling_status") is not None


def orphaned_placement_groups() -> list[str]:
    """Placement groups of this driver that an actor has asked for which is no more. Ray keeps them until the driver ends too.

    Ray Train frees those of workers that had begun, and leaves those of workers that were about to. Public calls do not
    say who asked. None by way of a client server.
    """
    if internal_kv.internal_kv_get_gcs_client() is None:
        return []
    groups = map(PlacementGroupTableData.FromString, state._connect_and_get_accessor().get_placement_group_table())
    job = ray.get_runtime_context().get_job_id()
    return [
        group.placement_group_id.hex()
        for group in groups
        if group.creator_actor_dead  # so is, to Ray, the actor that there never was where a driver has asked
        and not ActorID(group.creator_actor_id).is_nil()
        and group.creator_job_id.hex() == job
        and group.state != PlacementGroupTableData.REMOVED
    ]


def preempted_nodes() -> set[str]:
    """The nodes that went with notice: drained to their end, or told to end. What the public list's numbers mean is Ray's own."""
    noticed = {NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED, NodeDeathInfo.EXPECTED_TERMINATION}
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"] and node["DeathReason"] in noticed}


def remove_placement_groups(placement_groups: Iterable[str]) -> None:
    """Remove placement groups, which no public name finds again by their number; those that are gone stay so."""
    for number in placement_groups:
        with suppress(RayError):
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(number)))
