"""Measure the metrics of data and network without training, once before the first trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainables.errors import ConfigError
from tune_dml.planning.plan import Plan

RETRIEVAL = "retrieval"


def floors_of(plan: Plan, cache_dir: Path | None) -> Mapping[str, Mapping[str, float]]:
    """Floor -> validation figures of the first arm's network; empty where they cannot be measured in seconds."""
    from trainables.tasks.floors import measure_floors  # brings torch along

    if plan.space.program is not None:
        return {}
    config = plan.main_arms[0].config
    if config.task.name != RETRIEVAL:
        return {}
    try:
        return measure_floors(config, plan.seeds, cache_dir=cache_dir)
    except (ConfigError, RuntimeError, OSError):
        return {}  # whatever it is, the trials meet it and say so
