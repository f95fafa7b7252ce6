"""The verbs of the command line. Heavy packages are imported inside them: `tune-dml --help` loads neither torch nor Ray.

Exit codes: 0 done, 1 the input is wrong, 2 usage, 3 finished with failed cells, 130 interrupted and resumable.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tune_dml.options import (
    Address,
    Cache,
    DataRoot,
    Dataset,
    DataSetArgument,
    Experiment,
    Json,
    Margin,
    MaxConcurrent,
    Name,
    NumSamples,
    Output,
    Root,
    SearchOption,
    Seeds,
    Set,
    SpaceArgument,
    Storage,
    SweepArgument,
    TimeBudget,
    TrackingUri,
    resources_of,
    seeds_of,
    settings_of,
    values_of,
)

if TYPE_CHECKING:
    from rich.console import Console


__all__ = ["app", "main"]

app = typer.Typer(
    name="tune-dml",
    help="Does the knob of a metric learning loss matter on your data? Sweep it, and read a tested answer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def spaces(as_json: Json = False) -> None:
    """The search spaces: knob, grid, citation and published numbers."""
    from tune_dml.verbs import listings

    _show(listings.spaces(), as_json)


datasets_app = typer.Typer(
    invoke_without_command=True, help="The data sets: list them, verify your copy, decode it beforehand."
)
app.add_typer(datasets_app, name="datasets")


@datasets_app.callback()
def datasets(context: typer.Context, as_json: Json = False) -> None:
    """The data sets: licence, where to get them, what is expected. See also: verify, prepare."""
    from tune_dml.verbs import listings

    if context.invoked_subcommand is None:
        _show(listings.datasets(), as_json)


@datasets_app.command("verify")
def datasets_verify(
    name: DataSetArgument,
    root: Root = None,
    settings: Set = None,
    cache_dir: Cache = None,
    as_json: Json = False,
) -> None:
    """Read everything: published counts and checksums, and that every picture decodes."""
    from tune_dml.verbs import datasets as verbs

    dataset = verbs.open_dataset(
        name, root=_absolute(root), cache_dir=_absolute(cache_dir), settings=settings_of(settings)
    )
    _show(verbs.verify(dataset), as_json)


@datasets_app.command("prepare")
def datasets_prepare(
    name: DataSetArgument,
    root: Root = None,
    settings: Set = None,
    cache_dir: Cache = None,
    skip_corrupt: Annotated[bool, typer.Option(help="Leave out pictures that cannot be decoded.")] = False,
    as_json: Json = False,
) -> None:
    """Decode the pictures into the cache that every trial of this machine shares; goes on where it was interrupted."""
    from tune_dml.verbs import datasets as verbs

    dataset = verbs.open_dataset(
        name,
        root=_absolute(root),
        cache_dir=_absolute(cache_dir),
        settings=settings_of(settings),
        skip_corrupt=skip_corrupt,
    )
    with verbs.decoding(_console(as_json)) as progress:
        prepared = verbs.prepare(dataset, progress)
    _show(prepared, as_json)


@app.command()
def methods(as_json: Json = False) -> None:
    """The losses and regularizers with their knobs, defaults and citations."""
    from tune_dml.verbs import listings

    _show(listings.methods(), as_json)


@app.command()
def plan(
    space: SpaceArgument,
    dataset: Dataset = None,
    data_root: DataRoot = None,
    seeds: Seeds = None,
    settings: Set = None,
    search: SearchOption = None,
    num_samples: NumSamples = None,
    name: Name = None,
    storage: Storage = Path("sweeps"),
    workers: Annotated[int, typer.Option(help="Workers (DDP) of each trial.")] = 1,
    cpus_per_worker: Annotated[int, typer.Option(help="CPUs, and torch threads, of each worker.")] = 1,
    gpus_per_worker: Annotated[float | None, typer.Option(help="GPUs of each worker.")] = None,
    cache_dir: Cache = None,
    as_json: Json = False,
) -> None:
    """Cells, what is done already, cost and power of a sweep; runs and changes nothing."""
    from tune_dml.preflight import request_for
    from tune_dml.verbs.plan import preview

    request = request_for(
        space,
        dataset=dataset,
        data_root=_absolute(data_root),
        seeds=seeds_of(seeds),
        settings=settings_of(settings),
        method=search,
        num_samples=num_samples,
        name=name,
        cache_dir=cache_dir,
    )
    resources = resources_of(workers, cpus_per_worker, gpus_per_worker, None)
    _show(preview(request, resources, storage.absolute()), as_json)


@app.command()
def sweep(
    space: SpaceArgument,
    dataset: Dataset = None,
    data_root: DataRoot = None,
    seeds: Seeds = None,
    settings: Set = None,
    search: SearchOption = None,
    num_samples: NumSamples = None,
    name: Name = None,
    storage: Storage = Path("sweeps"),
    address: Address = None,
    workers: Annotated[
        int, typer.Option(help="Workers (DDP) of each trial; more than one uses Ray Train.")
    ] = 1,
    cpus_per_worker: Annotated[int, typer.Option(help="CPUs, and torch threads, of each worker.")] = 1,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(help="GPUs of each worker: a share for small trials; 1 where there is a GPU."),
    ] = None,
    engine: Annotated[
        Literal["local", "train"] | None,
        typer.Option(help="local: in the Tune actor; train: Ray Train workers. By the number of workers."),
    ] = None,
    max_concurrent: MaxConcurrent = None,
    time_budget: TimeBudget = None,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    cache_dir: Cache = None,
    margin: Margin = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Run a sweep on Ray Tune, log it to MLflow, write its report, print the verdicts."""
    from tune_dml.api import run_sweep
    from tune_dml.verbs import closing
    from tune_dml.verbs.datasets import decoding

    console = _console(as_json)
    with decoding(console) as data_progress:
        done = run_sweep(
            space,
            dataset=dataset,
            data_root=_absolute(data_root),
            seeds=seeds_of(seeds),
            settings=settings_of(settings),
            search=search,
            num_samples=num_samples,
            name=name,
            storage=storage,
            resources=resources_of(workers, cpus_per_worker, gpus_per_worker, engine),
            address=address,
            max_concurrent=max_concurrent,
            time_budget=time_budget,
            tracking_uri=tracking_uri,
            experiment=experiment,
            cache_dir=cache_dir,
            console=console,
            data_progress=data_progress,
        )

    raise typer.Exit(
        closing.close(
            done,
            console,
            margin=margin,
            output=output,
            as_json=as_json,
            tracking_uri=tracking_uri,
            experiment=experiment,
        )
    )


