"""Measure a plan's cost: time a few steps of one cell of each shape, in fresh processes, without Ray."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.resolve import read_settings
from tune_dml.text import is_number

if TYPE_CHECKING:
    from trainables.config import Settings
    from trainables.probe import Probe
    from tune_dml.planning.plan import Plan
    from tune_dml.planning.request import Resources

_Shape = tuple[object, ...]

_WEIGHTLESS = ("loss.", "regularizer.", "optim.", "seeds.", "evaluation.")
_COSTLY = "loss.proxies_per_class"
"""Sections whose numbers are assumed not to change the cost of a step, and the one that does."""


@dataclass(frozen=True)
class ProbeResult:
    """Cost of a plan's trials."""

    seconds: float
    """Seconds of one trial, as the mean over cells."""
    memory_bytes: int
    """Largest over cells."""
    checkpoint_bytes: int
    """Largest over cells; a running trial keeps two checkpoints."""
    gpu_bytes: int
    """Largest over cells."""
    shapes: int
    """Number of shapes measured."""


def probe_plan(plan: Plan, resources: Resources, cache_dir: Path | None) -> ProbeResult | None:
    """Measure one cell of each shape; None if the plan has no cells yet."""
    if not plan.cells:
        return None
    counts = Counter(_shape_of(cell.settings) for cell in plan.cells)
    kinds = kinds_of([cell.settings for cell in plan.cells], plan.seeds[0], resources)
    found = {
        shape: probed(settings, resources.cpus_per_worker, cache_dir, on_gpu=resources.gpus > 0)
        for shape, settings in kinds.items()
    }
    seconds = sum(found[shape].seconds * count for shape, count in counts.items()) / sum(counts.values())
    sizes = ("memory_bytes", "checkpoint_bytes", "gpu_bytes")
    memory, checkpoint, gpu = (max(getattr(item, name) for item in found.values()) for name in sizes)
    return ProbeResult(seconds, memory, checkpoint, gpu, len(kinds))


def kinds_of(cells: Iterable[Settings], seed: int, resources: Resources) -> dict[_Shape, Settings]:
    """Return the first cell of each shape, with the settings that a worker uses."""
    held = {} if resources.micro_batch is None else {"training.micro_batch": resources.micro_batch}
    kinds: dict[_Shape, Settings] = {}
    for settings in cells:
        kinds.setdefault(_shape_of(settings), {**settings, **held, "seed": seed})
    return kinds


def _shape_of(settings: Settings) -> _Shape:
    """Return the settings that decide the cost: all but most numbers of loss, regularizer, optimizer and evaluation."""
    deciding = (
        (path, str(value))
        for path, value in sorted(settings.items())
        if path == _COSTLY or not (path.startswith(_WEIGHTLESS) and (value is None or is_number(value)))
    )
    return tuple(deciding)


def probed(settings: Settings, threads: int, cache_dir: Path | None, *, on_gpu: bool = True) -> Probe:
    """Measure one cell in a fresh process, so that the process's memory is the trial's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(_probe, dict(settings), threads, cache_dir, on_gpu).result()


def _probe(settings: Settings, threads: int, cache_dir: Path | None, on_gpu: bool) -> Probe:
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read by torch at its first use
    from trainables.probe import probe

    return probe(read_settings(settings), threads=threads, cache_dir=cache_dir)
