"""Training tasks and their evaluation: retrieval, face recognition, contrastive learning.

A task has two classes: a `Task`, the cheap description made from a configuration, and a `Learner`, which holds data and
modules. `TASKS` maps each configuration name to its `Task`: every subclass with a `name` in a module of this package,
or in an entry point of the group `tune_dml.tasks`.
"""

from pathlib import Path
from typing import Any

from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.methods import Registry
from trainables.tasks.evaluation import Evaluation
from trainables.tasks.learner import Learner
from trainables.tasks.task import Task

__all__ = ["TASKS", "Evaluation", "Learner", "Task", "build_learner", "task_of"]

TASKS = Registry(__name__, Task, group="tune_dml.tasks")  # type: ignore[type-abstract]


def task_of(config: TrialConfig) -> Task:
    """Return the task that a configuration selects, without reading data or building a network."""
    return TASKS[config.task.name](config, **config.task.knobs())


def build_learner(config: TrialConfig, context: TrialContext, *, cache_dir: Path | None = None) -> Learner[Any]:
    """Build the learner of a trial: prepare its data and initialise its network."""
    return task_of(config).learner(context, cache_dir)  # type: ignore[no-any-return]