@app.command()
def resume(
    sweep_name: SweepArgument,
    storage: Storage = Path("sweeps"),
    address: Address = None,
    max_concurrent: MaxConcurrent = None,
    time_budget: TimeBudget = None,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    cache_dir: Cache = None,
    retry_failed: Annotated[bool, typer.Option(help="Also run failed and diverged trials again.")] = False,
    margin: Margin = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Run what a sweep still lacks: finished trials are kept, interrupted ones continue; brings MLflow up to date."""
    from tune_dml.api import resume_sweep
    from tune_dml.verbs import closing

    console = _console(as_json)
    done = resume_sweep(
        sweep_name,
        storage=storage,
        address=address,
        max_concurrent=max_concurrent,
        time_budget=time_budget,
        tracking_uri=tracking_uri,
        experiment=experiment,
        cache_dir=cache_dir,
        retry_failed=retry_failed,
        console=console,
    )
    raise typer.Exit(
        closing.close(
            done,
            console,
            margin=margin,
            output=output,
            as_json=as_json,
            tracking_uri=tracking_uri,
            experiment=experiment,
        )
    )


@app.command()
def extend(
    sweep_name: SweepArgument,
    seeds: Annotated[
        str | None, typer.Option(help="How many paired seeds in all (5), or which to add (3,4).")
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V,...", help="Values to add to a listed knob; repeatable."),
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Further cells for tpe, gp or random to propose.")] = 0,
    storage: Storage = Path("sweeps"),
    address: Address = None,
    max_concurrent: MaxConcurrent = None,
    time_budget: TimeBudget = None,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    cache_dir: Cache = None,
    margin: Margin = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Add seeds, values or samples to a sweep and run only what is new."""
    from tune_dml.api import extend_sweep
    from tune_dml.verbs import closing

    console = _console(as_json)
    added = seeds_of(seeds) or ()
    done = extend_sweep(
        sweep_name,
        seeds=range(added) if isinstance(added, int) else added,
        values=values_of(add),
        num_samples=num_samples,
        storage=storage,
        address=address,
        max_concurrent=max_concurrent,
        time_budget=time_budget,
        tracking_uri=tracking_uri,
        experiment=experiment,
        cache_dir=cache_dir,
        console=console,
    )
    raise typer.Exit(
        closing.close(
            done,
            console,
            margin=margin,
            output=output,
            as_json=as_json,
            tracking_uri=tracking_uri,
            experiment=experiment,
        )
    )


@app.command()
def status(
    sweep_name: SweepArgument,
    storage: Storage = Path("sweeps"),
    trials: Annotated[bool, typer.Option("--trials", help="Also list every trial with its id.")] = False,
    as_json: Json = False,
) -> None:
    """The matrix of cells and seeds: done, running, failed and why, missing."""
    from tune_dml.api import load_sweep
    from tune_dml.verbs.status import Status

    _show(Status(load_sweep(sweep_name, storage=storage).results, trials), as_json)


@app.command()
def compare(
    sweep_names: Annotated[list[str], typer.Argument(metavar="SWEEP...", help="One or more sweeps.")],
    storage: Storage = Path("sweeps"),
    margin: Margin = None,
    as_json: Json = False,
) -> None:
    """Sweeps side by side: what differs first, then mean and interval over seeds of every cell."""
    from tune_dml.api import load_sweep
    from tune_dml.verbs.compare import compare as side_by_side

    loaded = [load_sweep(name, storage=storage).results for name in sweep_names]
    _show(side_by_side(loaded, margin), as_json)


@app.command()
def report(
    sweep_name: SweepArgument,
    output: Output = None,
    storage: Storage = Path("sweeps"),
    margin: Margin = None,
    unseal_test: Annotated[bool, typer.Option(help="Open the test metrics; recorded in the sweep.")] = False,
    check: Annotated[
        bool, typer.Option(help="Exit 3 when a trial failed or the optimum lies at an edge.")
    ] = False,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    as_json: Json = False,
) -> None:
    """Write the sensitivity report: HTML, CSV, LaTeX and JSON verdicts; attach it to the sweep's MLflow run."""
    from tune_dml.api import load_sweep
    from tune_dml.verbs import closing

    loaded = load_sweep(sweep_name, storage=storage)
    written = closing.publish(
        loaded,
        output,
        margin=margin,
        unseal_test=unseal_test,
        tracking_uri=tracking_uri,
        experiment=experiment,
    )
    _show(written, as_json)
    raise typer.Exit(3 if check and written.summary.findings else 0)


@app.command()
def train(
    trial: Annotated[
        str | None, typer.Argument(metavar="[TRIAL]", help="The id of a trial to run again.")
    ] = None,
    settings: Set = None,
    protocol: Annotated[
        str | None, typer.Option(help="Start from a protocol, such as glyphs/triplet.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; 0 by default.")] = None,
    data_root: DataRoot = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads; 1, or the trial's own.")] = None,
    storage: Storage = Path("sweeps"),
    cache_dir: Cache = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the resolved settings and their origins; do not train.")
    ] = False,
    as_json: Json = False,
) -> None:
    """One trial without Ray or MLflow: debug a setting, or run a finished trial again to the same numbers."""
    from tune_dml.verbs import train as single

    console = _console(as_json)
    request = single.request(
        trial,
        settings=settings_of(settings),
        protocol=protocol,
        seed=seed,
        data_root=_absolute(data_root),
        threads=threads,
        storage=storage.absolute(),
        cache_dir=cache_dir,
    )
    if show:
        _show(request, as_json)
        return
    outcome = single.run(request, console)
    _show(outcome, as_json)
    raise typer.Exit(0 if outcome.status == "finished" else 3)


