"""A request becomes a plan that can run, or one error with everything that is wrong with it.

Space, settings, data, and whatever checks the caller adds: every problem of every kind is collected and shown together,
before any worker starts; nothing that is already stored is touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainables.config import PROTOCOL_VERSION, TrialConfig
from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from trainables.resolve import Layer, resolve
from tune_dml.catalogue import RETRIEVAL, default_protocol, find_space
from tune_dml.planning import initial_weights
from tune_dml.planning.plan import Plan, Search, make_plan
from tune_dml.planning.request import Request, margin_problems
from tune_dml.planning.sweep_file import read_sweep_file
from tune_dml.space import Grid, Space, Value

if TYPE_CHECKING:
    from trainables.data.base import DataSet, Pictures
    from trainables.tasks import Task


DataProgress = Callable[[int, int], None]
Check = Callable[[], list[Problem]]
T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# What decides whether batches and splits can be drawn.
_SHAPING = ("augment.", "batch.", "data.", "model.", "training.", "task.", "regularizer.schedule")


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that can run."""

    plan: Plan
    notes: tuple[str, ...] = ()
    """What must be said aloud: about the data, about settings that were dropped."""


@dataclass(frozen=True)
class _Study:
    """A request in which everything is decided."""

    space: Space
    dataset: str
    seeds: int | Sequence[int]
    settings: Mapping[str, Value]
    search: Search
    name: str


def prepare(
    request: Request,
    *,
    cache_dir: Path | None = None,
    other_checks: Sequence[Check] = (),
    progress: DataProgress | None = None,
    decode: bool = True,
) -> CheckedPlan:
    """Resolve and check a request; raises ConfigError with everything that is wrong with it.

    With `decode=False` pictures are only checked and identified; rules about their classes wait until they are decoded.

    Args:
        request: what the sweep is about.
        cache_dir: where decoded pictures are kept.
        other_checks: further checks whose problems are shown with these: of the cluster, of MLflow.
        progress: told of decoding as (done, total).
        decode: whether to decode the pictures.
    """
    study = _study(request)
    problems: list[Problem] = []
    plan = _collect(problems, lambda: _plan(study))
    problems += [*_name_problems(study.name), *margin_problems(request.margin), *_comparison_problems(plan)]
    problems += _metric_problems(study.space, plan) if plan else []
    for check in other_checks:
        problems += check()
    dataset, further = _open(study, plan, cache_dir, problems)
    wrong_data = [problem for item in (dataset, *further) if item is not None for problem in item.check()]
    problems += wrong_data
    pictures, digest = None, ""
    if plan is not None and dataset is not None and not wrong_data:
        digest = _data_digest(dataset, further)
        if decode or dataset.is_prepared():
            pictures = _collect(problems, partial(dataset.prepare, progress))
    if plan is not None:
        problems += _training_problems(plan, pictures, build=decode and not problems)
    raise_if_any(problems)
    assert plan is not None  # noqa: S101 - a missing plan has left a problem
    plan = replace(plan, data_digest=digest, stated_margin=request.margin)
    return CheckedPlan(plan, (*_dropped(study, plan), *_comparison_notes(plan), *_notes(plan, pictures)))


def continuation_problems(plan: Plan, cache_dir: Path | None) -> list[Problem]:
    """Why a stored plan cannot be gone on with: another protocol version, other data. Either would mix two studies."""
    problems = []
    if plan.protocol_version != PROTOCOL_VERSION:
        begun, now = plan.protocol_version, PROTOCOL_VERSION
        rule = f"the sweep was begun by protocol version {begun}; this program trains by {now}"
        remedy = "Start a new sweep under another --name; its report can still be written."
        problems.append(Problem("protocol version", rule, begun, remedy))
    try:
        dataset = training_data(plan.base_settings, cache_dir)
        further = _task_of(_shared_config(plan)).further_datasets(cache_dir)
        raise_if_any(problem for item in (dataset, *further) for problem in item.check())
        digest = _data_digest(dataset, further)
    except ConfigError as error:
        return [*problems, *error.problems]
    if digest != plan.data_digest:
        rule = "the data must be those the sweep began with; their content has changed"
        remedy = "Restore them, or start a new sweep under another --name."
        problems.append(Problem("data", rule, digest[:12], remedy))
    return problems


