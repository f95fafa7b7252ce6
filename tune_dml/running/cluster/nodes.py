"""Report what each node of a cluster has: versions, clock, memory, GPUs, storage, pictures and cache.

A probe runs once on each node, on no CPU and no GPU. It is pickled by value: a node without this project answers too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from trainables.bucket import Address

_Node = Mapping[str, Any]
"""A node as `ray.nodes()` lists it."""
_SECONDS = 60.0
_SKEW = 5.0
"""Seconds by which a node's clock may differ before it is reported."""
_NOT_TRIED = "the project is not there, so the bucket was not tried"
_MIN_SHM = 1.0
"""GiB of /dev/shm below which Ray's object store and data loaders run short."""


class _Answer(TypedDict, total=False):
    """The findings of a node. A plain dictionary: a node without the project cannot unpickle our classes."""

    host: str
    time: float
    versions: dict[str, str]
    store: list[str]
    storage: str
    storage_error: str
    shm: float | None
    gpus: int
    usable: int | None
    pictures: tuple[str, bool] | None
    """Folder, and whether it is there."""
    cache: list[str] | None
    cache_free: float
    skew: float
    node_id: str


@dataclass(frozen=True)
class Fact:
    """One finding about the nodes."""

    subject: str
    found: str
    remedy: str = ""
    wrong: bool = False


def node_facts(storage: Path, cache: Path, trial_files: str | None = None, data_root: Path | None = None) -> list[Fact]:
    """Probe all nodes of the connected cluster.

    Args:
        storage: Where sweeps would be kept; one node writes a file there, and all read it.
        cache: Where each node keeps decoded pictures.
        trial_files: Address in object storage for trials' files, which replaces the shared folder.
        data_root: A folder of pictures that every node with trials must have.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    mark = storage / f".tune-dml-{uuid.uuid4().hex}"
    store = None if trial_files is None else str(Address.read(trial_files))
    asked = _Asked(str(mark), str(cache), store, None if data_root is None else str(data_root))
    answers: list[_Answer] = []
    facts = [_count(alive)]
    try:
        for node in alive:  # in order: the first writes the mark, the others read it
            try:
                answers.append(_ask(node["NodeID"], asked, writes=not answers))
            except Exception as error:
                words = str(error).strip().partition("\n")[0] or type(error).__name__
                facts.append(
                    Fact(f"node {_name(node)}", f"does not answer: {words}", "See its raylet.out.", wrong=True)
                )
    finally:
        mark.unlink(missing_ok=True)
    kept = _shared(answers, storage) if trial_files is None else _stored(answers)
    return [*facts, *_versions(answers), *kept, *_pictures(answers, alive), *_clocks(answers), *_each(answers, alive)]


def _count(alive: Sequence[_Node]) -> Fact:
    """Return the number of nodes, and whether others could join."""
    places = sorted({str(node["NodeManagerAddress"]) for node in alive})
    if not all(place.startswith("127.") for place in places):
        return Fact("nodes", f"{len(alive)} alive")
    # Without a default route Ray uses the address of the host name: 127.0.1.1 on Debian and Ubuntu.
    remedy = "If others are to join, begin the head with --node-ip-address=ADDRESS, one that they can reach."
    return Fact("nodes", f"{len(alive)} alive, at {', '.join(places)}, which no other machine reaches", remedy)


def _name(node: _Node) -> str:
    return str(node["NodeManagerHostname"])


@dataclass(frozen=True)
class _Asked:
    """The items that a node must check."""

    mark: str
    """A file in the storage."""
    cache: str
    store: str | None
    """Object storage."""
    pictures: str | None


def _ask(node_id: str, asked: _Asked, *, writes: bool) -> _Answer:
    import ray

    from tune_dml.running.cluster.versions import run_on_node, versions_here

    # A node without the project could not unpickle our class.
    mark, cache, store, pictures = asked.mark, asked.cache, asked.store, asked.pictures

    def probe() -> _Answer:
        import os
        import platform
        import shutil
        import time
        from pathlib import Path

        found: _Answer = {"host": platform.node(), "time": time.time(), "versions": versions_here()}
        if store is not None:
            try:
                from trainables.bucket import bucket_problems

                found["store"] = [str(problem) for problem in bucket_problems(store)]
            except ImportError:
                found["store"] = [_NOT_TRIED]
        try:
            if store is None and writes:
                Path(mark).parent.mkdir(parents=True, exist_ok=True)
                Path(mark).write_text("tune-dml")
            found["storage"] = Path(mark).read_text() if store is None else ""
        except OSError as error:
            found["storage_error"] = error.strerror or str(error)
        found["shm"] = shutil.disk_usage("/dev/shm").total / 2**30 if os.path.isdir("/dev/shm") else None  # noqa: S108
        found["gpus"] = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        try:
            import torch

            found["usable"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        except ImportError:  # reported with its version
            found["usable"] = None
        found["pictures"] = None if pictures is None else (pictures, Path(pictures).is_dir())
        there = Path(cache)
        found["cache"] = sorted(path.name for path in there.iterdir()) if there.is_dir() else None
        found["cache_free"] = shutil.disk_usage(next(p for p in (there, *there.parents) if p.exists())).free / 2**30
        return found

    before = time.time()
    answer: _Answer = ray.get(run_on_node(node_id, probe), timeout=_SECONDS)
    # The probe ran between these two times; anything outside is skew.
    answer["skew"] = max(before - answer["time"], answer["time"] - time.time(), 0.0)
    answer["node_id"] = node_id
    return answer


def _versions(answers: Sequence[_Answer]) -> Iterator[Fact]:
    """Compare the nodes' versions with those of this process."""
    from tune_dml.running.cluster.versions import NONE, same_version, versions_here

    ours = versions_here()
    for answer in answers:
        if lacking := [name for name, there in answer["versions"].items() if there == NONE and name not in ours]:
            remedy = "Install the project's dependencies there."
            yield Fact(f"node {answer['host']}", f"no {', no '.join(lacking)}", remedy, wrong=True)
    for package, here in ours.items():
        subject = f"{package} on all nodes"
        found = [(answer["versions"][package], answer["host"]) for answer in answers]
        if all(same_version(here, there) for there, _ in found):
            yield Fact(subject, here)
        else:
            each = ", ".join(f"{there} on {host}" for there, host in found)
            remedy = f"Install {here} on every node" + (", or use `tune-dml submit`." if package == "tune-dml" else ".")
            yield Fact(subject, f"{each}; {here} here", remedy, wrong=True)


