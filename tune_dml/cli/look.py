"""The verbs that look: what is there, what a sweep would be, what it has become. Only `report` writes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tune_dml.cli.options import (
    Address,
    Asked,
    Cache,
    Experiment,
    Json,
    Margin,
    Output,
    SpaceArgument,
    Storage,
    SweepArgument,
    TrackingUri,
    WorkerFlags,
    spread,
)
from tune_dml.cli.screen import show
from tune_dml.planning.session import DEFAULT_STORAGE


def spaces(as_json: Json = False) -> None:
    """The search spaces: knob, grid, citation and published numbers."""
    from tune_dml.cli import listings

    show(listings.spaces(), as_json)


def methods(as_json: Json = False) -> None:
    """The losses and regularizers with their knobs, defaults and citations."""
    from tune_dml.cli import listings

    show(listings.methods(), as_json)


@spread
def plan(
    space: SpaceArgument,
    *,
    asked: Asked,
    storage: Storage = DEFAULT_STORAGE,
    trial: WorkerFlags,
    cache_dir: Cache = None,
    as_json: Json = False,
) -> None:
    """Cells, what is done already, cost and power of a sweep; runs and changes nothing."""
    from tune_dml.cli.plan import preview
    from tune_dml.planning.checks import request_for

    request = request_for(space, **asked.keywords(), cache_dir=cache_dir)
    show(preview(request, trial.resources(), storage.absolute()), as_json)


def status(
    sweep_name: SweepArgument,
    storage: Storage = DEFAULT_STORAGE,
    trials: Annotated[bool, typer.Option("--trials", help="Also list every trial with its id.")] = False,
    as_json: Json = False,
) -> None:
    """The matrix of cells and seeds: done, running, failed and why, missing."""
    from tune_dml.api import load_sweep
    from tune_dml.cli.status import Status

    show(Status(load_sweep(sweep_name, storage=storage).results, trials), as_json)


def compare(
    sweep_names: Annotated[list[str], typer.Argument(metavar="SWEEP...", help="One or more sweeps.")],
    storage: Storage = DEFAULT_STORAGE,
    margin: Margin = None,
    as_json: Json = False,
) -> None:
    """Sweeps side by side: what differs first, then mean and interval over seeds of every cell."""
    from tune_dml.api import load_sweep
    from tune_dml.cli.compare import compare as side_by_side

    loaded = [load_sweep(name, storage=storage).results for name in sweep_names]
    show(side_by_side(loaded, margin), as_json)


def report(
    sweep_name: SweepArgument,
    output: Output = None,
    storage: Storage = DEFAULT_STORAGE,
    margin: Margin = None,
    unseal_test: Annotated[bool, typer.Option(help="Open the test metrics; recorded in the sweep.")] = False,
    check: Annotated[bool, typer.Option(help="Exit 3 when a trial failed or the optimum lies at an edge.")] = False,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    as_json: Json = False,
) -> None:
    """Write the sensitivity report: HTML, CSV, LaTeX and JSON verdicts; attach it to the sweep's MLflow run."""
    from tune_dml.api import load_sweep
    from tune_dml.cli import closing

    loaded = load_sweep(sweep_name, storage=storage)
    written = closing.publish(
        loaded,
        output,
        margin=margin,
        unseal_test=unseal_test,
        tracking_uri=tracking_uri,
        experiment=experiment,
    )
    show(written, as_json)
    raise typer.Exit(3 if check and written.summary.findings else 0)


def doctor(
    address: Address = None, tracking_uri: TrackingUri = None, cache_dir: Cache = None, as_json: Json = False
) -> None:
    """Versions, GPUs, Ray, MLflow, data sets: what works, and what to do about the rest."""
    from tune_dml.cli.doctor import examine

    found = examine(address, tracking_uri, cache_dir)
    show(found, as_json)
    raise typer.Exit(0 if found.healthy else 1)


def version(as_json: Json = False) -> None:
    """The installed version."""
    from tune_dml import __version__

    typer.echo(json.dumps({"version": __version__}) if as_json else __version__)
