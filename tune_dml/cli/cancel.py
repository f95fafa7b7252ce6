"""`tune-dml cancel`: stop a sweep on a cluster; it can be resumed."""

import shlex

from tune_dml.cli._slurm import SLURM, slurm_cancel
from tune_dml.cli.options import Json, SweepArgument, verb
from tune_dml.cli.screen import print_result
from tune_dml.cli.submit import Target

ORDER = 47


@verb
def cancel(target: Target, sweep_name: SweepArgument, as_json: Json = False) -> None:
    """Stop a sweep's job on a cluster. The sweep keeps its trials, writes its report and can be resumed."""
    if target == SLURM:
        slurm_cancel(sweep_name, as_json)
        return
    from tune_dml.running.cluster import jobs

    with jobs.cluster_client(target) as client:
        job = jobs.latest_job(client, sweep_name, target)
        if not job.has_ended:
            client.stop_job(job.id)
            for _ in jobs.follow(client, job):
                pass
            job = jobs.latest_job(client, sweep_name, target)
        resume_command = jobs.continue_command(client, job) if job.status != "SUCCEEDED" else None
    lines = [str(job)]
    if resume_command:
        lines.append(f"  resume: {resume_command}")
    elif job.status != "SUCCEEDED":
        lines.append(f"  why: tune-dml logs {shlex.quote(target)} {sweep_name}")
    print_result({"job": job.id, "status": job.status.lower()}, lines, as_json, wrap=False)
