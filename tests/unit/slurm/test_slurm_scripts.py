"""The batch scripts of a sweep, run by bash with fake programs of SLURM; `python` this file writes `deploy/slurm/`."""

import os
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.sources import ROOT

from tune_dml.running.slurm.profile import TEMPLATE, Profile
from tune_dml.running.slurm.script import ROUND_FOLLOWS, array_script, collect_script, sweep_script


@pytest.mark.parametrize("write", [sweep_script, collect_script, array_script])
def test_scripts_are_valid_bash_with_the_settings_of_the_profile(write, tmp_path):
    profile = Profile(
        partition="gpu", gres="gpu:4", time="04:00:00", sbatch=("--constraint=a100",), prologue=("module load python",),
        container="apptainer exec --nv /shared/it.sif",
    )  # fmt: skip
    text = write(profile, "eta1", tmp_path / "a b" / "eta1")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for line in ("#SBATCH --partition=gpu", "#SBATCH --constraint=a100", "module load python"):
        assert f"\n{line}\n" in text
    assert ("#SBATCH --gres=gpu:4" in text) == (write is not collect_script)
    assert "apptainer exec --nv /shared/it.sif python -m tune_dml.running.slurm" in text
    assert ("--signal=B:USR1@300" in text) == (write is not collect_script)


def test_scripts_quote_any_folder_of_logs():
    """sbatch reads quotes in its lines, and %% as one percent sign."""
    text = sweep_script(Profile(gres="gpu:4"), "eta1", Path("/shared/it's 50% #1/eta1"))
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "--output=/shared/it's 50%% #1/eta1/slurm/%j.log" in [shlex.split(line)[0] for line in lines]
    assert "--gres=gpu:4" in lines


def begin(fake, step, profile, **environment):
    """Start the batch script as job 7, whose step is this program."""
    (fake / "bin" / "srun").write_text(f"#!/bin/bash\n{step}\n")
    (fake / "bin" / "srun").chmod(0o755)
    (fake / "eta1" / "slurm").mkdir(parents=True)
    text = sweep_script(profile, "eta1", fake / "eta1")
    return subprocess.Popen(["bash", "-c", text], env={**os.environ, "SLURM_JOB_ID": "7", **environment})


FOLLOWS = "--dependency=afterany:7"


@pytest.mark.parametrize(
    ("requeue", "refused", "called"),
    [(True, "0", "scontrol requeue 7"), (True, "1", FOLLOWS), (False, "0", FOLLOWS)],
)
def test_at_the_time_limit_the_step_is_signalled_and_a_job_follows(fake, requeue, refused, called):
    """The script with a step that handles USR1 like a session: it ends cleanly, with 130."""
    step = "trap 'exit 130' USR1\n: > \"$FAKE/ready\"\nwhile :; do sleep 0.05; done"
    job = begin(fake, step, Profile(requeue=requeue), FAKE_REQUEUE=refused)
    while not (fake / "ready").exists():
        assert job.poll() is None
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(20) == 130
    assert called in (fake / "calls").read_text()
    assert (fake / "eta1" / "slurm" / "jobs").exists() == ("afterany" in called)


@pytest.mark.parametrize(
    ("before", "goes_on"), [({}, True), ({"TUNE_DML_JOBS": "99", "SLURM_RESTART_COUNT": "1"}, False)]
)
def test_after_a_hundred_jobs_in_a_row_a_sweep_waits(fake, before, goes_on):
    """Requeued and dependent jobs count towards the limit; a new submission starts at 1."""
    body = 'echo "${SLURM_RESTART_COUNT-none} $TUNE_DML_JOBS" > "$FAKE/calls"'
    (fake / "bin" / "sbatch").write_text(f"#!/bin/bash\n{body}\n")
    (fake / "job").write_text("   PreemptTime=2026-11-25T10:00:00\n")
    begin(fake, "exit 130", Profile(requeue=False), **{"SLURM_RESTART_COUNT": "3", **before}).wait()
    assert (fake / "calls").exists() == goes_on
    assert not goes_on or (fake / "calls").read_text() == "none 5\n"


@pytest.mark.parametrize("taken", ["2026-11-25T10:00:00", "None"])
@pytest.mark.parametrize("code", [130, 0, 3, 1])
def test_only_a_preempted_job_whose_step_ends_within_the_grace_time_continues(fake, code, taken):
    (fake / "job").write_text(f"JobId=7 JobName=x\n   PreemptEligibleTime=2026-11-25T09:00:00 PreemptTime={taken}\n")
    assert begin(fake, f"exit {code}", Profile()).wait() == code
    assert (fake / "calls").exists() == (code == 130 and taken != "None")


def test_a_round_whose_number_cannot_be_written_is_removed(full_disk):
    place = full_disk / "eta1" / "slurm"
    (place / "array").write_text("0-3\n")
    (full_disk / "bin" / "python").write_text(f"#!/bin/bash\nexit {ROUND_FOLLOWS}\n")
    (full_disk / "bin" / "python").chmod(0o755)
    text = collect_script(Profile(python="python"), "eta1", full_disk / "eta1")
    done = subprocess.run(["bash", "-c", text], env={**os.environ, "SLURM_JOB_ID": "7"}, check=False)
    assert done.returncode == 1
    assert (full_disk / "calls").read_text() == f"--parsable --array=0-3 {place}/array.sh\nscancel 101\n"
    (place / "jobs").unlink()
    sbatch = full_disk / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().partition("ln -s")[0])
    subprocess.run(["bash", "-c", text], env={**os.environ, "SLURM_JOB_ID": "7"}, check=True)
    assert (place / "jobs").read_text() == "102\n103\n"
    assert (full_disk / "calls").read_text().endswith(f"--parsable --dependency=afterany:102 {place}/job.sh\n")


def test_scripts_in_deploy_equal_the_submitted_ones():
    """After a change of the script: python tests/unit/slurm/test_slurm_scripts.py."""
    for name, text in shown().items():
        assert (DEPLOY / name).read_text() == text


DEPLOY = ROOT / "deploy" / "slurm"


def shown():
    """The scripts of a sweep on two nodes of four GPUs, and the profile's template."""
    profile = Profile(partition="gpu", gres="gpu:4", time="04:00:00", nodes=2, cpus_per_task=8, python="python")
    where = ("sec_rho", Path("/shared/sweeps/sec_rho"))
    return {
        "job.sh": sweep_script(profile, *where),
        "array/job.sh": collect_script(replace(profile, nodes=1), *where),
        "array/array.sh": array_script(replace(profile, nodes=1), *where),
        "slurm.toml": TEMPLATE.read_text(),
    }


if __name__ == "__main__":
    for name, text in shown().items():
        (DEPLOY / name).parent.mkdir(parents=True, exist_ok=True)
        (DEPLOY / name).write_text(text)
