"""Private names of Ray that we use: a version that lacks one fails here, not during a sweep."""

import inspect
from pathlib import Path
from pkgutil import resolve_name
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

CONTROLLER = "ray.tune.execution.tune_controller:TuneController"
ACTORS = "ray.air.execution._internal.actor_manager:RayActorManager"
NODE, SERVICES = "ray._private.node:Node", "ray._private.services"
AUTHENTICATION = "ray._private.authentication.authentication_token_"
SOURCES = {
    f"{CONTROLLER}.__init__": (
        *("self._resetting_trials: Set[Trial]", "self._stopped_trials: Set[Trial]", "self._failed_trials: Set[Trial]"),
        *("self._trials_to_cache: Set[Trial]", "self._started_actors: Set[", "_trial_to_actor: Dict"),
        *("self._actor_manager = ", "resource_manager = PlacementGroupResourceManager()"),
    ),
    f"{CONTROLLER}._maybe_cache_trial_actor": ("not in self._started_actors",),
    f"{ACTORS}.__init__": ("self._live_actors_to_ray_actors_resources: Dict[",),
    "ray.air.execution:PlacementGroupResourceManager.__init__": (
        *("self._acquired_pgs: Set[PlacementGroup]", "self._request_to_ready_pgs: Dict["),
    ),
    f"{NODE}.__init__": ("ray._private.services.get_node(",),
    f"{NODE}.start_raylet": ("ray._private.services.start_raylet(",),
    f"{NODE}.start_head_processes": ("self.start_api_server(", "self.start_monitor()"),
    f"{NODE}.start_ray_processes": ("self.start_log_monitor()",),
    "ray.tune.execution.class_cache:_ActorClassCache.get": ("env_vars = DEFAULT_ENV_VARS.copy()",),
    "ray.tune.tune:run": ("air_usage.tag_callbacks(callbacks)",),
    f"{AUTHENTICATION}setup:_get_default_token_path": ('".ray" / "auth_token"',),
    f"{AUTHENTICATION}setup:_enable_token_auth": ("Config.initialize",),
}
"""Function of Ray -> texts of its source that we rely on."""
CALLED = (
    *(f"{CONTROLLER}._set_trial_status", f"{CONTROLLER}.update_max_pending_trials", f"{NODE}.kill_all_processes"),
    *(f"{SERVICES}:_get_gcs_client_options", "ray._private.state:GlobalState._initialize_global_state"),
    *("ray._private.state:state.get_cluster_config", "ray.air._internal.usage:tag_callbacks"),
    *("ray.experimental.internal_kv:_internal_kv_get", "ray.experimental.internal_kv:internal_kv_get_gcs_client"),
    f"{AUTHENTICATION}generator:generate_new_authentication_token",
    "ray._private.authentication.authentication_utils:is_token_auth_enabled",
    *(f"ray._raylet:AuthenticationTokenLoader.{name}" for name in ("instance", "has_token", "get_raw_token")),
    "ray._raylet:AuthenticationTokenLoader.reset_cache",
    *("ray.autoscaler._private.util:prepare_config", "ray.autoscaler._private.util:validate_config"),
    "ray.autoscaler._private.kuberay.node_provider:KubernetesHttpApiClient.get",
    "ray.autoscaler._private.kuberay.autoscaling_config:_derive_autoscaling_config_from_ray_cr",
)


@pytest.mark.parametrize("name", SOURCES)
def test_functions_of_ray_do_what_we_rely_on(name):
    source = inspect.getsource(resolve_name(name))
    assert [text for text in SOURCES[name] if text not in source] == []


@pytest.mark.parametrize("name", CALLED)
def test_ray_has_the_functions_that_we_call(name):
    assert callable(resolve_name(name))


def test_functions_of_ray_take_the_arguments_that_we_pass():
    def parameters(name):
        return inspect.signature(resolve_name(name)).parameters

    assert list(parameters(f"{ACTORS}._actor_task_failed")) == ["self", "tracked_actor_task", "exception"]
    assert list(parameters(f"{SERVICES}:get_node")) == ["gcs_address", "node_id"]
    assert "dashboard_agent_listen_port" in parameters(f"{SERVICES}:start_raylet")
    assert parameters("ray._raylet:InnerGcsClient.check_alive")["node_ids"].annotation == "List[NodeID]"


def test_ray_waits_for_our_manager_after_it_tried_to_start_actors():
    waits = inspect.getsource(resolve_name(f"{ACTORS}.next"))
    assert waits.index("_try_start_actors()") < waits.index("get_resource_futures()") < waits.index("ray.wait(")


def test_values_of_ray_have_the_types_that_we_expect():
    import ray
    from ray.core.generated.common_pb2 import NodeDeathInfo

    node, worker = resolve_name(NODE), Path(ray.__file__).parent / "_private/workers/default_worker.py"
    assert isinstance(resolve_name("ray.tune.execution.class_cache:DEFAULT_ENV_VARS"), dict)
    assert isinstance(resolve_name("ray.train.v2._internal.constants:ENV_VARS_TO_PROPAGATE"), set)
    assert all(isinstance(getattr(node, name), property) for name in ("raylet_socket_name", "node_id"))
    assert hasattr(ray._private.worker, "_global_node")
    assert "args.worker_preload_modules" in worker.read_text()
    assert {"AUTOSCALER_DRAIN_PREEMPTED", "EXPECTED_TERMINATION"} <= set(NodeDeathInfo.Reason.keys())
    schema = ray_internals.cluster_file_schema()["properties"]
    assert {"provider", "available_node_types", "file_mounts"} <= schema.keys()


def test_ray_train_counts_missing_resources_as_failures_of_its_controller():
    from ray.train import FailureConfig
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
    from ray.train.v2.api.exceptions import ControllerError

    assert is_placement_timeout(ControllerError(WorkerGroupStartupTimeoutError(2)))
    assert FailureConfig(max_failures=-1, controller_failure_limit=3).controller_failure_limit == 3


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
