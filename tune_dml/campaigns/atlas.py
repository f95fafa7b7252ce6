"""Run an atlas: one sweep a data set, and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem
from trainables.files import expanded
from tune_dml import operations
from tune_dml.planning.atlas import atlas_space
from tune_dml.planning.request import Racing, Request, Resources, Session
from tune_dml.record.atlas import table_of
from tune_dml.space import Value

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from tune_dml.planning.checks.prepare import DataProgress
    from tune_dml.sweep import Sweep


@dataclass(frozen=True)
class AtlasRequest:
    """The content of an atlas."""

    datasets: Sequence[str]
    """Data sets, each as NAME or NAME=DIR with the folder of its files."""
    losses: Sequence[str] = ()
    seeds: int | Sequence[int] = 5
    settings: Mapping[str, Value] | None = None
    name: str = "atlas"


@dataclass(frozen=True)
class AtlasSweeps:
    """The sweeps of an atlas, as far as they have run."""

    names: tuple[str, ...]
    """Name of each data set in the table: the name, or the folder's."""
    sweeps: tuple[Sweep, ...]

    @property
    def exit_code(self) -> int:
        """130 interrupted and resumable, 0 done: a value at which a loss diverges is a result."""
        return 130 if any(sweep.results.incomplete for sweep in self.sweeps) else 0

    def table(self) -> pd.DataFrame:
        """Return the table of all trials that ended."""
        import pandas as pd

        tables = [table_of(sweep.results, name) for name, sweep in zip(self.names, self.sweeps, strict=True)]
        return pd.concat(tables, ignore_index=True)


def _atlas_requests(request: AtlasRequest) -> dict[str, Request]:
    """Return data set's name in the table -> request of its sweep. Raise ConfigError."""
    found: dict[str, Request] = {}
    for word in request.datasets:
        dataset, _, folder = word.partition("=")
        root = expanded(Path(folder)).absolute() if folder else None
        name = dataset if root is None else root.name.replace(".", "-")
        if name in found:
            raise ConfigError(
                Problem("DATASET", "must be named once", word, "Leave the repeat out, or rename its folder.")
            )
        found[name] = Request(
            atlas_space(dataset, request.losses), dataset, root, seeds=request.seeds, settings=request.settings,
            name=f"{request.name}-{name}",
        )  # fmt: skip
    return found


def run_atlas(
    request: AtlasRequest,
    session: Session,
    resources: Resources | None = None,
    *,
    console: Console | None = None,
    data_progress: DataProgress | None = None,
) -> AtlasSweeps:
    """Run the sweeps of an atlas one after the other; the same call again goes on. Raise ConfigError."""
    requests, sweeps = _atlas_requests(request), []
    for one in requests.values():
        sweeps.append(
            operations.run(one, session, Racing(), resources=resources, console=console, data_progress=data_progress)
        )
        if sweeps[-1].interrupted:
            break
    return AtlasSweeps(tuple(requests)[: len(sweeps)], tuple(sweeps))
