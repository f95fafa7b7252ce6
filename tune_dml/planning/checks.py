"""What the user asked for, checked whole before any worker starts: space, settings, data, MLflow, cluster.

Every problem of every kind is collected and shown together; nothing that is already stored is touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainables.config import TrialConfig
from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from trainables.resolve import Layer, resolve
from tune_dml.catalogue import RETRIEVAL, default_protocol, find_space, protocols
from tune_dml.planning import initial_weights
from tune_dml.planning.plan import Plan, Search, SearchMethod, make_plan
from tune_dml.planning.sweep_file import read_sweep_file
from tune_dml.running import cluster
from tune_dml.running.trial import Resources
from tune_dml.space import Protocol, Space, Value

if TYPE_CHECKING:
    from trainables.data.base import DataSet, Pictures


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# What decides whether batches and splits can be drawn.
SHAPING = ("augment.", "batch.", "data.", "model.", "training.", "task.", "regularizer.schedule")
DataProgress = Callable[[int, int], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A sweep as asked for; None where the space, the file or a default decides."""

    space: Space
    dataset: str
    data_root: Path | None = None
    seeds: int | tuple[int, ...] = 3
    settings: Mapping[str, Value] = field(default_factory=dict)
    method: SearchMethod = "grid"
    num_samples: int = 0
    search_seed: int = 0
    name: str = ""
    cache_dir: Path | None = None


@dataclass(frozen=True)
class Prepared:
    """A plan that can run."""

    plan: Plan
    notes: tuple[str, ...]
    """What must be said aloud: about the data, about settings that were dropped."""


def request_for(
    what: str | Path | Space,
    *,
    dataset: str | None = None,
    data_root: Path | None = None,
    seeds: int | Sequence[int] | None = None,
    settings: Mapping[str, Value] | None = None,
    search: SearchMethod | None = None,
    num_samples: int | None = None,
    name: str | None = None,
    cache_dir: Path | None = None,
) -> Request:
    """A request from a space's name, a sweep file or a Space; what is given here wins over the file."""
    file = None
    if isinstance(what, Space):
        space = what
    elif str(what).endswith((".yaml", ".yml")):
        file = read_sweep_file(Path(what), tuple(protocols().values()))
        space = file.space
    else:
        space = find_space(str(what))
    asked = dataset or (file.dataset if file else None) or space.default_dataset
    chosen = search or (file.method if file else "grid")
    samples = num_samples if num_samples is not None else (file.num_samples if file else 0)
    count = seeds if seeds is not None else (file.seeds if file and file.seeds else 3)
    return Request(
        space=space,
        dataset=asked,
        data_root=_absolute(data_root or (file.data_root if file else None)),
        seeds=count if isinstance(count, int) else tuple(count),
        settings=dict(settings or {}),
        method=chosen,
        num_samples=samples,
        name=name or (space.name if asked == space.default_dataset else f"{space.name}-{asked}"),
        cache_dir=cache_dir,
    )


def prepare(
    request: Request,
    *,
    resources: Resources | None = None,
    address: tuple[str | None, str] = (None, "default"),
    other_checks: Sequence[Callable[[], list[Problem]]] = (),
    progress: DataProgress | None = None,
    decode: bool = True,
) -> Prepared:
    """Resolve and check a request; raises ConfigError with everything that is wrong with it.

    With `decode=False` pictures are only checked and identified; rules about their classes wait until they are decoded.
    """
    problems: list[Problem] = []
    plan = _collect(problems, lambda: _plan(request, data_digest=""))
    problems += _name_problems(request.name)
    problems += _metric_problems(request.space, plan)
    if resources is not None:
        problems += resource_problems(resources, address)
    for check in other_checks:
        problems += check()
    dataset = _collect(problems if plan else [], lambda: dataset_of(_data_settings(plan, request), request))
    others = _collect(problems, partial(_further_datasets, plan, request)) or [] if plan else []
    found = [problem for item in (dataset, *others) if item is not None for problem in item.check()]
    problems += found
    pictures, digest = None, ""
    if plan is not None and dataset is not None and not found:
        digest = data_digest(dataset, *others)
        if decode or dataset.is_prepared():
            pictures = _collect(problems, partial(dataset.prepare, progress))
    if plan is not None and pictures is not None:
        problems += _fit_problems(plan, pictures)
        if decode and not problems:
            problems += initial_weights.network_problems(_first_seed(plan), pictures)
    elif plan is not None:
        problems += initial_weights.file_problems(_first_seed(plan))
    raise_if_any(problems)
    assert plan is not None  # noqa: S101 - a missing plan has left a problem
    final = replace(plan, data_digest=digest)
    started = initial_weights.notes(_first_seed(final), _protocol(final))
    return Prepared(final, (*_dropped(request, plan), *started, *_data_notes(final, pictures)))


