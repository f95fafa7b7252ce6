"""Run an atlas: one sweep per data set, and the table of their trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem
from trainables.files import expand_home
from tune_dml import operations
from tune_dml.planning.atlas import atlas_space
from tune_dml.planning.request import Racing, Request, Resources, Session
from tune_dml.record.atlas import build_table
from tune_dml.space import Value

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from tune_dml.planning.checks.prepare import DataProgress
    from tune_dml.sweep import Sweep


@dataclass(frozen=True)
class AtlasRequest:
    """The options of an atlas."""

    datasets: Sequence[str]
    """Data sets, each as NAME or, with the folder of its files, NAME=DIR."""
    losses: Sequence[str] = ()
    seeds: int | Sequence[int] = 5
    settings: Mapping[str, Value] | None = None
    name: str = "atlas"


@dataclass(frozen=True)
class AtlasSweeps:
    """The sweeps of an atlas that have started."""

    names: tuple[str, ...]
    """Name of each data set in the table: that of the data set or of its folder."""
    sweeps: tuple[Sweep, ...]

    @property
    def exit_code(self) -> int:
        """130 if interrupted and resumable, otherwise 0. In an atlas, a diverged trial is a result."""
        return 130 if any(sweep.results.is_incomplete for sweep in self.sweeps) else 0

    def table(self) -> pd.DataFrame:
        """Return the table of all finished and diverged trials."""
        import pandas as pd

        tables = [build_table(sweep.results, name) for name, sweep in zip(self.names, self.sweeps, strict=True)]
        return pd.concat(tables, ignore_index=True)


def _atlas_requests(request: AtlasRequest) -> dict[str, Request]:
    """Return the request of each sweep by its name in the table. Raise ConfigError for a repeated name."""
    requests: dict[str, Request] = {}
    for argument in request.datasets:
        dataset, _, folder = argument.partition("=")
        root = expand_home(Path(folder)).absolute() if folder else None
        name = dataset if root is None else root.name.replace(".", "-")
        if name in requests:
            remedy = "Remove the repeated one, or rename its folder."
            raise ConfigError(Problem("DATASET", "must be named once", argument, remedy))
        requests[name] = Request(
            atlas_space(dataset, request.losses), dataset, root, seeds=request.seeds, settings=request.settings,
            name=f"{request.name}-{name}",
        )  # fmt: skip
    return requests


def run_atlas(
    request: AtlasRequest,
    session: Session,
    resources: Resources | None = None,
    *,
    console: Console | None = None,
    data_progress: DataProgress | None = None,
) -> AtlasSweeps:
    """Run the sweeps of an atlas one after another; the same call resumes them. Raise ConfigError for wrong options."""
    requests, sweeps = _atlas_requests(request), []
    for sweep_request in requests.values():
        sweeps.append(
            operations.run(
                sweep_request, session, Racing(), resources=resources, console=console, data_progress=data_progress
            )
        )
        if sweeps[-1].interrupted:
            break
    return AtlasSweeps(tuple(requests)[: len(sweeps)], tuple(sweeps))
