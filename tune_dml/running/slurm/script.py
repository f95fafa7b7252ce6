"""Write the batch scripts of a sweep, readable and commented."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from tune_dml.running.slurm.jobs import JOB_NAME
from tune_dml.running.slurm.profile import Profile

ROUND_FOLLOWS = 75  # exit code of the collecting job if an array of trials must run before it continues
_MAX_JOBS = 100  # jobs in a row before a sweep waits for its user

_RAY = """
# SLURM sends USR1 before the time is up, `tune-dml cancel slurm` sends USR2. srun forwards it to the tasks: trials keep
# their checkpoints and the session ends in order.
time_is_up=no told=no step=
tell() {{ told=yes; [ -z "$step" ] || kill -USR1 "$step" 2> /dev/null; }}
trap 'time_is_up=yes; tell' USR1
trap tell USR2 TERM

# One task per node. The first one leads: it starts a Ray for this job only and runs the sweep on it.
srun {srun} {command} node {folder} &
step=$!
[ "$told" = no ] || tell
wait "$step"
while kill -0 "$step" 2> /dev/null; do    # a signal ends `wait`, not the step
    wait "$step"
done
wait "$step"
code=$?

# 130: interrupted, resumable. What is finished never runs again; a running trial continues from its checkpoint.
# SLURM sends TERM to a job that it preempts, and does not queue it again if it ends within its grace time.
if [ "$code" = 130 ] && scontrol show job "$SLURM_JOB_ID" | grep -q ' PreemptTime=[0-9]'; then
    time_is_up=yes
fi
jobs=$((${{TUNE_DML_JOBS:-1}} + ${{SLURM_RESTART_COUNT:-0}}))    # in a row
if [ "$time_is_up" = yes ] && [ "$code" = 130 ] && [ "$jobs" -lt {most} ]; then
    trap '' USR1 USR2 TERM
    {again}
fi
exit "$code"
"""
_REQUEUE = """scontrol requeue "$SLURM_JOB_ID" ||
        {dependent}"""
_SUBMIT = """
# Submits a job and notes its number. Without the number `status` and `cancel` would not know the job, so it is removed. A new
# job inherits this environment, but not how often this job was queued again.
submit() {{
    number=$(env -u SLURM_RESTART_COUNT sbatch --parsable "$@") || return
    echo "$number" >> {jobs} || {{ scancel "${{number%%;*}}"; return 1; }}
}}
"""
_DEPENDENT = 'TUNE_DML_JOBS=$((jobs + 1)) submit --dependency=afterany:"$SLURM_JOB_ID" {script}'
_COLLECT = """
# Moves the results of the array's trials into the ledger, as its only writer, and writes the next round.
{command} collect {folder}
code=$?
if [ "$code" = {follows} ]; then
    submit --array="$(cat {folder}/slurm/array)" {folder}/slurm/array.sh || exit 1
    submit --dependency=afterany:"${{number%%;*}}" {script} || exit 1
    exit 0
fi
exit "$code"
"""
_ARRAY = """
# A task trains its trials one after the other, without Ray. What it has not finished comes in the next round.
{command} task {folder} "$SLURM_ARRAY_TASK_ID" &
task=$!
trap 'kill -USR1 "$task"' USR1 TERM
wait "$task"
while kill -0 "$task" 2> /dev/null; do    # a signal ends `wait`, not the task
    wait "$task"
done
wait "$task"
code=$?
exit "$code"
"""


def sweep_script(profile: Profile, name: str, folder: Path) -> str:
    """Return the script that runs a sweep on a Ray over its allocation. All nodes see the sweep's folder."""
    again = _fill(_DEPENDENT, profile, folder)
    if profile.requeue:
        again = _REQUEUE.format(dependent=again)
    srun = shlex.join(["--ntasks-per-node=1", f"--cpus-per-task={profile.cpus_per_task}", "--wait=30", *profile.srun])
    return head(profile, name, folder, "%j") + _fill(_SUBMIT + _RAY, profile, folder, srun=srun, again=again)


def collect_script(profile: Profile, name: str, folder: Path) -> str:
    """Return the script of the job that collects a round of an array and starts the next one."""
    modest = replace(profile, gres="", sbatch=(*profile.sbatch, *profile.collect))
    return head(modest, name, folder, "%j", signals=False) + _fill(_SUBMIT + _COLLECT, profile, folder)


def array_script(profile: Profile, name: str, folder: Path) -> str:
    """Return the script of the array: a task is a group of trials."""
    return head(profile, name, folder, "%A_%a") + _fill(_ARRAY, profile, folder)


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


def _fill(template: str, profile: Profile, folder: Path, *, srun: str = "", again: str = "") -> str:
    places = {"folder": folder, "jobs": folder / "slurm" / "jobs", "script": folder / "slurm" / "job.sh"}
    quoted = {name: shlex.quote(str(path)) for name, path in places.items()}
    command = python_command(profile)
    return template.format(**quoted, command=command, follows=ROUND_FOLLOWS, most=_MAX_JOBS, srun=srun, again=again)
