"""How a session runs, whatever it runs: where sweeps are kept, on which cluster, within which limits, logged where.

Named once here; `run_sweep`, `resume_sweep` and `extend_sweep` take these options as keywords, the command line as flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from trainables.errors import Problem

if TYPE_CHECKING:
    from rich.console import Console

    from tune_dml.planning.plan import Plan


DEFAULT_STORAGE = Path("sweeps")


class SessionOptions(TypedDict, total=False):
    """The keywords; the environment or a default decides where one is left out or None."""

    storage: str | Path
    """The folder that keeps sweeps; on a cluster one that all nodes see. `sweeps` by default."""
    address: str | None
    """Of a Ray cluster; RAY_ADDRESS, or this machine, by default."""
    max_concurrent: int | None
    """Trials at once; by default as many as fit."""
    time_budget: float | None
    """Seconds after which the sweep stops, resumable."""
    tracking_uri: str | None
    """MLflow's; MLFLOW_TRACKING_URI, or SQLite in the working directory, by default."""
    experiment: str | None
    """MLflow's experiment; MLFLOW_EXPERIMENT_NAME, or the space's name, by default."""
    cache_dir: str | Path | None
    """Where decoded pictures are kept."""
    console: Console | None
    """Where progress is shown; nowhere by default."""


@dataclass(frozen=True)
class Session:
    """The options as given, and what they come to with the environment and the defaults."""

    storage: str | Path = DEFAULT_STORAGE
    address: str | None = None
    max_concurrent: int | None = None
    time_budget: float | None = None
    tracking_uri: str | None = None
    experiment: str | None = None
    cache_dir: str | Path | None = None
    console: Console | None = None

    @property
    def sweeps(self) -> Path:
        """The folder that keeps sweeps."""
        return Path(self.storage).absolute()

    @property
    def cache(self) -> Path | None:
        """The cache of decoded pictures; None where the environment or the home folder decides."""
        return Path(self.cache_dir).absolute() if self.cache_dir else None

    @property
    def place(self) -> tuple[str | None, str]:
        """The cluster's address, None for this machine, and where it came from."""
        from tune_dml.running import cluster

        return cluster.address_of(self.address)

    @property
    def uri(self) -> str:
        """The MLflow store."""
        from tune_dml import tracking

        return tracking.tracking_uri(self.tracking_uri)[0]

    def experiment_of(self, plan: Plan) -> str:
        """The MLflow experiment that a plan's runs belong to."""
        from tune_dml import tracking

        return tracking.experiment_name(self.experiment, plan)

    def problems(self) -> list[Problem]:
        """What is wrong with the limits, and whether MLflow's store can be written."""
        from tune_dml import tracking

        problems = tracking.check(self.uri)
        if self.max_concurrent is not None and self.max_concurrent < 1:
            problems.append(Problem("--max-concurrent", "must be at least 1", self.max_concurrent))
        if self.time_budget is not None and self.time_budget <= 0:
            problems.append(Problem("--time-budget", "must be more than 0 seconds", self.time_budget))
        return problems
