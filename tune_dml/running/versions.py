"""Whether the nodes of a cluster have what this process has: the project's code and torch.

    with joined(address, origin):
        version_problems(address, origin, resources)    # every node that runs trials is asked, all at once
    trial = with_same_versions(trial)                   # a node that comes later is asked by its first trial

What is sent to a node travels by value: one without the project answers too, and says so.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any

import ray
import ray.cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainables.errors import Problem
from tune_dml.planning.request import Resources
from tune_dml.running.failures import UNLIKE_DRIVER

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

_SECONDS = 30.0
"""For all nodes together. One that does not answer may just be dying: the trials that it gets will tell."""
_NONE = "none"
_NAMED = 3
"""Nodes that are named of those that lack the same."""


def versions_here() -> dict[str, str]:
    """Package -> version, `none` where it is not there; the project's with a digest of its code, which changes more often."""
    found = {"python": platform.python_version()}
    for name in ("ray", "torch", "tune-dml"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = _NONE
    code = hashlib.sha256()
    for name in ("tune_dml", "trainables"):
        package = util.find_spec(name)
        if package is None:
            return {**found, "tune-dml": _NONE}
        for folder in map(Path, package.submodule_search_locations or ()):
            for file in sorted(folder.rglob("*.py")):
                code.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return {**found, "tune-dml": f"{found['tune-dml']} ({code.hexdigest()[:8]})"}


def _differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What a node lacks or has otherwise; builds of one torch for other devices are alike, so is one code without metadata."""
    pairs = [(name, ours[name], theirs[name]) for name in ("tune-dml", "torch")]
    return [
        f"no {name}" if there == _NONE else f"{name} {there}, not {here}"
        for name, here, there in pairs
        if here.split()[-1].partition("+")[0] != there.split()[-1].partition("+")[0]
    ]


def ask_node(node: str, question: Callable[[], Any]) -> Any:
    """Ray's reference to a node's answer, for which no CPU and no GPU is taken."""
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=place, max_retries=0)(question).remote()


def version_problems(address: str, origin: str, resources: Resources) -> list[Problem]:
    """What the nodes lack on which trials may be placed, of the cluster that this process is connected to."""
    offers = {"CPU", *({"trial_driver"} if resources.engine == "train" else ())}
    nodes = {
        ask_node(node["NodeID"], versions_here): str(node["NodeManagerHostname"])
        for node in ray.nodes()
        if node["Alive"] and offers & node["Resources"].keys()
    }
    answered, _ = ray.wait(list(nodes), num_returns=len(nodes), timeout=_SECONDS) if nodes else ([], [])
    ours, unlike = versions_here(), defaultdict[str, list[str]](list)
    for reference in answered:
        with suppress(ray.exceptions.RayError):
            for difference in _differences(ours, ray.get(reference)):
                unlike[difference].append(nodes[reference])
    return [_problem(address, origin, difference, names) for difference, names in unlike.items()]


def _problem(address: str, origin: str, difference: str, nodes: Sequence[str]) -> Problem:
    names = ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")
    rule = f"every node that runs trials must have what the driver has: {names} has {difference}"
    return Problem(origin, rule, None, _remedy(difference, f"tune-dml submit {address} -- ..."))


def _remedy(difference: str, command: str) -> str:
    by_hand = "install the driver's version on every node"
    return f"`{command}` brings the project; or {by_hand}." if "tune-dml" in difference else f"{by_hand.capitalize()}."


def with_same_versions(trial: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """A trial's function for a cluster: on a node that lacks something it says so; Ray would say that a process was lost."""
    ours, pickled = versions_here(), ray.cloudpickle.dumps(trial)
    unpickled: list[Callable[[dict[str, Any]], None]] = []

    def run(config: dict[str, Any]) -> None:
        if not unpickled:  # a process's first trial
            if differences := _differences(ours, versions_here()):
                remedy = _remedy(differences[0], "tune-dml submit")
                raise RuntimeError(f"node {platform.node()} {UNLIKE_DRIVER}: {', '.join(differences)}. {remedy}")
            unpickled.append(ray.cloudpickle.loads(pickled))
        unpickled[0](config)

    return run
