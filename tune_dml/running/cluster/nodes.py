"""Report the versions, clock, memory, GPUs, storage, pictures and cache of each node of a cluster.

A probe runs once on each node and reserves no CPU or GPU. It is pickled by value, so that nodes without this project
answer, too.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from trainables.bucket import Address

_Node = Mapping[str, Any]  # a node as `ray.nodes()` lists it
_SECONDS = 60.0
_MAX_SKEW = 5.0  # seconds by which a node's clock may differ without being reported
_BUCKET_NOT_TRIED = "the project is not there, so the bucket was not tried"
_MIN_SHM = 1.0  # fewest GiB of /dev/shm that Ray's object store and data loaders need


class _Answer(TypedDict, total=False):
    """The findings of a node, as a plain dictionary: a node without the project has none of our classes."""

    host: str
    time: float
    versions: dict[str, str]
    store: list[str]
    storage: str
    storage_error: str
    shm: float | None
    gpus: int
    usable: int | None
    pictures: tuple[str, bool] | None  # a picture folder, and whether it exists
    cache: list[str] | None
    cache_free: float
    skew: float
    node_id: str


@dataclass(frozen=True)
class Finding:
    """The result of one check of this machine, a cluster or a SLURM site."""

    subject: str
    level: Literal["ok", "note", "problem"]
    found: str
    remedy: str = ""

    @classmethod
    def of(cls, subject: str, is_fine: bool, found: str, remedy: str) -> Self:
        """Return a finding that is `ok`, or a problem with a remedy."""
        return cls(subject, "ok", found) if is_fine else cls(subject, "problem", found, remedy)


def check_nodes(
    storage: Path, cache: Path, trial_files: str | None = None, data_root: Path | None = None
) -> list[Finding]:
    """Probe all nodes of the connected cluster, and return findings about them.

    One node writes a file into the storage, and all nodes read it, unless `trial_files` names a bucket.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    marker = storage / f".tune-dml-{uuid.uuid4().hex}"
    bucket = None if trial_files is None else str(Address.read(trial_files))
    pictures = None if data_root is None else str(data_root)
    answers: list[_Answer] = []
    findings = [_count_nodes(alive)]
    try:
        for node in alive:  # one after the other: the first node writes the marker, the others read it
            try:
                node_id, writes = node["NodeID"], not answers
                answers.append(_ask(node_id, str(marker), str(cache), bucket=bucket, pictures=pictures, writes=writes))
            except Exception as error:
                message = str(error).strip().partition("\n")[0] or type(error).__name__
                subject = f"node {node['NodeManagerHostname']}"
                findings.append(Finding(subject, "problem", f"does not answer: {message}", "See its raylet.out."))
    finally:
        marker.unlink(missing_ok=True)
    if not answers:
        return findings
    stored = _check_folder(answers, storage) if trial_files is None else _check_bucket(answers)
    findings += [*_check_versions(answers), *stored, *_check_pictures(answers, alive), *_check_clocks(answers)]
    return [*findings, *_check_each(answers, alive)]


def _count_nodes(alive: Sequence[_Node]) -> Finding:
    addresses = sorted({str(node["NodeManagerAddress"]) for node in alive})
    if not all(address.startswith("127.") for address in addresses):
        return Finding("nodes", "ok", f"{len(alive)} alive")
    # Without a default route Ray uses the address of the host name: 127.0.1.1 on Debian and Ubuntu.
    remedy = "If other machines must join, start the head with --node-ip-address=ADDRESS that they can reach."
    found = f"{len(alive)} alive, at {', '.join(addresses)}, which no other machine reaches"
    return Finding("nodes", "ok", found, remedy)


