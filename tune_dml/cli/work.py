"""The verbs that run trials: sweep, resume and extend, which end in a report, and train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tune_dml.cli.options import (
    Asked,
    Cache,
    DataRoot,
    Ending,
    Json,
    SessionFlags,
    Set,
    SpaceArgument,
    Storage,
    SweepArgument,
    WorkerFlags,
    absolute,
    seeds_of,
    settings_of,
    spread,
    values_of,
)
from tune_dml.cli.screen import console_for, show
from tune_dml.planning.session import DEFAULT_STORAGE

if TYPE_CHECKING:
    from tune_dml.api import Sweep


@spread
def sweep(
    space: SpaceArgument,
    asked: Asked,
    trial: WorkerFlags,
    *,
    engine: Annotated[
        Literal["local", "train"] | None,
        typer.Option(help="local: in the Tune actor; train: Ray Train workers. By the number of workers."),
    ] = None,
    session: SessionFlags,
    ending: Ending,
) -> None:
    """Run a sweep on Ray Tune, log it to MLflow, write its report, print the verdicts."""
    from tune_dml.api import run_sweep
    from tune_dml.cli.datasets import decoding

    console = console_for(ending.as_json)
    with decoding(console) as data_progress:
        done = run_sweep(
            space,
            **asked.keywords(),
            resources=trial.resources(engine),
            data_progress=data_progress,
            **session.keywords(console),
        )
    _close(done, session, ending)


@spread
def resume(
    sweep_name: SweepArgument,
    *,
    session: SessionFlags,
    retry_failed: Annotated[bool, typer.Option(help="Also run failed and diverged trials again.")] = False,
    ending: Ending,
) -> None:
    """Run what a sweep still lacks: finished trials are kept, interrupted ones continue; brings MLflow up to date."""
    from tune_dml.api import resume_sweep

    keywords = session.keywords(console_for(ending.as_json))
    done = resume_sweep(sweep_name, retry_failed=retry_failed, **keywords)
    _close(done, session, ending)


@spread
def extend(
    sweep_name: SweepArgument,
    *,
    seeds: Annotated[str | None, typer.Option(help="How many paired seeds in all (5), or which to add (3,4).")] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V,...", help="Values to add to a listed knob; repeatable."),
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Further cells for tpe, gp or random to propose.")] = 0,
    session: SessionFlags,
    ending: Ending,
) -> None:
    """Add seeds, values or samples to a sweep and run only what is new."""
    from tune_dml.api import extend_sweep

    added = seeds_of(seeds) or ()
    done = extend_sweep(
        sweep_name,
        seeds=range(added) if isinstance(added, int) else added,
        values=values_of(add),
        num_samples=num_samples,
        **session.keywords(console_for(ending.as_json)),
    )
    _close(done, session, ending)


def _close(done: Sweep, session: SessionFlags, ending: Ending) -> None:
    """Write and show the report of what ran; the exit code says how it ended."""
    from tune_dml.cli import closing

    written = closing.publish(
        done,
        ending.output,
        margin=ending.margin,
        tracking_uri=session.tracking_uri,
        experiment=session.experiment,
    )
    show(written, ending.as_json)
    raise typer.Exit(done.exit_code)


def train(
    trial: Annotated[str | None, typer.Argument(metavar="[TRIAL]", help="The id of a trial to run again.")] = None,
    settings: Set = None,
    protocol: Annotated[str | None, typer.Option(help="Start from a protocol, such as glyphs/triplet.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; 0 by default.")] = None,
    data_root: DataRoot = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads; 1, or the trial's own.")] = None,
    storage: Storage = DEFAULT_STORAGE,
    cache_dir: Cache = None,
    preview: Annotated[
        bool, typer.Option("--show", help="Print the resolved settings and their origins; do not train.")
    ] = False,
    as_json: Json = False,
) -> None:
    """One trial without Ray or MLflow: debug a setting, or run a finished trial again to the same numbers."""
    from tune_dml.cli import train as single

    request = single.request(
        trial,
        settings=settings_of(settings),
        protocol=protocol,
        seed=seed,
        data_root=absolute(data_root),
        threads=threads,
        storage=storage.absolute(),
        cache_dir=cache_dir,
    )
    if preview:
        show(request, as_json)
        return
    outcome = single.run(request, console_for(as_json))
    show(outcome, as_json)
    raise typer.Exit(0 if outcome.status == "finished" else 3)
