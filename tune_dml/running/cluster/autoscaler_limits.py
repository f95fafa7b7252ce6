"""The nodes that a cluster's autoscaler may add."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainables.errors import ConfigError, Problem
from trainables.files import expand_home
from tune_dml.text import one_line, shortened

_MOST_NODES = 1000  # per node type, also if the file states no limit
_BOOTSTRAP = "~/ray_bootstrap_config.yaml"  # `ray up` copies the completed cluster file to the head
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the service account, which Kubernetes mounts into each pod."""
_NOT_OURS = (401, 403, 404)
"""HTTP status codes if the resource does not exist or this pod may not read it."""


def autoscaler_nodes() -> tuple[Mapping[str, float], ...]:
    """Return the resources of each node that an autoscaler may start; empty without an autoscaler.

    Some autoscalers announce their limits to the cluster. Ray's own do not: `ray up` writes them to a file on the head,
    and KubeRay to the cluster's resource, which the head's pod can read.

    Raises:
        ConfigError: Kubernetes does not answer. Without the limits a sweep might be refused, or train without GPUs.
    """
    from ray.util.client import ray as client

    from tune_dml.running.ray_internals import autoscaler_node_groups, has_autoscaler

    if client.is_connected():
        return ()
    if groups := autoscaler_node_groups():
        return _times((group.resources, group.max_count) for group in groups)
    if (limits := _limits_on_kubernetes()) is not None:
        return _of_file(limits)
    file = expand_home(_BOOTSTRAP)
    return _of_file(yaml.safe_load(file.read_text())) if file.exists() and has_autoscaler() else ()


def _of_file(launched: Mapping[str, Any]) -> tuple[Mapping[str, float], ...]:
    limit = launched.get("max_workers", _MOST_NODES)
    kinds = launched.get("available_node_types", {}).values()
    return _times((kind.get("resources", {}), min(kind.get("max_workers", 0), limit)) for kind in kinds)


def _times(kinds: Iterable[tuple[Mapping[str, float], int]]) -> tuple[Mapping[str, float], ...]:
    return tuple(dict(resources) for resources, count in kinds for _ in range(min(max(count, 0), _MOST_NODES)))


def _limits_on_kubernetes() -> dict[str, object] | None:
    """Return KubeRay's limits; None outside the head's pod or if the cluster has a fixed size."""
    name, namespace = os.environ.get("RAY_CLUSTER_NAME"), _POD / "namespace"
    if not name or not namespace.exists():
        return None
    from requests import RequestException

    from tune_dml.running.ray_internals import kuberay_limits

    try:
        return kuberay_limits(namespace.read_text().strip(), name)
    except (OSError, RequestException) as error:
        if getattr(getattr(error, "response", None), "status_code", None) in _NOT_OURS:
            return None
        rule = f"Kubernetes must report the cluster's limits ({shortened(one_line(str(error)), 120)})"
        remedy = f"Try again; `kubectl get raycluster {name}` shows whether it answers."
        raise ConfigError(Problem("RAY_CLUSTER_NAME", rule, name, remedy)) from error
