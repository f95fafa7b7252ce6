"""Check that a cluster's nodes have the project's code, torch, packages and picture folders of this process.

    with joined(address, origin):
        version_problems(address, origin, resources)    # asks all nodes at once
        missing_data_problems(places, resources)
    trial = with_node_check(trial, places)              # a node that joins later is checked by its first trial

This module is pickled by value: a node without the project answers too.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any, TypeVar

import ray
import ray.cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainables.errors import Problem
from trainables.option_names import option_problem
from tune_dml.planning.request import Resources
from tune_dml.running.failures import UNLIKE_DRIVER

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

PictureFolders = Sequence[tuple[str, str]]
"""Pairs of a picture folder and its folder of decoded pictures (`planning.checks.data.data_folders`)."""
_Answer = TypeVar("_Answer")
_Config = TypeVar("_Config")
_SECONDS = 30.0
"""Seconds for all nodes together; a node that does not answer may be dying."""
NONE = "none"
_BESIDE = ("PIL", "fsspec", "numpy", "pandas", "pyarrow", "pydantic", "rich")
"""Other packages that a trial's process imports early and a node can start without; any version will do."""
_NAMED = 3
"""Nodes that a message names."""


def versions_here() -> dict[str, str]:
    """Return package -> version; the project's with a digest of its code.

    Missing packages are `none`; of the other packages only the missing ones are listed.
    """
    found = {"python": platform.python_version()}
    for name in ("ray", "torch", "tune-dml"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = NONE
    found |= {name: NONE for name in _BESIDE if _is_missing(name)}
    code = hashlib.sha256()
    for name in ("tune_dml", "trainables"):
        package = util.find_spec(name)
        if package is None:
            return {**found, "tune-dml": NONE}
        for folder in map(Path, package.submodule_search_locations or ()):
            for file in sorted(folder.rglob("*.py")):
                code.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return {**found, "tune-dml": f"{found['tune-dml']} ({code.hexdigest()[:8]})"}


def _is_missing(module: str) -> bool:
    try:
        return util.find_spec(module) is None
    except (ImportError, ValueError):  # raised by other import finders
        return True


def _differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    pairs = [(name, ours[name], theirs[name]) for name in ("tune-dml", "torch")]
    pairs += [(name, "any", theirs.get(name, "any")) for name in _BESIDE if name not in ours]
    return [
        f"no {name}" if there == NONE else f"{name} {there}, not {here}"
        for name, here, there in pairs
        if not same_version(here, there)
    ]


def same_version(here: str, there: str) -> bool:
    """Return whether two versions are equal, apart from the build for a device and missing metadata."""
    return here.rsplit(maxsplit=1)[-1].partition("+")[0] == there.rsplit(maxsplit=1)[-1].partition("+")[0]


def run_on_node(node: str, question: Callable[[], Any]) -> Any:
    """Run a function on a node, on no CPU and no GPU; return Ray's reference."""
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=place, max_retries=0)(question).remote()


def version_problems(address: str, origin: str, resources: Resources) -> list[Problem]:
    """Return what the nodes that run trials lack, on the connected cluster."""
    ours, unlike = versions_here(), defaultdict[str, list[str]](list)
    for node, theirs in _answers(versions_here, resources):
        for difference in _differences(ours, theirs):
            unlike[difference].append(node)
    rule = "every node that runs trials must have what the driver has"
    command = f"tune-dml submit {address} -- ..."
    return [
        Problem(origin, f"{rule}: {_names(nodes)} has {difference}", None, _remedy(difference, command))
        for difference, nodes in unlike.items()
    ]


def missing_data_problems(places: PictureFolders, resources: Resources) -> list[Problem]:
    """Return the nodes that have neither a picture folder nor its decoded pictures."""
    if not places:
        return []
    lacking = defaultdict[str, list[str]](list)
    for node, folders in _answers(lambda: _folders_missing(places), resources):
        for folder in folders:
            lacking[folder].append(node)
    rule, remedy = "the pictures must be on every node that runs trials, and are not on", "Copy or mount them there."
    return [option_problem("data_root", f"{rule} {_names(nodes)}", folder, remedy) for folder, nodes in lacking.items()]


def _folders_missing(places: PictureFolders) -> list[str]:
    return [folder for folder, decoded in places if not any(Path(each).is_dir() for each in (folder, decoded) if each)]


def _answers(question: Callable[[], _Answer], resources: Resources) -> Iterator[tuple[str, _Answer]]:
    """Yield (node, answer) for each node that runs trials; all are asked at once."""
    offers = {"CPU", *({"trial_driver"} if resources.engine == "train" else ())}
    nodes = {
        run_on_node(node["NodeID"], question): str(node["NodeManagerHostname"])
        for node in ray.nodes()
        if node["Alive"] and offers & node["Resources"].keys()
    }
    answered, _ = ray.wait(list(nodes), num_returns=len(nodes), timeout=_SECONDS) if nodes else ([], [])
    for reference in answered:
        with suppress(ray.exceptions.RayError):
            yield nodes[reference], ray.get(reference)


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")


def _remedy(difference: str, command: str) -> str:
    by_hand = "install the driver's version on every node"
    if difference in {f"no {name}" for name in _BESIDE}:
        return "Install the project's dependencies on every node."
    if "folder" in difference:
        return "Copy or mount it there."
    return f"`{command}` brings the project; or {by_hand}." if "tune-dml" in difference else f"{by_hand.capitalize()}."


def with_node_check(trial: Callable[[_Config], None], places: PictureFolders = ()) -> Callable[[_Config], None]:
    """Return a trial function that reports what its node lacks; Ray would only report a lost process."""
    ours, pickled = versions_here(), ray.cloudpickle.dumps(trial)
    unpickled: list[Callable[[_Config], None]] = []

    def run(config: _Config) -> None:
        if not unpickled:  # a process's first trial
            differences = _differences(ours, versions_here())
            differences += [f"no folder {folder}" for folder in _folders_missing(places)]
            if differences:
                remedy = _remedy(differences[0], "tune-dml submit")
                raise RuntimeError(f"node {platform.node()} {UNLIKE_DRIVER}: {', '.join(differences)}. {remedy}")
            unpickled.append(ray.cloudpickle.loads(pickled))
        unpickled[0](config)

    return run
