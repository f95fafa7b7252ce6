"""Dry-run a plan before any worker starts: check its tasks, draw batches, build networks.

The driver fetches weights once and builds each network. This finds a wrong address, digest, shape or picture size
before the first trial. On a cluster, each node then fetches the weights into its own cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from trainables.config import TrialConfig, canonical
from trainables.errors import ConfigError, Problem
from trainables.metrics.families import family_of
from trainables.registries import foreign_packages
from tune_dml.planning.cells import Cell
from tune_dml.planning.grouping import grouped
from tune_dml.planning.plan import Plan
from tune_dml.space import Protocol

if TYPE_CHECKING:
    from trainables.data.base import Pictures
    from trainables.tasks import Task

_T = TypeVar("_T")
# Settings that decide whether batches and splits can be drawn.
_BATCH_SETTINGS = ("augment.", "batch.", "data.", "model.", "training.", "task.", "seeds.", "regularizer.schedule")


@dataclass(frozen=True)
class DryRun:
    """The findings of a dry run."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()  # notes on the networks' initial weights, the pictures and their split
    kept_bytes: int | None = 0
    """Size of the files that a trial keeps on request, at most; None until the pictures are decoded."""


def dry_run(plan: Plan, pictures: Pictures | None, *, build: bool, micro_batch: int | None = None) -> DryRun:
    """Check that every cell's batches and splits can be drawn, for every seed, and that its network can be built.

    If a search proposes the cells, each value of a knob is checked separately. `pictures` is None if they are not
    decoded; checks that need them are then skipped. `build` builds the networks, which fetches their weights.
    """
    from trainables.models import BACKBONES
    from trainables.tasks import task_of  # imports torch

    arms_with_cells = {cell.arm for cell in plan.cells}
    proposed = [config for arm in plan.arms if arm.name not in arms_with_cells for config in arm.trial_configs]
    tasks = [task_of(config) for config in (*_configs(plan.cells, plan.seeds[:1]), *proposed)]
    networks = [_with_micro_batch(task, micro_batch) for task in _first_of_each(tasks, _network_key)]
    data_tasks = _first_of_each(tasks, lambda task: canonical(task.config.data.flat))  # a knob may change the data
    if pictures is None:
        models = [task.config.model for task in networks]  # fetches nothing
        problems = [
            item for model in models for item in BACKBONES[model.backbone].file_problems(**model.knobs("backbone"))
        ]
    else:
        configs = _configs(_first_of_each(plan.cells, lambda cell: _batch_key(cell.settings)), plan.seeds)
        configs += _first_of_each(proposed, lambda config: _batch_key(config.settings()))
        problems = [problem for config in configs for problem in task_of(config).data_problems(pictures)]
        if build and not problems:
            problems = [problem for task in networks for problem in _network_problems(task, pictures)]
            problems += [
                problem for task in _first_of_each(tasks, _method_key) for problem in _method_problems(task, pictures)
            ]
    if problems:
        return DryRun(tuple(dict.fromkeys(problems)))
    protocols = [arm.protocol for arm in plan.main_arms]
    notes = start_notes([task.config for task in networks], next(filter(None, protocols), None))
    keeping = [task for task in tasks if task.config.evaluation.keep != "scores"]
    keeping = _first_of_each(keeping, lambda task: canonical([task.config.model.flat, task.config.data.flat]))
    if pictures is None:
        return DryRun((), tuple(notes), None if keeping else 0)
    notes += [*pictures.notes, *dict.fromkeys(note for task in data_tasks for note in task.notes(pictures))]
    batches = _first_of_each(tasks, lambda task: canonical([task.config.data.flat, task.config.batch.flat]))
    notes += [*_repeat_notes(batches, pictures), *_coarse_notes(plan, data_tasks, pictures)]
    return DryRun((), tuple(notes), max((task.kept_bytes(pictures) for task in keeping), default=0))


