"""Check that a cluster's nodes have the same code, torch, packages and picture folders as this process.

All nodes are checked at once; a node that joins later is checked by its first trial (`with_node_check`). This module is
pickled by value, so that nodes without the project answer, too.
"""

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
"""Seconds to wait for all nodes together. A node that is shutting down may not answer."""
NONE = "none"
_EARLY_IMPORTS = ("PIL", "fsspec", "numpy", "pandas", "pyarrow", "pydantic", "rich")
"""Other packages that a trial imports first, of any version. A node can start without them."""
_MAX_NAMES = 3  # most nodes that a message names


def versions_here() -> dict[str, str]:
    """Return package -> version, for this project with a digest of its code.

    The version of a missing package is `none`. Packages of `_EARLY_IMPORTS` are included only if they are missing.
    """
    versions = {"python": platform.python_version()}
    for name in ("ray", "torch", "tune-dml"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = NONE
    versions |= {name: NONE for name in _EARLY_IMPORTS if util.find_spec(name) is None}
    code = hashlib.sha256()
    for name in ("tune_dml", "trainables"):
        package = util.find_spec(name)
        if package is None:
            return {**versions, "tune-dml": NONE}
        for folder in map(Path, package.submodule_search_locations or ()):
            for file in sorted(folder.rglob("*.py")):
                code.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return {**versions, "tune-dml": f"{versions['tune-dml']} ({code.hexdigest()[:8]})"}


def _differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    pairs = [(name, ours[name], theirs[name]) for name in ("tune-dml", "torch")]
    pairs += [(name, "any", theirs.get(name, "any")) for name in _EARLY_IMPORTS if name not in ours]
    return [
        f"no {name}" if there == NONE else f"{name} {there}, not {here}"
        for name, here, there in pairs
        if not same_version(here, there)
    ]


def same_version(here: str, there: str) -> bool:
    """Return whether two versions are equal, ignoring the build for a device and missing metadata."""
    return here.rsplit(maxsplit=1)[-1].partition("+")[0] == there.rsplit(maxsplit=1)[-1].partition("+")[0]


def run_on_node(node: str, function: Callable[[], Any]) -> Any:
    """Run a function on a node without reserving a CPU or GPU; return Ray's reference."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=strategy, max_retries=0)(function).remote()


def version_problems(address: str, origin: str, resources: Resources) -> list[Problem]:
    """Return the differences between this process and the cluster's nodes that run trials."""
    ours, nodes_by_difference = versions_here(), defaultdict[str, list[str]](list)
    for node, theirs in _run_on_trial_nodes(versions_here, resources):
        for difference in _differences(ours, theirs):
            nodes_by_difference[difference].append(node)
    rule = "every node that runs trials must have what the driver has"
    command = f"tune-dml submit {address} -- ..."
    return [
        Problem(origin, f"{rule}: {_names(nodes)} has {difference}", None, _remedy(difference, command))
        for difference, nodes in nodes_by_difference.items()
    ]


def missing_data_problems(folders: PictureFolders, resources: Resources) -> list[Problem]:
    """Return the nodes that have neither a picture folder nor its decoded pictures."""
    if not folders:
        return []
    nodes_by_folder = defaultdict[str, list[str]](list)
    for node, missing in _run_on_trial_nodes(lambda: _missing_folders(folders), resources):
        for folder in missing:
            nodes_by_folder[folder].append(node)
    rule, remedy = "the pictures must be on every node that runs trials, and are not on", "Copy or mount them there."
    return [
        option_problem("data_root", f"{rule} {_names(nodes)}", folder, remedy)
        for folder, nodes in nodes_by_folder.items()
    ]


def _missing_folders(folders: PictureFolders) -> list[str]:
    return [folder for folder, decoded in folders if not any(Path(path).exists() for path in (folder, decoded) if path)]


def _run_on_trial_nodes(function: Callable[[], _Answer], resources: Resources) -> Iterator[tuple[str, _Answer]]:
    """Run a function on each node that runs trials, at the same time; yield (node, answer)."""
    offers = {"CPU", *({"trial_driver"} if resources.engine == "train" else ())}
    nodes = {
        run_on_node(node["NodeID"], function): str(node["NodeManagerHostname"])
        for node in ray.nodes()
        if node["Alive"] and offers & node["Resources"].keys()
    }
    done, _ = ray.wait(list(nodes), num_returns=len(nodes), timeout=_SECONDS) if nodes else ([], [])
    for reference in done:
        with suppress(ray.exceptions.RayError):
            yield nodes[reference], ray.get(reference)


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_MAX_NAMES]) + (f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else "")


def _remedy(difference: str, command: str) -> str:
    by_hand = "install the driver's version on every node"
    if difference in {f"no {name}" for name in _EARLY_IMPORTS}:
        return "Install the project's dependencies on every node."
    if "folder" in difference:
        return "Copy or mount it there."
    return f"`{command}` brings the project; or {by_hand}." if "tune-dml" in difference else f"{by_hand.capitalize()}."


def with_node_check(trial: Callable[[_Config], None], folders: PictureFolders = ()) -> Callable[[_Config], None]:
    """Wrap a trial function so that it reports what its node lacks. Ray would only report a lost process."""
    ours, pickled = versions_here(), ray.cloudpickle.dumps(trial)
    loaded: list[Callable[[_Config], None]] = []

    def run(config: _Config) -> None:
        if not loaded:  # this is the first trial of the process
            differences = _differences(ours, versions_here())
            differences += [f"no folder {folder}" for folder in _missing_folders(folders)]
            if differences:
                remedy = _remedy(differences[0], "tune-dml submit")
                raise RuntimeError(f"node {platform.node()} {UNLIKE_DRIVER}: {', '.join(differences)}. {remedy}")
            loaded.append(ray.cloudpickle.loads(pickled))
        loaded[0](config)

    return run
