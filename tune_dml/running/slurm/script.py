"""Write the batch scripts of a sweep from the files in `templates`."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from tune_dml.running.slurm.jobs import JOB_NAME
from tune_dml.running.slurm.profile import Profile

ROUND_FOLLOWS = 75  # exit code of the collecting job if an array of trials must run before it continues
_MAX_JOBS = 100  # jobs in a row before a sweep waits for its user


def sweep_script(profile: Profile, name: str, folder: Path) -> str:
    """Return the script that runs a sweep on a Ray over its allocation. All nodes see the sweep's folder."""
    return head(profile, name, folder, "%j") + _fill("ray.sh", profile, folder)


def collect_script(profile: Profile, name: str, folder: Path) -> str:
    """Return the script of the job that collects a round of an array and starts the next one."""
    modest = replace(profile, gres="", sbatch=(*profile.sbatch, *profile.collect))
    return head(modest, name, folder, "%j", signals=False) + _fill("collect.sh", profile, folder)


def array_script(profile: Profile, name: str, folder: Path) -> str:
    """Return the script of the array: a task is a group of trials."""
    return head(profile, name, folder, "%A_%a") + _fill("array.sh", profile, folder)


def head(profile: Profile, name: str, folder: Path, log: str, *, signals: bool = True) -> str:
    """Return the `#SBATCH` lines and the site's prologue."""
    options = [
        f"--job-name={JOB_NAME}{name}",
        shlex.quote(f"--output={str(folder).replace('%', '%%')}/slurm/{log}.log"),
        "--open-mode=append",
        f"--nodes={profile.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={profile.cpus_per_task}",
    ]
    for option in ("partition", "account", "qos", "gres", "time", "mem"):
        if value := getattr(profile, option):
            options.append(f"--{option}={value}")
    options.append("--requeue" if profile.requeue else "--no-requeue")
    if signals:
        options.append(f"--signal=B:USR1@{profile.warn_seconds}")
    options += profile.sbatch
    lines = ["#!/bin/bash", f"# The sweep {name}, written by `tune-dml submit slurm`.", ""]
    lines += [f"#SBATCH {option}" for option in options]
    lines += ["", *profile.prologue, "export PYTHONUNBUFFERED=1 COLUMNS=120"]
    return "\n".join(lines) + "\n"


def python_command(profile: Profile) -> str:
    """Return the command that runs our code on a node, inside the container if there is one."""
    python = profile.python or ("python" if profile.container or profile.srun else shlex.quote(sys.executable))
    container = f"{profile.container} " if profile.container else ""
    return f"{container}{python} -m tune_dml.running.slurm"


def _fill(template: str, profile: Profile, folder: Path) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - bash
    places = {"folder": folder, "jobs": folder / "slurm" / "jobs", "script": folder / "slurm" / "job.sh"}
    return environment.get_template(template).render(
        {name: shlex.quote(str(path)) for name, path in places.items()},
        command=python_command(profile),
        follows=ROUND_FOLLOWS,
        most=_MAX_JOBS,
        requeue=profile.requeue,
        srun=shlex.join(
            ["--ntasks-per-node=1", f"--cpus-per-task={profile.cpus_per_task}", "--wait=30", *profile.srun]
        ),
    )