def _ask(node_id: str, marker: str, cache: str, *, bucket: str | None, pictures: str | None, writes: bool) -> _Answer:
    """Run the probe on a node. The marker shows whether nodes share the storage; the first node `writes` it."""
    import ray

    from tune_dml.running.cluster.versions import run_on_node, versions_here

    def probe() -> _Answer:
        import os
        import platform
        import shutil
        import time
        from pathlib import Path

        found: _Answer = {"host": platform.node(), "time": time.time(), "versions": versions_here()}
        if bucket is not None:
            try:
                from trainables.bucket import bucket_problems

                found["store"] = [str(problem) for problem in bucket_problems(bucket)]
            except ImportError:
                found["store"] = [_BUCKET_NOT_TRIED]
        try:
            if bucket is None and writes:
                Path(marker).parent.mkdir(parents=True, exist_ok=True)
                Path(marker).write_text("tune-dml")
            found["storage"] = Path(marker).read_text() if bucket is None else ""
        except OSError as error:
            found["storage_error"] = error.strerror or str(error)
        found["shm"] = shutil.disk_usage("/dev/shm").total / 2**30 if os.path.isdir("/dev/shm") else None  # noqa: S108
        found["gpus"] = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        try:
            import torch

            found["usable"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        except ImportError:  # `_check_versions` reports it
            found["usable"] = None
        found["pictures"] = None if pictures is None else (pictures, Path(pictures).exists())
        folder = Path(cache)
        found["cache"] = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else None
        found["cache_free"] = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free / 2**30
        return found

    start = time.time()
    answer: _Answer = ray.get(run_on_node(node_id, probe), timeout=_SECONDS)
    # The probe read its clock between `start` and now. A time outside of this interval is skew.
    answer["skew"] = max(start - answer["time"], answer["time"] - time.time(), 0.0)
    answer["node_id"] = node_id
    return answer


def _check_versions(answers: Sequence[_Answer]) -> Iterator[Finding]:
    from tune_dml.running.cluster.versions import NONE, same_version, versions_here

    ours = versions_here()
    for answer in answers:
        if missing := [name for name, theirs in answer["versions"].items() if theirs == NONE and name not in ours]:
            remedy = "Install the project's dependencies there."
            yield Finding(f"node {answer['host']}", "problem", f"no {', no '.join(missing)}", remedy)
    for package, here in ours.items():
        subject = f"{package} on all nodes"
        found = [(answer["versions"][package], answer["host"]) for answer in answers]
        if all(same_version(here, theirs) for theirs, _ in found):
            yield Finding(subject, "ok", here)
        else:
            versions = ", ".join(f"{theirs} on {host}" for theirs, host in found)
            remedy = f"Install {here} on every node" + (", or use `tune-dml submit`." if package == "tune-dml" else ".")
            yield Finding(subject, "problem", f"{versions}; {here} here", remedy)


def _check_folder(answers: Sequence[_Answer], storage: Path) -> Iterator[Finding]:
    missing = [answer for answer in answers if "storage" not in answer]
    if not missing:
        yield Finding("shared storage", "ok", f"{storage}: written on one node, read on {len(answers)}")
    for answer in missing:
        remedy = "Mount one file system there on every node and name it with --storage."
        yield Finding("shared storage", "problem", f"{storage} on {answer['host']}: {answer['storage_error']}", remedy)


def _check_bucket(answers: Sequence[_Answer]) -> Iterator[Finding]:
    for answer in answers:
        for problem in answer["store"]:
            remedy = "A node finds its credentials in its own environment, a profile there, or its machine's role."
            if problem == _BUCKET_NOT_TRIED:
                remedy = "Run the check as a job, which brings the project: `tune-dml submit ADDRESS -- doctor ...`."
            yield Finding("object storage", "problem", f"{answer['host']}: {problem}", remedy)
    if not any(answer["store"] for answer in answers):
        yield Finding("object storage", "ok", f"put, got, listed and deleted on {len(answers)}")


def _check_pictures(answers: Sequence[_Answer], alive: Sequence[_Node]) -> Iterator[Finding]:
    """Yield whether the nodes that run trials have the picture folder."""
    trial_nodes = {node["NodeID"] for node in alive if node["Resources"].get("CPU")}
    answers = [answer for answer in answers if answer["node_id"] in trial_nodes]
    checked = [(answer["host"], *found) for answer in answers if (found := answer["pictures"])]
    for host, folder, is_there in checked:
        if not is_there:
            yield Finding("pictures", "problem", f"{folder} is not on {host}", "Copy or mount them there.")
    if checked and all(is_there for _, _, is_there in checked):
        yield Finding("pictures", "ok", f"{checked[0][1]}: on {len(checked)} that run trials")


def _check_clocks(answers: Sequence[_Answer]) -> Iterator[Finding]:
    worst = max(answers, key=lambda answer: answer["skew"], default=None)
    if worst is not None:
        found = f"at most {worst['skew']:.1f} s apart"
        yield Finding.of("clocks", worst["skew"] <= _MAX_SKEW, found, "Run chrony or ntpd.")


def _check_each(answers: Sequence[_Answer], alive: Sequence[_Node]) -> Iterator[Finding]:
    offered = {node["NodeID"]: node["Resources"].get("GPU", 0.0) for node in alive}
    for answer in answers:
        subject, shm = f"node {answer['host']}", answer["shm"]
        if shm is not None and shm < _MIN_SHM:
            remedy = "Give it more: docker --shm-size, or an emptyDir."
            yield Finding(subject, "problem", f"{shm:.1f} GiB of shared memory", remedy)
        if answer["gpus"] != offered[answer["node_id"]]:
            found = f"{answer['gpus']} GPUs in it, {offered[answer['node_id']]:g} offered to Ray"
            yield Finding(subject, "ok", found, "Correct for a head that must offer none; otherwise check the driver.")
        usable, offer = answer["usable"], offered[answer["node_id"]]
        if usable is not None and usable < offer:
            found = f"torch can use {usable} of the {offer:g} GPUs that it offers to Ray"
            remedy = "Look at `nvidia-smi`: its driver must support the CUDA version of torch."
            yield Finding(subject, "problem", found, remedy)
        cache = answer["cache"]
        size = "not there yet" if cache is None else f"{len(cache)} entries"
        yield Finding(subject, "ok", f"cache {size}, {answer['cache_free']:.0f} GiB free")
