"""`tune-dml logs`: print the output of a sweep on a cluster."""

from typing import Annotated

import typer

from tune_dml.cli._json import as_json as strict_json
from tune_dml.cli._slurm import SLURM, slurm_logs
from tune_dml.cli.options import Json, SweepArgument, verb
from tune_dml.cli.submit import Target

ORDER = 46


@verb
def logs(
    target: Target,
    sweep_name: SweepArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing until the job ends.")] = False,
    as_json: Json = False,
) -> None:
    """Print the output of a sweep's last job on a cluster: a line for every trial that starts or ends."""
    if target == SLURM:
        slurm_logs(sweep_name, follow, as_json)
        return
    from tune_dml.running.cluster import jobs

    with jobs.cluster_client(target) as client:
        job = jobs.latest_job(client, sweep_name, target)
        if as_json:
            parts = list(jobs.follow(client, job)) if follow else [client.get_job_logs(job.id)]
            job = jobs.latest_job(client, sweep_name, target)
            typer.echo(strict_json({"job": job.id, "status": job.status.lower(), "log": "".join(parts)}))
        elif follow:
            for text in jobs.follow(client, job):
                typer.echo(text, nl=False)
        else:
            typer.echo(client.get_job_logs(job.id), nl=False)
            typer.echo(str(job), err=True)
        if follow:
            raise typer.Exit(jobs.exit_code(client, job))