def name_problems(folder: Path, plan: Plan) -> list[Problem]:
    """A name in use by another plan; the same plan again is a resume."""
    path = folder / "plan.json"
    if not path.exists() or Plan.load(path).identity() == plan.identity():
        return []
    rule = f"the name belongs to a sweep with another plan, kept in {folder}"
    remedy = f"Choose another --name, or continue that one with `tune-dml resume {plan.name}`."
    return [Problem("--name", rule, plan.name, remedy)]


def _study(request: Request) -> _Study:
    """Read the space or the sweep file, and decide what the request leaves open."""
    what = request.space
    if isinstance(what, Space):
        space = what
    elif str(what).endswith((".yaml", ".yml")):
        request = request.over(read_sweep_file(Path(what)))
        assert isinstance(request.space, Space)  # noqa: S101 - a sweep file declares one
        space = request.space
    else:
        space = find_space(str(what))
    dataset = request.dataset or space.default_dataset
    samples = request.num_samples or 0
    settings = _absolute_paths({**(request.settings or {})}, request.data_root)
    if space.protocol_for(dataset) is None:
        task = {**space.fixed, **settings}.get("task.name", RETRIEVAL)
        chosen = default_protocol(dataset, str(task))
        space = replace(space, protocols=(*space.protocols, *([chosen] if chosen else [])))
    return _Study(
        space=space,
        dataset=dataset,
        seeds=3 if request.seeds is None else request.seeds,
        settings=settings,
        search=Search(request.search or "grid", samples, window=max(4, samples // 5)),
        name=request.name or (space.name if dataset == space.default_dataset else f"{space.name}-{dataset}"),
    )


def _absolute_paths(settings: dict[str, Value], data_root: str | Path | None) -> dict[str, Value]:
    """Paths in settings as workers, who have working directories of their own, find them too."""
    if data_root is not None:
        settings["data.root"] = str(data_root)
    for path in ("data.root", "task.evaluation_root"):
        if settings.get(path):
            settings[path] = str(Path(str(settings[path])).expanduser().absolute())
    if settings.get("model.weights"):
        settings["model.weights"] = initial_weights.absolute(str(settings["model.weights"]))
    return settings


def _plan(study: _Study) -> Plan:
    return make_plan(
        study.space,
        name=study.name,
        dataset=study.dataset,
        seeds=study.seeds,
        data_digest="",
        overrides=study.settings,
        search=study.search,
    )


def _collect(problems: list[Problem], make: Callable[[], T]) -> T | None:
    try:
        return make()
    except ConfigError as error:
        problems += error.problems
        return None


def _name_problems(name: str) -> list[Problem]:
    if _NAME.fullmatch(name):
        return []
    rule = "a sweep's name has letters, digits, '.', '_' and '-', starts with a letter or digit, at most 100 of them"
    return [Problem("--name", rule, name, "Example: --name eta1.")]


def _comparison_problems(plan: Plan | None) -> list[Problem]:
    """A sweep of one cell has nothing to compare."""
    if plan is None or len(plan.cells) + plan.search.num_samples > 1:
        return []
    rule = "with one value and no baseline nothing can be compared"
    remedy = "List more values, or train it alone with `tune-dml train`."
    return [Problem(plan.space.name, rule, plan.cells[0].label, remedy)]


def _comparison_notes(plan: Plan) -> list[str]:
    """What the planned cells and seeds cannot tell."""
    single = [knob for knob in plan.space.knobs if isinstance(knob.domain, Grid) and len(knob.domain.values) == 1]
    notes = [f"{knob.path} has one value: nothing can be compared along it" for knob in single]
    if len(plan.seeds) == 1:
        notes.append("one seed gives no estimate of noise: no verdict is possible; use --seeds 3 or more")
    return notes


def _metric_problems(space: Space, plan: Plan) -> list[Problem]:
    known = _task_of(_first_seed(plan)[0]).metrics()
    if space.metric in known:
        return []
    rule = "a sweep is judged by a validation metric"
    return [Problem("metric", rule, space.metric, nearest(space.metric, known, what="metric"))]


def _open(
    study: _Study, plan: Plan | None, cache_dir: Path | None, problems: list[Problem]
) -> tuple[DataSet | None, Sequence[DataSet]]:
    """The data set to train on, and those its task reads besides: benchmarks, distractors."""
    if plan is None:  # its problems have been said; the data are checked all the same
        own = {**_data_settings(study.settings), "data.name": study.dataset}
        return _collect([], lambda: training_data(own, cache_dir)), ()
    dataset = _collect(problems, lambda: training_data(plan.base_settings, cache_dir))
    further = _collect(problems, lambda: _task_of(_shared_config(plan)).further_datasets(cache_dir))
    return dataset, further or ()


def training_data(settings: Mapping[str, Value], cache_dir: Path | None) -> DataSet:
    """The data set that a configuration trains on; raises ConfigError for wrong knobs. Reads nothing yet."""
    from trainables.data import DATASETS, build_dataset

    # Which split makes sense is a matter of the task, and checked with it.
    own = {path: value for path, value in _data_settings(settings).items() if path != "data.split"}
    data = resolve(Layer("--set", own)).config.data
    if data.root is None and DATASETS[data.name].needs_root:
        rule = f"the data set {data.name!r} needs the folder of its pictures"
        raise ConfigError(Problem("--data-root", rule, None, "Pass --data-root DIR."))
    root = Path(str(data.root)).expanduser() if data.root else None
    return build_dataset(data.name, root=root, cache_dir=cache_dir, **data.knobs())


def _data_settings(settings: Mapping[str, Value]) -> dict[str, Value]:
    return {path: value for path, value in settings.items() if path.startswith("data.")}


def _data_digest(dataset: DataSet, further: Sequence[DataSet]) -> str:
    """Identity of all data of a sweep: the data set's own digest where there is no other."""
    from trainables.data.base import digest_of

    return digest_of(*(item.digest() for item in (dataset, *further))) if further else dataset.digest()


def _training_problems(plan: Plan, pictures: Pictures | None, *, build: bool) -> list[Problem]:
    """Whether every cell's batches and splits can be drawn from the pictures, for every seed, and its network built."""
    if pictures is None:
        return initial_weights.file_problems(_first_seed(plan))
    cells = {
        tuple((path, str(value)) for path, value in cell.settings.items() if path.startswith(_SHAPING)): cell
        for cell in plan.cells
    }
    configs = [plan.trial(cell, seed).config for cell in cells.values() for seed in plan.seeds] or [
        _shared_config(plan)
    ]
    problems = [problem for config in configs for problem in _task_of(config).data_problems(pictures)]
    if build and not problems:
        problems = initial_weights.network_problems(_first_seed(plan), pictures)
    return list(dict.fromkeys(problems))


def _task_of(config: TrialConfig) -> Task:
    from trainables.tasks import task_of  # brings torch along

    return task_of(config)


def _first_seed(plan: Plan) -> list[TrialConfig]:
    """Every cell's configuration, or the shared one where cells are yet to be proposed."""
    return [plan.trial(cell, plan.seeds[0]).config for cell in plan.cells] or [_shared_config(plan)]


def _shared_config(plan: Plan) -> TrialConfig:
    return resolve(Layer("plan", plan.base_settings)).config


def _notes(plan: Plan, pictures: Pictures | None) -> list[str]:
    """What the networks start from, and what a reader must know about the pictures and how they are split."""
    configs = _first_seed(plan)
    started = initial_weights.notes(configs, plan.space.protocol_for(plan.dataset))
    return started if pictures is None else [*started, *pictures.notes, *_task_of(configs[0]).notes(pictures)]


def _dropped(study: _Study, plan: Plan) -> list[str]:
    """Settings of the space or protocol that the user's choice of another method made meaningless."""
    protocol = study.space.protocol_for(study.dataset)
    declared = {**(protocol.settings if protocol else {}), **study.space.fixed}
    resolved = {**plan.base_settings, **{knob.path: None for knob in plan.space.knobs}}
    notes = []
    for path, value in sorted(declared.items()):
        section = path.partition(".")[0]
        renamed = f"{section}.name" in study.settings
        if renamed and path not in study.settings and resolved.get(path, object()) != value:
            method = study.settings[f"{section}.name"]
            now = f"its own default {resolved[path]!r} is used" if path in resolved else "it has no such knob"
            notes.append(f"{path}={value!r} of {study.space.name} is not kept for {method!r}: {now}")
    return notes
