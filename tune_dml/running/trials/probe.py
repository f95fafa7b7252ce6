"""Measure a plan's cost: time a few steps of one cell of each shape, in fresh processes, without Ray."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem
from trainables.option_names import spell
from trainables.resolve import read_settings
from tune_dml.text import is_number

if TYPE_CHECKING:
    from trainables.config import Settings
    from trainables.probe import Probe
    from tune_dml.planning.plan import Plan
    from tune_dml.planning.request import Resources

_Shape = tuple[object, ...]

_FREE_SECTIONS = ("loss.", "regularizer.", "optim.", "seeds.", "evaluation.")
_COSTLY_NUMBER = "loss.proxies_per_class"
"""Sections whose numbers are assumed not to change the cost of a step, and the number that does change it."""


def probe_plan(plan: Plan, resources: Resources, cache_dir: Path | None) -> tuple[Probe, int]:
    """Measure one cell of each shape. Return the mean time and the largest sizes, and the number of shapes."""
    counts = Counter(_shape_of(cell.settings) for cell in plan.cells)
    shapes = settings_by_shape([cell.settings for cell in plan.cells], plan.seeds[0], resources)
    probes = {
        shape: probe_settings(settings, resources.cpus_per_worker, cache_dir, on_gpu=resources.gpus > 0)
        for shape, settings in shapes.items()
    }
    seconds = sum(probes[shape].seconds * count for shape, count in counts.items()) / sum(counts.values())
    largest = {
        name: max(getattr(probe, name) for probe in probes.values())
        for name in ("memory_bytes", "checkpoint_bytes", "gpu_bytes")
    }
    return replace(next(iter(probes.values())), seconds=seconds, **largest), len(shapes)


def settings_by_shape(cells: Iterable[Settings], seed: int, resources: Resources) -> dict[_Shape, Settings]:
    """Return shape -> settings of its first cell, with the seed and the micro-batch of a worker."""
    override = {} if resources.micro_batch is None else {"training.micro_batch": resources.micro_batch}
    shapes: dict[_Shape, Settings] = {}
    for settings in cells:
        shapes.setdefault(_shape_of(settings), {**settings, **override, "seed": seed})
    return shapes


def _shape_of(settings: Settings) -> _Shape:
    """Return the settings that determine the cost: all but the numbers of `_FREE_SECTIONS`."""
    cost_settings = (
        (path, str(value))
        for path, value in sorted(settings.items())
        if path == _COSTLY_NUMBER or not (path.startswith(_FREE_SECTIONS) and (value is None or is_number(value)))
    )
    return tuple(cost_settings)


def probe_settings(settings: Settings, threads: int, cache_dir: Path | None, *, on_gpu: bool = True) -> Probe:
    """Measure one cell in a fresh process, whose memory is then that of the trial. Raise ConfigError if it is killed."""
    with measuring_processes(ProcessPoolExecutor(1, get_context("spawn"))) as processes:
        return processes.submit(_probe, dict(settings), threads, cache_dir, on_gpu).result()


@contextmanager
def measuring_processes(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """Run a pool that measures steps. Raise ConfigError if one of its processes is killed."""
    try:
        with pool:
            yield pool
    except BrokenProcessPool as error:
        rule = "a process that measured a few steps was killed, perhaps for lack of memory"
        remedy = f"Use smaller batches; {spell('micro_batch')} lets a worker hold fewer pictures."
        raise ConfigError(Problem("probe", rule, None, remedy)) from error


def _probe(settings: Settings, threads: int, cache_dir: Path | None, on_gpu: bool) -> Probe:
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read by torch at its first use
    from trainables.probe import probe

    return probe(read_settings(settings), threads=threads, cache_dir=cache_dir)
