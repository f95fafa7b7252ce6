"""Names that Ray does not promise to keep: a version that lacks one says so here, not in the middle of a sweep."""

import inspect

import pytest


def of_controller():
    from ray.tune.execution.tune_controller import TuneController

    made = inspect.getsource(TuneController.__init__)
    sets = ("_resetting_trials", "_stopped_trials", "_failed_trials", "_trials_to_cache")
    held = [*(f"self.{name}: Set[Trial]" for name in sets), "_trial_to_actor: Dict", "self._actor_manager = "]
    return all(name in made for name in held) and callable(TuneController._set_trial_status)


def of_actor_manager():
    from ray.air.execution._internal.actor_manager import RayActorManager

    made = inspect.getsource(RayActorManager.__init__)
    told = list(inspect.signature(RayActorManager._actor_task_failed).parameters)
    return "self._live_actors_to_ray_actors_resources: Dict[" in made and told == [
        "self",
        "tracked_actor_task",
        "exception",
    ]


def of_train():
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE

    return isinstance(ENV_VARS_TO_PROPAGATE, set)


def of_node():
    import ray
    from ray._private.node import Node

    return hasattr(ray._private.worker, "_global_node") and isinstance(Node.raylet_socket_name, property)


def of_cluster():
    from ray._private.state import state
    from ray.experimental.internal_kv import _internal_kv_get

    return callable(state.get_cluster_config) and callable(_internal_kv_get)


@pytest.mark.parametrize("names", [of_controller, of_actor_manager, of_train, of_node, of_cluster])
def test_ray_has_the_names_that_we_use(names):
    assert names(), f"tune_dml/running/ray_internals.py: this version of Ray differs in what is used {names.__name__}"