def _repeat_notes(tasks: Iterable[Task], pictures: Pictures) -> list[str]:
    """Note that batches repeat pictures of classes with fewer pictures than `batch.instances_per_class`."""
    import numpy as np

    found: dict[str, None] = {}
    for task in tasks:
        batch = task.config.batch
        if batch.sampler != "m_per_class":
            continue
        _, counts = np.unique(task.training_labels(pictures, task.split(pictures)), return_counts=True)
        if small_classes := int((counts < batch.instances_per_class).sum()):
            found[f"{small_classes} of {len(counts)} at batch.instances_per_class={batch.instances_per_class}"] = None
    if not found:
        return []
    return [f"Batches repeat pictures of training classes that have too few: {', '.join(found)}."]


def _coarse_notes(plan: Plan, tasks: Iterable[Task], pictures: Pictures) -> list[str]:
    """Note that there are too few queries to resolve differences as small as the margin."""
    measured = family_of(plan.metric.removeprefix("val/"))
    if measured is None or measured[0].name != "recall":
        return []
    counts = [_queries(task, seed, pictures) for task in tasks for seed in plan.seeds]
    queries, fewest = min(counts), " under the seed with the fewest" if len(set(counts)) > 1 else ""
    step = 100 / max(queries, 1)
    if step <= plan.margin:
        return []
    from tune_dml.stats.power import fewest_seeds  # imports scipy
    from tune_dml.stats.sequential.looks import level_left

    once = level_left([1.0], planned=1)  # the error level of one look at all planned seeds
    needed = fewest_seeds(resolution=step, margin=float(plan.margin), alpha=once)
    seeds = f"{needed} seeds or more" if needed else "more than a thousand seeds"
    return [
        f"{queries} validation pictures{fewest}: {plan.metric} of a trial moves in steps of {step:.3g} points, more than "
        f"{plan.margin:g}, the smallest difference that matters. Equal results of seeds count as if they "
        f"varied by half a step: to show that no difference matters takes {seeds}."
    ]


def _queries(task: Task, seed: int, pictures: Pictures) -> int:
    """Return the number of validation pictures that have another picture of their class among them."""
    import numpy as np

    config = task.config.model_copy(update={"seed": seed})
    labels = pictures.labels[replace(task, config=config).split(pictures).validation]
    _, counts = np.unique(labels, return_counts=True)
    return int(counts[counts > 1].sum())


def _configs(cells: Iterable[Cell], seeds: Sequence[int]) -> list[TrialConfig]:
    return [cell.config.model_copy(update={"seed": seed}) for cell in cells for seed in seeds]


def _first_of_each(items: Iterable[_T], key: Callable[[_T], str]) -> list[_T]:
    return [same[0] for same in grouped(items, key).values()]


def _network_key(task: Task) -> str:
    config = task.config
    return canonical([config.model.flat, config.augment.flat, config.training.micro_batch, task.name])


def _method_key(task: Task) -> str:
    config = task.config
    return canonical(
        [config.loss.flat, config.regularizer.flat, config.model.embedding_dim, config.batch.flat, task.name]
    )


def _with_micro_batch(task: Task, micro_batch: int | None) -> Task:
    """Return the task with this micro-batch, unless it is None or a size that another check refuses."""
    if micro_batch is None or micro_batch < 1:
        return task
    training = task.config.training.model_copy(update={"micro_batch": micro_batch})
    return replace(task, config=task.config.model_copy(update={"training": training}))


def _batch_key(settings: Mapping[str, object]) -> str:
    return repr([(path, str(value)) for path, value in settings.items() if path.startswith(_BATCH_SETTINGS)])


def _network_problems(task: Task, pictures: Pictures) -> list[Problem]:
    """Build a network with its weights, as a trial does, and pass two blank pictures through it; return the errors."""
    import torch
    from torch.nn.parameter import is_lazy

    size, backbone = task.picture_size(pictures) or 1, task.config.model.backbone
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            network = task.build_network(pictures).eval()
            if lazy := [name for name, parameter in network.named_parameters() if is_lazy(parameter)]:
                rule, remedy = f"{backbone} must know the shapes of its parameters", "Use no Lazy... layers."
                return [Problem("model.backbone", rule, ", ".join(lazy), remedy)]
            network(torch.zeros(2, pictures.in_channels, size, size, dtype=torch.uint8))
    except ConfigError as error:
        return list(error.problems)
    except Exception as error:  # networks for unsupported sizes, and those of other packages, raise many kinds
        rule = f"{backbone} must take pictures of {size} x {size} pixels"
        is_of_torch = isinstance(error, RuntimeError | AssertionError | ValueError)
        return [Problem("model.backbone", rule, f"{'' if is_of_torch else f'{type(error).__name__}: '}{error}"[:200])]
    return []


