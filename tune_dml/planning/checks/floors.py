"""Measure the metrics of data and network without training, once before the first trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainables.errors import ConfigError
from tune_dml.catalogue import RETRIEVAL
from tune_dml.planning.plan import Plan


def floors_of(plan: Plan, cache_dir: Path | None) -> Mapping[str, Mapping[str, float]]:
    """Return floor -> validation metrics of the first arm's network; empty if they cannot be measured in seconds."""
    from trainables.tasks.floors import measure_floors  # brings torch along

    if plan.space.program is not None:
        return {}
    config = plan.main_arms[0].config
    if config.task.name != RETRIEVAL:
        return {}
    try:
        return measure_floors(config, plan.seeds, cache_dir=cache_dir)
    except (ConfigError, RuntimeError, OSError):
        return {}  # the trials report the error
