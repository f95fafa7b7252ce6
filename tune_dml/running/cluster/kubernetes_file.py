"""Check the file of a RayJob for Kubernetes against the needs of our sweeps.

KubeRay checks its schema (`kubectl apply --dry-run=server`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from trainables.errors import Problem

_Part = Mapping[str, object]  # a mapping in the file
_GPU = "nvidia.com/gpu"
_CLUSTER = "spec.rayClusterSpec"


def rayjob_problems(config: _Part) -> Iterator[Problem]:
    """Yield why a sweep would fail, or be unsafe, in the job that Kubernetes would start."""
    if config.get("kind") != "RayJob":
        yield Problem("kind", "must be a RayJob, whose cluster lives as long as its sweep", config.get("kind"))
        return
    spec = _get_mapping(config, "spec")
    cluster = _get_mapping(spec, "rayClusterSpec")
    if _get_mapping(cluster, "authOptions").get("mode") != "token":
        rule = "every pod must require the token: otherwise anyone who reaches its port can run code"
        yield Problem(f"{_CLUSTER}.authOptions", rule, None, "Write authOptions: {mode: token}.")
    head = _get_mapping(cluster, "headGroupSpec")
    yield from _head_problems(head)
    workers = _get_list(cluster, "workerGroupSpecs")
    groups = [(f"{_CLUSTER}.headGroupSpec", head)]
    groups += [(f"{_CLUSTER}.workerGroupSpecs.{n}", group) for n, group in enumerate(workers)]
    yield from _storage_problems(str(spec.get("entrypoint") or "").split(), groups)


def _get_mapping(mapping: Any, key: str) -> _Part:
    value = mapping.get(key) if isinstance(mapping, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _get_list(mapping: _Part, key: str) -> list[_Part]:
    items = mapping.get(key)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _containers(group: Any) -> list[_Part]:
    return _get_list(_get_mapping(_get_mapping(group, "template"), "spec"), "containers")


def _head_problems(head: _Part) -> Iterator[Problem]:
    location, start = f"{_CLUSTER}.headGroupSpec", _get_mapping(head, "rayStartParams")
    if str(start.get("num-cpus")) != "0":
        rule = "the head must offer no CPU: trials there would share it with the sweep's driver"
        yield Problem(f"{location}.rayStartParams.num-cpus", rule, start.get("num-cpus"), 'Write num-cpus: "0".')
    if "trial_driver" not in str(start.get("resources")):
        rule = "the head must offer trial_driver, which a trial with several workers holds"
        yield Problem(f"{location}.rayStartParams.resources", rule, None, "See deploy/kuberay.yaml.")
    gpu_limits = [
        _get_mapping(_get_mapping(container, "resources"), "limits").get(_GPU) for container in _containers(head)
    ]
    if any(str(gpus) not in {"None", "0"} for gpus in gpu_limits):
        rule = "the head must offer no GPU: trials there would share it with the sweep's driver"
        yield Problem(f"{location}.template", rule, None, f"Leave {_GPU} out of its limits.")


def _storage_problems(words: Sequence[str], groups: Sequence[tuple[str, Any]]) -> Iterator[Problem]:
    """Check that the sweeps' folder is in a volume of each pod or, with a bucket, of the head's pod."""
    values = dict(pairwise(words))
    storage = PurePosixPath(values.get("--storage", ""))
    if not storage.is_absolute():
        rule = "the sweep must be stored in a volume: a pod's own folder is deleted with the pod"
        yield Problem("spec.entrypoint", rule, values.get("--storage"), "Example: --storage /mnt/shared/sweeps.")
        return
    for location, group in groups[:1] if "--trial-files" in values else groups:
        mounts = [mount for container in _containers(group) for mount in _get_list(container, "volumeMounts")]
        if not any(storage.is_relative_to(str(mount.get("mountPath"))) for mount in mounts):
            rule = f"the folder of the sweeps, {storage}, must lie in a volume of each pod"
            yield Problem(f"{location}.template", rule, None, "Mount it there, or name a bucket with --trial-files.")
