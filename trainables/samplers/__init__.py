"""Samplers by name: `SAMPLERS` maps each configuration name to its class; `build_sampler` builds one."""

from numbers import Integral

from numpy.typing import ArrayLike

from trainables.errors import ConfigError, Problem
from trainables.methods import Registry, unknown_problem
from trainables.samplers.base import Batch, Sampler, local_part, whole_batch

__all__ = ["SAMPLERS", "Batch", "Sampler", "build_sampler", "local_part", "sampler_problems", "whole_batch"]

SAMPLERS = Registry(__name__, Sampler, group="tune_dml.samplers")  # type: ignore[type-abstract]


def build_sampler(
    name: str, labels: ArrayLike, batch_size: int, *, instances_per_class: int = 1, seed: int = 0
) -> Sampler:
    """Build the sampler called `name` over training pictures with these labels. Raises ConfigError for wrong sizes.

    >>> sampler = build_sampler("m_per_class", [0, 0, 1, 1, 2, 2], batch_size=4, instances_per_class=2)
    >>> bool((sampler.batch(7) == sampler.batch(7)).all()), sampler.steps_per_epoch  # a batch depends only on its step
    (True, 1)
    """
    if name not in SAMPLERS:
        raise ConfigError(unknown_problem(SAMPLERS, "sampler", name, "batch.sampler"))
    sampler = SAMPLERS[name](labels, batch_size, instances_per_class=instances_per_class, seed=seed)
    steps: object = sampler.steps_per_epoch
    if not isinstance(steps, Integral) or steps < 1:
        rule = "steps_per_epoch must be at least 1" if isinstance(steps, Integral) else "steps_per_epoch must be whole"
        raise ConfigError(Problem(f"sampler {name}", rule, steps, "Count a part of a pass as one step."))
    return sampler


def sampler_problems(
    name: str,
    batch_size: int,
    instances_per_class: int,
    *,
    num_classes: int | None = None,
    num_images: int | None = None,
) -> list[Problem]:
    """Return a problem for each rule that a configuration breaks; only counts are needed."""
    if name not in SAMPLERS:
        return [unknown_problem(SAMPLERS, "sampler", name, "batch.sampler")]
    problems: object = SAMPLERS[name].problems(
        batch_size, instances_per_class, num_classes=num_classes, num_images=num_images
    )
    if not isinstance(problems, list):
        raise ConfigError(Problem(f"sampler {name}", "problems() must return a list", type(problems).__name__))
    return problems