def _method_problems(task: Task, pictures: Pictures) -> list[Problem]:
    """Call another package's loss, regularizer and sampler on random embeddings; return errors that end every trial.

    Only a ConfigError for a wrong result counts: other errors may come from this machine, such as a missing GPU.
    """
    import numpy as np
    import torch

    from trainables.method_checks import check_resumes, checked_diagnostics
    from trainables.regularizers import build_regularizer
    from trainables.samplers import build_sampler, whole_batch
    from trainables.tasks.learner import loss_of

    config, batch = task.config, task.config.batch
    chosen = {"loss.name": config.loss.name, "regularizer.name": config.regularizer.name}
    if not foreign_packages({**chosen, "batch.sampler": batch.sampler}):
        return []
    classes, numbers = np.unique(task.training_labels(pictures, task.split(pictures)), return_inverse=True)
    try:
        with torch.random.fork_rng(devices=[]), redirect_stdout(sys.stderr):  # standard output may carry JSON
            per_class, order = batch.instances_per_class, config.seed_of("order")
            build = partial(build_sampler, batch.sampler, numbers, batch.batch_size)
            samplers = [build(instances_per_class=per_class, seed=order) for _ in range(2)]
            # The second sampler has drawn another batch before, as that of a resumed trial has not.
            first, _, again = (np.array(whole_batch(samplers[i], step)) for i, step in ((0, 0), (1, 1), (1, 0)))
            if not np.array_equal(first, again):
                rule = "batch(0) must be the same at each call: resumed trials and paired seeds repeat batches"
                remedy = "Draw from np.random.default_rng((self.seed, step))."
                return [Problem(f"sampler {batch.sampler}", rule, None, remedy)]
            draws = [torch.randperm(len(numbers))[: batch.batch_size] for _ in range(2)]
            labels, others = (torch.from_numpy(numbers)[draw] for draw in draws)
            embeddings, other = torch.randn(2, len(labels), config.model.embedding_dim).requires_grad_()
            loss, resumed = (loss_of(config, len(classes)) for _ in range(2))
            loss(embeddings * 1, labels)
            regularizer, continued = (
                build_regularizer(config.regularizer.name, **config.regularizer.knobs()) for _ in range(2)
            )
            if regularizer.needs_mean:
                regularizer.set_mean(1.0)
            regularizer(embeddings * 1)
            checked_diagnostics(regularizer, loss)
            check_resumes("loss", loss, resumed, lambda part: part(other * 1, others))
            check_resumes("regularizer", regularizer, continued, lambda part: part(other * 1))
    except ConfigError as error:
        return list(error.problems)
    except (Exception, SystemExit):  # the trial reports the error with its traceback
        return []
    return []


def start_notes(configs: Iterable[TrialConfig], protocol: Protocol | None) -> list[str]:
    """Note the initial weights of each network, and those of the protocol if they differ."""
    from trainables.models import BACKBONES
    from trainables.models.weights import source_of

    printed = protocol.settings.get("model.weights") if protocol else None
    lines = []
    for config in configs:
        knobs = config.model.knobs("backbone")
        weights = knobs.get("weights")
        if "weights" not in knobs and printed is None:
            continue  # this network has no pretrained weights
        note = BACKBONES[config.model.backbone].start(**knobs)
        if protocol and printed is not None:
            file = source_of(str(printed)).path.name
            if weights is None or source_of(str(weights)).path.name != file:
                note += f" Protocol {protocol.name} starts from {printed}: figures compare with other starts only with care."
        lines.append(note)
    return list(dict.fromkeys(lines))