@app.command()
def doctor(
    address: Address = None, tracking_uri: TrackingUri = None, cache_dir: Cache = None, as_json: Json = False
) -> None:
    """Versions, GPUs, Ray, MLflow, data sets: what works, and what to do about the rest."""
    from tune_dml.verbs.doctor import examine

    found = examine(address, tracking_uri, cache_dir)
    _show(found, as_json)
    raise typer.Exit(0 if found.healthy else 1)


@app.command()
def version(as_json: Json = False) -> None:
    """The installed version."""
    from tune_dml import __version__

    typer.echo(json.dumps({"version": __version__}) if as_json else __version__)


def main() -> None:
    """Run the command line; known errors are one message on standard error and exit code 1."""
    from trainables.errors import ConfigError

    try:
        app()
    except ConfigError as error:
        many = len(error.problems) > 1
        sys.stderr.write((f"{len(error.problems)} problems:\n" if many else "") + f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _show(view: Any, as_json: bool) -> None:
    """Print something that has `data()`, a JSON-able object, and `text()`, rich renderables."""
    if as_json:
        typer.echo(json.dumps(view.data(), indent=1, default=str))
        return
    console = _console(False)
    for part in view.text():
        console.print(part)


def _console(as_json: bool) -> Console:
    """Where people read: standard output, or standard error when standard output carries JSON."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120  # a file or a pipe has no width of its own
    return Console(stderr=as_json, highlight=False, width=width)


def _absolute(path: Path | None) -> Path | None:
    return path.absolute() if path else None


if __name__ == "__main__":
    main()