def _shared(answers: Sequence[_Answer], storage: Path) -> Iterator[Fact]:
    lacking = [answer for answer in answers if "storage" not in answer]
    if not lacking:
        yield Fact("shared storage", f"{storage}: written on one node, read on {len(answers)}")
    for answer in lacking:
        remedy = "Mount one file system there on every node and name it with --storage."
        yield Fact("shared storage", f"{storage} on {answer['host']}: {answer['storage_error']}", remedy, wrong=True)


def _stored(answers: Sequence[_Answer]) -> Iterator[Fact]:
    for answer in answers:
        for problem in answer["store"]:
            remedy = "A node finds its credentials in its own environment, a profile there, or its machine's role."
            if problem == _NOT_TRIED:
                remedy = "Send the question: `tune-dml submit ADDRESS -- doctor ...`; the project goes with it."
            yield Fact("object storage", f"{answer['host']}: {problem}", remedy, wrong=True)
    if not any(answer["store"] for answer in answers):
        yield Fact("object storage", f"put, got, listed and deleted on {len(answers)}")


def _pictures(answers: Sequence[_Answer], alive: Sequence[_Node]) -> Iterator[Fact]:
    """Check the nodes that run trials."""
    trains = {node["NodeID"] for node in alive if node["Resources"].get("CPU")}
    asked = [
        (answer["host"], *found) for answer in answers if (found := answer["pictures"]) and answer["node_id"] in trains
    ]
    for host, folder, is_there in asked:
        if not is_there:
            yield Fact("pictures", f"{folder} is not on {host}", "Copy or mount them there.", wrong=True)
    if asked and all(is_there for _, _, is_there in asked):
        yield Fact("pictures", f"{asked[0][1]}: on {len(asked)} that run trials")


def _clocks(answers: Sequence[_Answer]) -> Iterator[Fact]:
    worst = max(answers, key=lambda answer: answer["skew"], default=None)
    if worst is not None:
        late = worst["skew"] > _SKEW
        yield Fact("clocks", f"at most {worst['skew']:.1f} s apart", "Run chrony or ntpd." if late else "", wrong=late)


def _each(answers: Sequence[_Answer], alive: Sequence[_Node]) -> Iterator[Fact]:
    offered = {node["NodeID"]: node["Resources"].get("GPU", 0.0) for node in alive}
    for answer in answers:
        place, shm = f"node {answer['host']}", answer["shm"]
        if shm is not None and shm < _MIN_SHM:
            yield Fact(
                place, f"{shm:.1f} GiB of shared memory", "Give it more: docker --shm-size, or an emptyDir.", wrong=True
            )
        if answer["gpus"] != offered[answer["node_id"]]:
            found = f"{answer['gpus']} GPUs in it, {offered[answer['node_id']]:g} offered to Ray"
            yield Fact(place, found, "Right where the head offers none; else check the driver.")
        usable, promised = answer["usable"], offered[answer["node_id"]]
        if usable is not None and usable < promised:
            found = f"torch can use {usable} of the {promised:g} GPUs that it offers to Ray"
            yield Fact(place, found, "Look at `nvidia-smi`: its driver must know the CUDA that torch has.", wrong=True)
        cache = answer["cache"]
        held = "not there yet" if cache is None else f"{len(cache)} entries"
        yield Fact(place, f"cache {held}, {answer['cache_free']:.0f} GiB free")
