"""`tune-dml doctor`: check the installation, and print how to fix each problem."""

import importlib.util
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainables.bucket import bucket_problems
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import free_bytes
from trainables.option_names import unused_options
from tune_dml.cli.options import Json, absolute, verb
from tune_dml.cli.screen import print_result, table
from tune_dml.planning.checks.gpus import visibility_problems
from tune_dml.planning.request import Session, folder_problems
from tune_dml.running.cluster.nodes import Finding

ORDER = 110
_DATA = "data: "


@verb
def doctor(
    place: Annotated[
        str | None, typer.Argument(metavar="[slurm]", help="slurm: check a node with a job of one minute.")
    ] = None,
    *,
    partition: Annotated[str | None, typer.Option(help="SLURM: partition of that job.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="A cluster file to check; no machine is started.")] = None,
    session: Annotated[Session, "address", "storage", "trial_files", "tracking_uri", "cache_dir"],
    data_root: Annotated[
        Path | None, typer.Option(help="A folder or table of pictures that every node that runs trials must have.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check versions, GPUs, Ray and its nodes, MLflow and data sets; print how to fix each problem."""
    unread = {"data_root": (place or cluster) and data_root, "partition": not place and partition}
    unread |= {"cluster": place and cluster}
    given = {name: str(value) for name, value in unread.items() if value}
    raise_if_any(unused_options(given, "this check does not read it"))
    if place is not None:
        findings, ready = _slurm(place, partition, session)
    elif cluster is not None:
        findings = _cluster_file(cluster)
        start_command = "kubectl apply -f" if any("kubectl" in finding.found for finding in findings) else "ray up"
        start = "After the steps above: " if any(finding.remedy for finding in findings) else "Ready for "
        ready = f"{start}`{start_command} {cluster}`."
    else:
        findings, ready = _check_all(session, absolute(data_root))
    healthy = all(finding.level != "problem" for finding in findings)
    rows = ((f.level, f.subject, f.found, f.remedy) for f in findings)
    lines = [
        table("", ("", "what", "found", "what to do"), rows),
        ready if healthy else "Fix the problems above first.",
    ]
    print_result({"healthy": healthy, "findings": [vars(finding) for finding in findings]}, lines, as_json)
    raise typer.Exit(0 if healthy else 1)


def _slurm(place: str, partition: str | None, session: Session) -> tuple[list[Finding], str]:
    """Check SLURM, and one of its nodes by a job of one minute. Return findings, and the line to print if all are fine."""
    from tune_dml.cli._slurm import SLURM
    from tune_dml.running.slurm.node_check import check_site
    from tune_dml.running.slurm.profile import profile_file, read_profile

    if place != SLURM:
        raise ConfigError(Problem("doctor", "checks this machine, or slurm", place, "Leave it out."))
    profile = read_profile(profile_file()).with_flags({"partition": partition})
    return check_site(profile, session.sweeps), "Ready for `tune-dml submit slurm -- sweep sec_rho`."


def _check_all(session: Session, data_root: Path | None) -> tuple[list[Finding], str]:
    """Check everything that a sweep needs, without starting a cluster. Write only a probe of the MLflow store.

    Each node of a remote cluster is checked. Return findings, and the line to print if all are fine.
    """
    findings = [
        Finding("python", "ok", sys.version.split()[0]),
        *_packages(),
        *_torch(),
        *_ray(session, data_root),
        *_bucket(session.trial_files),
        *_mlflow(session),
        *_datasets(session.cache),
        _disk(session.sweeps),
    ]
    has_glyphs = any(finding.subject == f"{_DATA}glyphs" and finding.level == "ok" for finding in findings)
    return findings, f"Ready for `{_next_command(session, None if has_glyphs else 'digits')}`."


def _next_command(session: Session, dataset: str | None) -> str:
    from tune_dml.record.origin.commands import program

    storage = str(session.storage)
    locations = {"--dataset": dataset, "--address": session.address, "--trial-files": session.trial_files}
    locations["--storage"] = storage if storage != str(Session.storage) else None
    flags = [word for flag, value in locations.items() if value for word in (flag, shlex.quote(value))]
    return " ".join([program(), "sweep sec_rho", *flags])


def _packages() -> list[Finding]:
    findings = []
    for name in ("torch", "ray", "optuna", "mlflow", "numpy", "pandas", "scipy"):
        try:
            findings.append(Finding(name, "ok", version_of(name)))
        except PackageNotFoundError:
            findings.append(Finding(name, "problem", "not installed", "pip install tune-dml"))
    faiss = Finding("faiss", "note", "not installed: exact search in torch is used", "pip install 'tune-dml[cpu]'")
    if importlib.util.find_spec("faiss") is not None:
        faiss = Finding("faiss", "ok", "installed")
    return [*findings, faiss]


def _torch() -> list[Finding]:
    import torch

    if problems := visibility_problems():
        return _problems("GPU", problems)
    if not torch.cuda.is_available():
        return [Finding("GPU", "note", "none: trials train on CPU", "")]
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [Finding("GPU", "ok", ", ".join(names))]


def _cluster_file(file: Path) -> list[Finding]:
    from tune_dml.running.cluster.cluster_file import cluster_file_gaps, cluster_file_notes, cluster_file_problems

    if problems := cluster_file_problems(file):
        return [finding for problem in problems for finding in _problems(problem.place, [problem])]
    notes = [Finding(file.name, "note", note) for note in cluster_file_notes(file)]
    gaps = [finding for gap in cluster_file_gaps(file) for finding in _problems(gap.place, [gap], "note")]
    return [Finding(file.name, "ok", "has what a sweep needs"), *gaps, *notes]


def _ray(session: Session, data_root: Path | None) -> list[Finding]:
    from tune_dml.running.cluster import cluster, probe_address
    from tune_dml.running.cluster.start_checks import start_problems

    location, origin = cluster.address_of(session.address)
    if problems := probe_address.address_problems(location, origin):
        return _problems("Ray", problems)
    if location is not None:
        return _nodes(location, origin, session, data_root)
    capacity = cluster.local_capacity()
    resources = f"local: {capacity.total('CPU'):g} CPUs, {capacity.total('GPU'):g} GPUs"
    findings = [Finding("Ray", "ok", resources), *_problems("Ray", start_problems(int(capacity.total("CPU"))))]
    findings += _problems("storage", folder_problems("--storage", session.storage))
    if importlib.util.find_spec("ray.dashboard.optional_deps") is None:
        rule = "missing: engine train needs it"
        findings.append(Finding("Ray dashboard", "problem", rule, "pip install 'ray[default]'"))
    if data_root is not None and not data_root.exists():
        findings.append(Finding("pictures", "problem", f"{data_root} is not here", "Name the folder that has them."))
    return findings


def _nodes(location: str, origin: str, session: Session, data_root: Path | None) -> list[Finding]:
    from trainables.data import default_cache_dir
    from tune_dml.running.cluster import cluster, nodes

    try:
        with cluster.connect(location, origin=origin) as capacity:
            resources = f"{capacity.total('CPU'):g} CPUs, {capacity.total('GPU'):g} GPUs"
            cache = session.cache or default_cache_dir()
            findings = nodes.check_nodes(session.sweeps, cache, session.trial_files, data_root)
    except ConfigError as error:
        return _problems("Ray", error.problems)
    return [Finding("Ray", "ok", f"{location} ({origin}): {resources}"), *findings]


def _bucket(trial_files: str | None) -> list[Finding]:
    if trial_files is None:
        return []
    return _problems("object storage", bucket_problems(trial_files), fine="put, got, listed and deleted here")


def _mlflow(session: Session) -> list[Finding]:
    from tune_dml import tracking
    from tune_dml.record.origin.provenance import mask

    uri, origin = tracking.tracking_uri(session.tracking_uri, session.sweeps)
    return _problems("MLflow", tracking.store_problems(uri), fine=f"{mask(uri)} ({origin})")


def _datasets(cache_dir: Path | None) -> list[Finding]:
    from trainables.data import DATASETS, build_dataset, default_cache_dir

    try:
        cache = cache_dir or default_cache_dir()
    except ConfigError as error:
        return _problems("cache", error.problems)
    if problems := folder_problems("cache", cache, "Point TUNE_DML_CACHE (--cache-dir) at a writable folder."):
        return _problems("cache", problems)
    findings = []
    for name, dataset_class in DATASETS.items():
        if not dataset_class.needs_root:
            findings += _problems(f"{_DATA}{name}", build_dataset(name, cache_dir=cache).check(), fine="ready")
    if any(finding.level == "ok" for finding in findings):  # fonts come with an extra
        return [replace(finding, level="note") if finding.level == "problem" else finding for finding in findings]
    return findings


def _disk(storage: Path) -> Finding:
    free = free_bytes(storage) / 2**30
    if free < 1:
        return Finding("disk", "problem", f"{free:.1f} GiB free in the storage", "Free some, or use another --storage.")
    return Finding("disk", "ok", f"{free:.0f} GiB free in the storage")


def _problems(
    subject: str, problems: Sequence[Problem], level: Literal["note", "problem"] = "problem", *, fine: str = ""
) -> list[Finding]:
    """Return a finding for each problem; without problems, one with the text `fine` if it is given."""
    findings = [Finding(subject, level, f"{p.rule}: {p.value}" if p.value else p.rule, p.remedy) for p in problems]
    return findings or ([Finding(subject, "ok", fine)] if fine else [])
