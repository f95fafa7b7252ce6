"""What a cluster may grow to, as its autoscaler has been told: by whoever runs it, by `ray up`, or by Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainables.errors import ConfigError, Problem
from trainables.files import expanded
from tune_dml.text import one_line, shortened

_MOST_NODES = 1000  # of one kind, where an autoscaler sets no limit
_BOOTSTRAP = "~/ray_bootstrap_config.yaml"  # where `ray up` puts the cluster file on the head, with resources filled in
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes tells a pod who it is."""
_NOT_OURS = (401, 403, 404)
"""Its answers where the resource is not this pod's to read."""


def autoscaler_nodes() -> tuple[Mapping[str, float], ...]:
    """The nodes that an autoscaler may start; none where there is no autoscaler, or it does not say.

    Some tell the cluster. Those of Ray itself do not: `ray up` leaves their limits in a file on the head, where a submitted
    driver runs, and KubeRay in the resource that the cluster is made of, which the head's pod may read.

    Raises ConfigError where Kubernetes does not answer: without the limits a sweep would be refused, or train without GPUs.
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


def _limits_on_kubernetes() -> dict[str, Any] | None:
    """The cluster as KubeRay's autoscaler reads it, from within the head's pod; None elsewhere, and where it has a fixed size.

    KubeRay lets the head's pod read it where it grows, and names it in each pod.
    """
    name, namespace = os.environ.get("RAY_CLUSTER_NAME"), _POD / "namespace"
    if not name or not namespace.exists():
        return None
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient
    from requests import RequestException

    try:
        resource = KubernetesHttpApiClient(namespace.read_text().strip()).get(f"rayclusters/{name}")
    except (OSError, RequestException) as error:
        if getattr(getattr(error, "response", None), "status_code", None) in _NOT_OURS:
            return None
        rule = f"Kubernetes must say what the cluster may grow to ({shortened(one_line(str(error)), 120)})"
        remedy = f"Ask again; `kubectl get raycluster {name}` shows whether it answers."
        raise ConfigError(Problem("RAY_CLUSTER_NAME", rule, name, remedy)) from error
    if not resource["spec"].get("enableInTreeAutoscaling"):
        return None
    limits: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(resource)
    return limits
