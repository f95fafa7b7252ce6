"""Check what our sweeps need of a RayJob for Kubernetes, before it is applied.

KubeRay checks its schema (`kubectl apply --dry-run=server`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from trainables.errors import Problem

_Part = Mapping[str, object]
"""A mapping of the file, whose schema KubeRay checks."""
_GPU = "nvidia.com/gpu"
_CLUSTER = "spec.rayClusterSpec"


def rayjob_problems(config: _Part) -> Iterator[Problem]:
    """Yield why a sweep would not run, or not safely, in a job that Kubernetes would start."""
    if config.get("kind") != "RayJob":
        yield Problem("kind", "must be a RayJob, whose cluster lives as long as its sweep", config.get("kind"))
        return
    spec = _part(config, "spec")
    cluster = _part(spec, "rayClusterSpec")
    if _part(cluster, "authOptions").get("mode") != "token":
        rule = "every pod must require the token: otherwise anyone who reaches its port can run code"
        yield Problem(f"{_CLUSTER}.authOptions", rule, None, "Write authOptions: {mode: token}.")
    head = _part(cluster, "headGroupSpec")
    yield from _head_problems(head)
    workers = _list(cluster, "workerGroupSpecs")
    groups = [(f"{_CLUSTER}.headGroupSpec", head)]
    groups += [(f"{_CLUSTER}.workerGroupSpecs.{n}", group) for n, group in enumerate(workers)]
    yield from _storage_problems(str(spec.get("entrypoint") or "").split(), groups)


def _part(of: Any, key: str) -> _Part:
    part = of.get(key) if isinstance(of, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _list(of: _Part, key: str) -> list[_Part]:
    items = of.get(key)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _containers(group: Any) -> list[_Part]:
    return _list(_part(_part(group, "template"), "spec"), "containers")


def _head_problems(head: _Part) -> Iterator[Problem]:
    place, start = f"{_CLUSTER}.headGroupSpec", _part(head, "rayStartParams")
    if str(start.get("num-cpus")) != "0":
        rule = "the head must offer no CPU: trials there would share it with the sweep's driver"
        yield Problem(f"{place}.rayStartParams.num-cpus", rule, start.get("num-cpus"), 'Write num-cpus: "0".')
    if "trial_driver" not in str(start.get("resources")):
        rule = "the head must offer trial_driver, which a trial with several workers holds"
        yield Problem(f"{place}.rayStartParams.resources", rule, None, "See deploy/kuberay.yaml.")
    asked = [_part(_part(container, "resources"), "limits").get(_GPU) for container in _containers(head)]
    if any(str(gpus) not in {"None", "0"} for gpus in asked):
        rule = "the head must offer no GPU: trials there would share it with the sweep's driver"
        yield Problem(f"{place}.template", rule, None, f"Leave {_GPU} out of its limits.")


def _storage_problems(words: Sequence[str], groups: Sequence[tuple[str, Any]]) -> Iterator[Problem]:
    """Check that the sweeps' folder is a volume of each pod or, with a bucket, of the head's."""
    values = dict(pairwise(words))
    storage = PurePosixPath(values.get("--storage", ""))
    if not storage.is_absolute():
        rule = "the sweep must be kept in a volume: a pod's own folder goes with it"
        yield Problem("spec.entrypoint", rule, values.get("--storage"), "Example: --storage /mnt/shared/sweeps.")
        return
    for place, group in groups[:1] if "--trial-files" in values else groups:
        mounts = [mount for container in _containers(group) for mount in _list(container, "volumeMounts")]
        if not any(storage.is_relative_to(str(mount.get("mountPath"))) for mount in mounts):
            rule = f"the folder of the sweeps, {storage}, must lie in a volume of each pod"
            yield Problem(f"{place}.template", rule, None, "Mount it there, or name a bucket with --trial-files.")
