"""What we use of Ray that it does not promise to keep: one function a name, and why no public one will do.

tests/contracts/test_ray_internals.py says which of these names a version of Ray lacks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

if TYPE_CHECKING:
    from ray.tune.experiment import Trial as TuneTrial


def no_longer_handed_over(controller: Any, trial: TuneTrial) -> bool:
    """Whether Tune waits for a process to take over a trial; from now on it does not.

    A scheduler is told that a trial's process was lost, and not that nobody but Tune still waits for it.
    """
    waited: bool = trial in controller._resetting_trials
    controller._resetting_trials.discard(trial)
    return waited


def set_aside(controller: Any, trial: TuneTrial) -> None:
    """Count a trial as paused. `Trial.set_status` alone leaves it in the controller's lists, from which it is then missed."""
    controller._set_trial_status(trial, trial.PAUSED)


def forget(controller: Any, trial: TuneTrial) -> None:
    """Let go of a trial that has ended. Tune keeps every one, with settings and Ray's references, for a summary of its own."""
    controller.get_trials().remove(trial)
    controller.get_live_trials().discard(trial)
    for kept in (controller._stopped_trials, controller._failed_trials, controller._trials_to_cache):
        kept.discard(trial)


def being_created(controller: Any, trial: TuneTrial) -> Any:
    """The process that has a place and is yet to answer that it is a trial's; None where there is none.

    Tune gives a trial its process only when that has answered, so for one that never does there is no public handle.
    """
    tracked = controller._trial_to_actor.get(trial)
    process, _ = controller._actor_manager._live_actors_to_ray_actors_resources.get(tracked, (None, None))
    return process if trial.temporary_state.ray_actor is None else None


@contextmanager
def every_loss_is_a_lost_process() -> Iterator[None]:
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


def let_workers_inherit(name: str, value: str) -> None:
    """Give a variable to Ray Train's own processes; a `runtime_env` reaches its workers alone, not what frees their places."""
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE

    os.environ[name] = value
    ENV_VARS_TO_PROPAGATE.add(name)


def raylet_socket() -> str | None:
    """Where the raylet listens that this process is attached to; None by way of a client server.

    Every public call asks the cluster, and waits where the raylet is gone.
    """
    node = ray._private.worker._global_node
    return None if node is None else str(node.raylet_socket_name)


def announced_limits() -> Any:
    """The groups of nodes that an autoscaler has told the cluster it may start; public calls know only nodes that are there."""
    from ray._private.state import state

    config = state.get_cluster_config()
    return () if config is None else config.node_group_configs


def autoscales() -> bool:
    """Whether an autoscaler of Ray's own reports to this cluster, which nothing public tells."""
    from ray.experimental.internal_kv import _internal_kv_get

    return _internal_kv_get(b"__autoscaling_status") is not None