def _first_seed(plan: Plan) -> list[TrialConfig]:
    """Every cell's configuration, or the shared one where cells are yet to be proposed."""
    seeds = {"seed": plan.seeds[0]}
    return [cell.config.model_copy(update=seeds) for cell in plan.cells] or [_any_config(plan)]


def _protocol(plan: Plan) -> Protocol | None:
    """Whose settings the plan's data set takes."""
    return next((item for item in plan.space.protocols if item.dataset == plan.dataset), None)


def _data_notes(plan: Plan, pictures: Pictures | None) -> Sequence[str]:
    """What a reader must know about the pictures and how they are split, for the first seed."""
    if pictures is None:
        return ()
    from trainables.tasks import task_of

    return (*pictures.notes, *task_of(_first_seed(plan)[0]).notes(pictures))


def _plan(request: Request, data_digest: str) -> Plan:
    space = request.space
    if not any(protocol.dataset == request.dataset for protocol in space.protocols):
        task = {**space.fixed, **request.settings}.get("task.name", RETRIEVAL)
        chosen = default_protocol(request.dataset, str(task))
        space = replace(space, protocols=(*space.protocols, *([chosen] if chosen else [])))
    samples = request.num_samples
    search = Search(request.method, samples, window=max(4, samples // 5), seed=request.search_seed)
    settings = dict(request.settings)
    for path in ("data.root", "task.evaluation_root"):
        if settings.get(path):  # workers have working directories of their own
            settings[path] = str(Path(str(settings[path])).expanduser().absolute())
    if settings.get("model.weights"):
        settings["model.weights"] = initial_weights.absolute(str(settings["model.weights"]))
    if request.data_root is not None:
        settings["data.root"] = str(request.data_root)
    return make_plan(
        space,
        name=request.name,
        dataset=request.dataset,
        seeds=request.seeds,
        data_digest=data_digest,
        overrides=settings,
        search=search,
    )


def _absolute(path: Path | None) -> Path | None:
    return path.expanduser().absolute() if path else None


def _collect(problems: list[Problem], make: Callable[[], T]) -> T | None:
    try:
        return make()
    except ConfigError as error:
        problems += error.problems
        return None


def _name_problems(name: str) -> list[Problem]:
    if NAME.fullmatch(name):
        return []
    rule = "a sweep's name has letters, digits, '.', '_' and '-', starts with a letter or digit, at most 100 of them"
    return [Problem("--name", rule, name, "Example: --name eta1.")]


def _metric_problems(space: Space, plan: Plan | None) -> list[Problem]:
    if plan is None:
        return []
    known = metric_names(plan.cells[0].config if plan.cells else _any_config(plan))
    if space.metric in known:
        return []
    rule = "a sweep is judged by a validation metric"
    return [Problem("metric", rule, space.metric, nearest(space.metric, known, what="metric"))]


def _any_config(plan: Plan) -> TrialConfig:
    return resolve(Layer("plan", plan.base_settings)).config


def metric_names(config: TrialConfig) -> list[str]:
    """The validation metrics a trial reports, as its task names them."""
    from trainables.tasks import task_of

    return task_of(config).metrics()


def resource_problems(resources: Resources, address: tuple[str | None, str]) -> list[Problem]:
    """What a trial asks for, in itself and of the cluster; a cluster elsewhere is asked what it has."""
    if problems := _impossible(resources) or cluster.address_problems(*address):
        return problems
    try:
        return cluster.capacity_problems(cluster.capacity_at(*address), resources)
    except ConfigError as error:
        return list(error.problems)


def _impossible(resources: Resources) -> list[Problem]:
    problems = []
    for flag, value in (("--workers", resources.workers), ("--cpus-per-worker", resources.cpus_per_worker)):
        if value < 1:
            problems.append(Problem(flag, "must be at least 1", value))
    share = resources.gpus_per_worker
    if share < 0 or (share > 1 and share != int(share)):
        problems.append(Problem("--gpus-per-worker", "must be a share of one GPU or a whole number of them", share))
    if 0 < share < 1 and resources.workers > 1:
        rule = "several workers of one trial cannot share a GPU"
        problems.append(Problem("--gpus-per-worker", rule, share, "Use 1, or --workers 1."))
    if resources.engine == "local" and resources.workers > 1:
        rule = "engine local trains with one worker"
        problems.append(Problem("--engine", rule, resources.workers, "Use --engine train."))
    return problems


def _data_settings(plan: Plan | None, request: Request) -> dict[str, Value]:
    """The data section, also of a request whose other settings are wrong: its data are checked all the same."""
    if plan is not None:
        return {path: value for path, value in plan.base_settings.items() if path.startswith("data.")}
    own = {path: value for path, value in request.settings.items() if path.startswith("data.")}
    root = {"data.root": str(request.data_root)} if request.data_root else {}
    return {**own, **root, "data.name": request.dataset}


def dataset_of(settings: Mapping[str, Value], request: Request) -> DataSet:
    """The data set that a data section names; raises ConfigError for wrong knobs."""
    from trainables.data import build_dataset

    # Which split makes sense is a matter of the task, and checked with it.
    own = {path: value for path, value in settings.items() if path != "data.split"}
    data = resolve(Layer("--set", own)).config.data
    root = data.root
    if root is None and needs_root(data.name):
        rule = f"the data set {data.name!r} needs the folder of its pictures"
        raise ConfigError(Problem("--data-root", rule, None, "Pass --data-root DIR."))
    return build_dataset(data.name, root=Path(str(root)) if root else None, cache_dir=request.cache_dir, **data.knobs())


def _further_datasets(plan: Plan, request: Request) -> list[DataSet]:
    """What the plan's task reads besides the data set it trains on: benchmarks, distractors."""
    from trainables.tasks import task_of

    return list(task_of(_any_config(plan)).further_datasets(request.cache_dir))


def data_digest(dataset: DataSet, *others: DataSet) -> str:
    """Identity of all data of a sweep: the data set's own digest where there is no other."""
    from trainables.data.base import digest_of

    return digest_of(*(item.digest() for item in (dataset, *others))) if others else dataset.digest()


def datasets_of(plan: Plan, request: Request) -> list[DataSet]:
    """The data set that a plan trains on, then those its task reads besides."""
    return [dataset_of(_data_settings(plan, request), request), *_further_datasets(plan, request)]


def needs_root(name: str) -> bool:
    """Whether a data set lies on the user's disk."""
    from trainables.data import DATASETS

    return DATASETS[name].needs_root


def _fit_problems(plan: Plan, pictures: Pictures) -> list[Problem]:
    """Whether every cell's batches and splits can be drawn from these data, for every seed."""
    from trainables.tasks import task_of

    cells = {
        tuple((path, str(value)) for path, value in cell.settings.items() if path.startswith(SHAPING)): cell
        for cell in plan.cells
    }
    configs = [plan.trial(cell, seed).config for cell in cells.values() for seed in plan.seeds]
    found = [task_of(config).data_problems(pictures) for config in configs or [_any_config(plan)]]
    return list(dict.fromkeys(problem for problems in found for problem in problems))


def _dropped(request: Request, plan: Plan) -> list[str]:
    """Settings of the space or protocol that the user's choice of another method made meaningless."""
    layers = {**dict(request.space.fixed)}
    for protocol in plan.space.protocols:
        if protocol.dataset == request.dataset:
            layers = {**protocol.settings, **layers}
            break
    resolved = {**plan.base_settings, **{knob.path: None for knob in plan.space.knobs}}
    notes = []
    for path, value in sorted(layers.items()):
        section = path.partition(".")[0]
        renamed = f"{section}.name" in request.settings
        if renamed and path not in request.settings and resolved.get(path, object()) != value:
            method = request.settings[f"{section}.name"]
            now = f"its own default {resolved[path]!r} is used" if path in resolved else "it has no such knob"
            notes.append(f"{path}={value!r} of {request.space.name} is not kept for {method!r}: {now}")
    return notes
