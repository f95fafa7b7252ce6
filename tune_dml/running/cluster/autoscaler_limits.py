"""The nodes that a cluster's autoscaler may add."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainables.errors import ConfigError, Problem
from trainables.files import expanded
from tune_dml.text import one_line, shortened

_MOST_NODES = 1000  # per node type without a limit
_BOOTSTRAP = "~/ray_bootstrap_config.yaml"  # `ray up` copies the completed cluster file to the head
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which a pod finds Kubernetes' description of it."""
_NOT_OURS = (401, 403, 404)
"""Status codes where this pod may not read the resource."""


def autoscaler_nodes() -> tuple[Mapping[str, float], ...]:
    """Return all nodes that an autoscaler may start; none without an autoscaler.

    Some autoscalers announce their limits to the cluster. Ray's own do not: `ray up` writes them to a file on the head, and
    KubeRay to the cluster's resource, which the head's pod can read.

    Raises:
        ConfigError: Kubernetes does not answer; without limits a sweep might be refused, or train without GPUs.
    """
    from ray.util.client import ray as client

    from tune_dml.running.ray_internals import autoscaler_node_groups, has_autoscaler

    if client.is_connected():
        return ()
    if groups := autoscaler_node_groups():
        return _times((group.resources, group.max_count) for group in groups)
    if (limits := _limits_on_kubernetes()) is not None:
        return _of_file(limits)
    file = expanded(_BOOTSTRAP)
    return _of_file(yaml.safe_load(file.read_text())) if file.exists() and has_autoscaler() else ()


def _of_file(launched: Mapping[str, Any]) -> tuple[Mapping[str, float], ...]:
    limit = launched.get("max_workers", _MOST_NODES)
    kinds = launched.get("available_node_types", {}).values()
    return _times((kind.get("resources", {}), min(kind.get("max_workers", 0), limit)) for kind in kinds)


def _times(kinds: Iterable[tuple[Mapping[str, float], int]]) -> tuple[Mapping[str, float], ...]:
    return tuple(dict(resources) for resources, count in kinds for _ in range(min(max(count, 0), _MOST_NODES)))


def _limits_on_kubernetes() -> dict[str, object] | None:
    """Return KubeRay's autoscaler configuration; None outside its head's pod or for a fixed size."""
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
