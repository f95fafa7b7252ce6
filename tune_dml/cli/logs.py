"""`tune-dml logs`: what a sweep on a cluster says."""

from __future__ import annotations

from typing import Annotated

import typer

from tune_dml.cli.options import SweepArgument, verb
from tune_dml.cli.submit import Target

ORDER = 46


@verb
def logs(
    target: Target,
    sweep_name: SweepArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job is over.")] = False,
) -> None:
    """Print what the last job of a sweep on a cluster has said: a line for every trial that starts or ends."""
    from tune_dml.running import jobs

    with jobs.cluster_client(target) as client:
        job = jobs.latest_job(client, sweep_name, target)
        if not follow:
            typer.echo(client.get_job_logs(job.id), nl=False)
            typer.echo(f"{job.id}: {job.status.lower()}", err=True)
            return
        for text in jobs.follow(client, job):
            typer.echo(text, nl=False)
        raise typer.Exit(jobs.exit_code(client, job))
