"""Private names of Ray that we use: a version that lacks one fails here, not during a sweep."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from tune_dml.running import ray_internals
from tune_dml.running.failures import classify
from tune_dml.running.ray_internals import (
    fast_start,
    is_placement_timeout,
    out_of_memory_as_lost_process,
    reuse_idle_processes,
    use_resource_manager,
    without_usage_tags,
)


def of_controller():
    from ray.tune.execution.tune_controller import TuneController

    made = inspect.getsource(TuneController.__init__)
    sets = ("_resetting_trials", "_stopped_trials", "_failed_trials", "_trials_to_cache")
    held = [*(f"self.{name}: Set[Trial]" for name in sets), "_trial_to_actor: Dict", "self._actor_manager = "]
    held += ["self._started_actors: Set["]
    return (
        all(name in made for name in held)
        and callable(TuneController._set_trial_status)
        and callable(TuneController.update_max_pending_trials)
        and "not in self._started_actors" in inspect.getsource(TuneController._maybe_cache_trial_actor)
    )


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
    from ray.train import FailureConfig
    from ray.train.v2._internal import exceptions
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE
    from ray.train.v2.api.exceptions import ControllerError

    no_room = ControllerError(exceptions.WorkerGroupStartupTimeoutError(2))
    counted = FailureConfig(max_failures=-1, controller_failure_limit=3).controller_failure_limit == 3
    return isinstance(ENV_VARS_TO_PROPAGATE, set) and counted and is_placement_timeout(no_room)


def of_nodes_that_are_gone():
    from ray.core.generated.common_pb2 import NodeDeathInfo

    return {"AUTOSCALER_DRAIN_PREEMPTED", "EXPECTED_TERMINATION"} <= set(NodeDeathInfo.Reason.keys())


def of_node():
    import ray
    from ray._private.node import Node

    helpers = ("self.start_api_server(", "self.start_log_monitor()", "self.start_monitor()")
    made = inspect.getsource(Node.start_head_processes) + inspect.getsource(Node.start_ray_processes)
    held = hasattr(ray._private.worker, "_global_node") and callable(Node.kill_all_processes)
    held = held and all(isinstance(getattr(Node, name), property) for name in ("raylet_socket_name", "node_id"))
    return held and all(name in made for name in helpers) and _starts_by_services(Node)


def _starts_by_services(node):
    import ray
    from ray._private import services

    begun = inspect.getsource(node.__init__) + inspect.getsource(node.start_raylet)
    called = ("ray._private.services.get_node(", "ray._private.services.start_raylet(")
    given = "dashboard_agent_listen_port" in inspect.signature(services.start_raylet).parameters
    return (
        given
        and all(name in begun for name in called)
        and list(inspect.signature(services.get_node).parameters) == ["gcs_address", "node_id"]
        and callable(services._get_gcs_client_options)
        and callable(ray._private.state.GlobalState._initialize_global_state)
    )


def of_processes():
    from importlib.util import find_spec

    from ray.tune.execution.class_cache import DEFAULT_ENV_VARS, _ActorClassCache

    worker = Path(find_spec("ray").origin).parent / "_private/workers/default_worker.py"
    given = "env_vars = DEFAULT_ENV_VARS.copy()" in inspect.getsource(_ActorClassCache.get)
    return given and isinstance(DEFAULT_ENV_VARS, dict) and "args.worker_preload_modules" in worker.read_text()


def of_cluster():
    from ray._private import state
    from ray._raylet import InnerGcsClient
    from ray.experimental import internal_kv

    store = ("_internal_kv_get", "internal_kv_get_gcs_client")
    return (
        callable(state.state.get_cluster_config)
        and inspect.signature(InnerGcsClient.check_alive).parameters["node_ids"].annotation == "List[NodeID]"
        and all(callable(getattr(internal_kv, name)) for name in store)
    )


def of_token():
    from ray._private.authentication import (
        authentication_token_generator,
        authentication_token_setup,
        authentication_utils,
    )
    from ray._raylet import AuthenticationTokenLoader

    asked = ("instance", "has_token", "get_raw_token", "reset_cache")
    return (
        callable(authentication_token_generator.generate_new_authentication_token)
        and '".ray" / "auth_token"' in inspect.getsource(authentication_token_setup._get_default_token_path)
        and "Config.initialize" in inspect.getsource(authentication_token_setup._enable_token_auth)
        and callable(authentication_utils.is_token_auth_enabled)
        and all(hasattr(AuthenticationTokenLoader, name) for name in asked)
    )


def of_cluster_launcher():
    from ray.autoscaler._private.kuberay import autoscaling_config, node_provider
    from ray.autoscaler._private.util import prepare_config, validate_config

    return (
        {"provider", "available_node_types", "file_mounts"} <= ray_internals.cluster_file_schema()["properties"].keys()
        and all(map(callable, (prepare_config, validate_config, node_provider.KubernetesHttpApiClient.get)))
        and callable(autoscaling_config._derive_autoscaling_config_from_ray_cr)
    )


def of_usage():
    from ray.air._internal import usage
    from ray.tune import tune

    return callable(usage.tag_callbacks) and "air_usage.tag_callbacks(callbacks)" in inspect.getsource(tune.run)


def of_places():
    from ray.air.execution import PlacementGroupResourceManager
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.tune.execution.tune_controller import TuneController

    made = inspect.getsource(TuneController.__init__)
    held = inspect.getsource(PlacementGroupResourceManager.__init__)
    sets = ("_acquired_pgs: Set[PlacementGroup]", "_request_to_ready_pgs: Dict[")
    waits = inspect.getsource(RayActorManager.next)
    return (
        "resource_manager = PlacementGroupResourceManager()" in made
        and all(f"self.{name}" in held for name in sets)
        and waits.index("_try_start_actors()") < waits.index("get_resource_futures()") < waits.index("ray.wait(")
    )


@pytest.mark.parametrize(
    "names",
    [
        *(of_controller, of_actor_manager, of_train, of_nodes_that_are_gone, of_node, of_processes),
        *(of_cluster, of_cluster_launcher, of_token, of_usage, of_places),
    ],
)
def test_ray_has_the_names_that_we_use(names):
    assert names(), f"tune_dml/running/ray_internals.py: this version of Ray differs in what is used {names.__name__}"


def test_a_process_that_ray_kills_for_memory_counts_as_lost():
    """If Ray's own manager no longer raises, our workaround can go."""
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import OutOfMemoryError

    told = []
    process = SimpleNamespace(actor_id=1, _on_error=lambda process, error: told.append(error))
    task = SimpleNamespace(_tracked_actor=process, _on_error=None)
    manager = SimpleNamespace(_failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None)
    error = OutOfMemoryError("1 worker(s) were killed due to the node running low on memory.")
    with out_of_memory_as_lost_process():
        RayActorManager._actor_task_failed(manager, tracked_actor_task=task, exception=error)
    failure = classify(told[0])
    assert (failure.kind, failure.is_retryable) == ("infrastructure", True)
    assert "low on memory" in failure.reason
    with pytest.raises(RuntimeError):
        RayActorManager._actor_task_failed(manager, tracked_actor_task=task, exception=error)


