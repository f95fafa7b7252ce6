"""The sweeps of an atlas, one per data set, and the table of their trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem
from trainables.files import expand_home
from tune_dml.planning.atlas import atlas_space
from tune_dml.planning.request import Request
from tune_dml.record.atlas import build_table
from tune_dml.space import Value

if TYPE_CHECKING:
    import pandas as pd

    from tune_dml.sweep import Sweep


def atlas_requests(
    datasets: Sequence[str],
    losses: Sequence[str] = (),
    *,
    seeds: int | Sequence[int] = 5,
    settings: Mapping[str, Value] | None = None,
    name: str = "atlas",
) -> dict[str, Request]:
    """Return the sweeps of an atlas, each by the name of its data set, or of its folder, in the table.

    A data set is given as NAME or, with the folder of its files, NAME=DIR. Raise ConfigError for a repeated name.
    """
    requests: dict[str, Request] = {}
    for argument in datasets:
        dataset, _, folder = argument.partition("=")
        root = expand_home(Path(folder)).absolute() if folder else None
        key = dataset if root is None else root.name.replace(".", "-")
        if key in requests:
            remedy = "Remove the repeated one, or rename its folder."
            raise ConfigError(Problem("DATASET", "must be named once", argument, remedy))
        space = atlas_space(dataset, losses)
        requests[key] = Request(space, dataset, root, seeds=seeds, settings=settings, name=f"{name}-{key}")
    return requests


def atlas_table(sweeps: Mapping[str, Sweep]) -> pd.DataFrame:
    """Return the table of all finished and diverged trials."""
    import pandas as pd

    return pd.concat([build_table(sweep.results, name) for name, sweep in sweeps.items()], ignore_index=True)
