"""Find out which nodes a cluster's autoscaler may add."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainables.errors import ConfigError, Problem
from trainables.files import expand_home
from tune_dml.text import one_line, shortened

_MAX_NODES = 1000  # per node type; replaces a missing limit
_BOOTSTRAP = "~/ray_bootstrap_config.yaml"  # on the head; `ray up` writes the completed cluster file there
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the service account, which Kubernetes mounts into each pod."""
_NOT_READABLE = (401, 403, 404)  # HTTP status codes: the resource does not exist, or this pod may not read it


def autoscaler_nodes() -> tuple[Mapping[str, float], ...]:
    """Return the resources of each node that an autoscaler may start; empty without an autoscaler.

    Some autoscalers report their limits to Ray. The limits of `ray up` are in a file on the head, those of KubeRay in a
    Kubernetes resource, which the head's pod can read.

    Raises:
        ConfigError: Kubernetes does not answer. Without the limits we might refuse a sweep, or train without GPUs.
    """
    from ray.util.client import ray as client

    from tune_dml.running.ray_internals import autoscaler_node_groups, has_autoscaler

    if client.is_connected():
        return ()
    if groups := autoscaler_node_groups():
        return _repeat_nodes((group.resources, group.max_count) for group in groups)
    if (limits := _kuberay_limits()) is not None:
        return _nodes_of_file(limits)
    file = expand_home(_BOOTSTRAP)
    return _nodes_of_file(yaml.safe_load(file.read_text())) if file.exists() and has_autoscaler() else ()


def _nodes_of_file(config: Mapping[str, Any]) -> tuple[Mapping[str, float], ...]:
    limit, kinds = config.get("max_workers", _MAX_NODES), config.get("available_node_types", {}).values()
    return _repeat_nodes((kind.get("resources", {}), min(kind.get("max_workers", 0), limit)) for kind in kinds)


def _repeat_nodes(node_types: Iterable[tuple[Mapping[str, float], int]]) -> tuple[Mapping[str, float], ...]:
    return tuple(dict(resources) for resources, count in node_types for _ in range(min(max(count, 0), _MAX_NODES)))


def _kuberay_limits() -> dict[str, object] | None:
    """Return KubeRay's limits; None outside the head's pod or if the cluster has a fixed size."""
    name, namespace = os.environ.get("RAY_CLUSTER_NAME"), _POD / "namespace"
    if not name or not namespace.exists():
        return None
    from requests import RequestException

    from tune_dml.running.ray_internals import kuberay_limits

    try:
        return kuberay_limits(namespace.read_text().strip(), name)
    except (OSError, RequestException) as error:
        if getattr(getattr(error, "response", None), "status_code", None) in _NOT_READABLE:
            return None
        rule = f"Kubernetes must report the cluster's limits ({shortened(one_line(str(error)), 120)})"
        remedy = f"Try again; `kubectl get raycluster {name}` shows whether it answers."
        raise ConfigError(Problem("RAY_CLUSTER_NAME", rule, name, remedy)) from error