@pytest.mark.parametrize(("inherit", "given"), [(True, {}), (False, {"AWS_SECRET_ACCESS_KEY": "ours"})])
def test_tune_sets_no_environment_variable_so_idle_processes_are_reused(monkeypatch, inherit, given):
    from ray.tune.execution import class_cache

    for name in class_cache.ENV_VARS_TO_PROPAGATE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ours")

    class Trainable:
        pass

    before = dict(class_cache.DEFAULT_ENV_VARS), set(class_cache.ENV_VARS_TO_PROPAGATE)
    with reuse_idle_processes(inherit=inherit):
        made = class_cache._ActorClassCache().get(Trainable)
    assert made._default_options["runtime_env"].get("env_vars", {}) == given
    assert before == (class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE)
    assert all(before)


def test_tune_does_not_import_mlflow_to_count_callbacks():
    from ray.air._internal import usage

    count = usage.tag_callbacks
    with without_usage_tags():
        assert not usage.tag_callbacks([object()])
    assert usage.tag_callbacks is count


def test_tune_requests_resources_from_our_manager():
    from ray.tune.execution import tune_controller

    from tune_dml.running.cluster.placement import PlacementManager

    tunes = tune_controller.PlacementGroupResourceManager
    with use_resource_manager(PlacementManager):
        assert tune_controller.PlacementGroupResourceManager is PlacementManager
    assert tune_controller.PlacementGroupResourceManager is tunes


def test_under_uv_run_a_local_ray_starts_processes_with_our_python(monkeypatch):
    """Ray would start each process by `uv run`, and none started under `uv run -- tune-dml sweep`."""
    from ray._private import worker
    from ray._private.runtime_env import uv_runtime_env_hook

    monkeypatch.setattr(
        uv_runtime_env_hook, "_get_uv_run_cmdline", lambda: ["uv", "run", "--no-project", "--", "tune-dml"]
    )
    by_uv = worker._maybe_modify_runtime_env({}, False)
    assert by_uv["py_executable"].startswith("uv run")
    with fast_start():
        assert worker._maybe_modify_runtime_env({}, False) == {}
    assert worker._maybe_modify_runtime_env({}, False) == by_uv
