"""A plan's cost before it runs: a few timed steps of each distinct shape of its cells, in processes of their own, without Ray."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainables.resolve import read_settings
from tune_dml.text import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainables.probe import Probe
    from tune_dml.planning.cells import Cell
    from tune_dml.planning.plan import Plan

_WEIGHTLESS = ("loss.", "regularizer.", "optim.", "seeds.", "evaluation.")
"""Sections whose numbers do not change what a step costs."""


@dataclass(frozen=True)
class ProbeResult:
    """What a plan's trials cost."""

    seconds: float
    """Of one trial, on average over cells."""
    memory_bytes: int
    """Of the largest."""
    gpu_bytes: int
    shapes: int
    """How many kinds of cells were tried."""


def probe_plan(plan: Plan, *, threads: int, cache_dir: Path | None) -> ProbeResult | None:
    """Probe one cell of each shape; None where no cell is known before a search proposes one."""
    shapes: dict[tuple[object, ...], Cell] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for cell in plan.cells:
        shape = _shape(cell.settings)
        shapes.setdefault(shape, cell)
        counts[shape] += 1
    if not shapes:
        return None
    found = {
        shape: _probed({**cell.settings, "seed": plan.seeds[0]}, threads, cache_dir) for shape, cell in shapes.items()
    }
    seconds = sum(found[shape].seconds * count for shape, count in counts.items()) / sum(counts.values())
    memory, gpu = (max(getattr(item, name) for item in found.values()) for name in ("memory_bytes", "gpu_bytes"))
    return ProbeResult(seconds, memory, gpu, len(shapes))


def _shape(settings: Mapping[str, Any]) -> tuple[object, ...]:
    """What decides the cost: methods, sizes and lengths, not the numbers of loss, regularizer or optimizer."""
    deciding = (
        (path, str(value))
        for path, value in sorted(settings.items())
        if not (path.startswith(_WEIGHTLESS) and (value is None or is_number(value)))
    )
    return tuple(deciding)


def _probed(settings: Mapping[str, Any], threads: int, cache_dir: Path | None) -> Probe:
    """In a fresh process: its memory is the trial's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(_probe, dict(settings), threads, cache_dir).result()


def _probe(settings: dict[str, Any], threads: int, cache_dir: Path | None) -> Probe:
    from trainables.probe import probe

    return probe(read_settings(settings), threads=threads, cache_dir=cache_dir)
