"""Sweeps as jobs of a real SLURM: time limits, requeued jobs, two jobs on one node, arrays with killed tasks."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from helpers.clusters import all_pids, command_of
from helpers.slurm import PROJECT, jobs
from helpers.sweeps import outcome, table

from tune_dml.record.state import read_state

PROFILE = "warn_seconds = 30\nrequeue = false\ntime = '20'\n"
STEPS = ["--dataset", "digits", "--set", "training.steps=40", "--set", "training.eval_every=10"]


def row(folder, since):
    """Return the row of docs/reliability.md; MLflow's file is beside the sweeps."""
    with contextlib.chdir(folder.parent):
        return outcome(folder, since)


def ended(folder):
    """Return the ended trials."""
    if not (folder / "plan.json").exists():
        return 0
    state = read_state(folder)
    return sum(state.trial(key).end is not None for key in state.trials)


def trials_with_rows(folder):
    """Return the number of trials that have logged a row; tasks of an array log into array.jsonl."""
    files = (*folder.glob("trials/*/history.jsonl"), *folder.glob("trials/*/array.jsonl"))
    return sum('"step"' in file.read_text() for file in files)


def is_running(slurm, name):
    return "RUNNING" in slurm.out("squeue", "-h", "--name", f"tune-dml-{name}", "-o", "%T", check=False)


def local_table(slurm, place, seeds, *steps):
    """The table of the same sweep on this machine, without SLURM."""
    slurm.tune(
        "sweep", "sec_rho", "--name", "local", "--seeds", seeds, *(steps or STEPS), cwd=place, check=False, timeout=900
    )
    return table(place / "sweeps" / "local")


@pytest.fixture
def place(slurm, tmp_path):
    slurm.profile(PROFILE)
    return tmp_path


def test_sixty_trials_survive_time_limits_a_requeue_a_drained_node_and_a_new_controller(slurm, place, found):
    words = ("submit", "slurm", "--nodes", 2, "--cpus-per-task", 1, "--", "sweep", "sec_rho", "--name", "cut")
    sent = slurm.tune(*words, "--seeds", 10, *STEPS, cwd=place).stdout
    assert "#SBATCH --signal=B:USR1@30" in sent
    assert "submitted as job" in sent
    folder = place / "sweeps" / "cut"
    again = slurm.tune(*words, "--seeds", 10, *STEPS, cwd=place).stdout
    assert "nothing was submitted" in again
    since = time.time()
    for cut in range(3):
        slurm.wait_for(lambda cut=cut: ended(folder) >= 8 * (cut + 1), seconds=400)
        before = jobs(slurm, "cut")
        slurm.out("scancel", "--batch", "--signal=USR1", before[0])  # as SLURM does before the time is up
        slurm.wait_for(lambda before=before: jobs(slurm, "cut") and before[0] not in jobs(slurm, "cut"), seconds=200)
        if cut == 0:
            slurm.out("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
        if cut == 1:
            done = ended(folder)
            slurm.wait_for(lambda done=done: ended(folder) > done, seconds=400)  # by then SLURM has stored the new job
            slurm.kill_controller()
            slurm.start_controller()
    slurm.wait_for(lambda: ended(folder) >= 32, seconds=400)
    (last,) = jobs(slurm, "cut")
    slurm.out("scontrol", "update", f"JobId={last}", "Requeue=1")  # the profile has `requeue = false`
    slurm.out("scontrol", "requeue", last)  # kills it, without notice; SLURM waits two minutes before it restarts
    slurm.wait_for(lambda: ended(folder) == 60 and not jobs(slurm, "cut"), seconds=900)
    slurm.out("scontrol", "update", "NodeName=n1", "State=RESUME")
    assert table(folder) == local_table(slurm, place, 10)
    fault = "SLURM: 60 trials through 3 times up, `scontrol requeue`, a drained node, a killed slurmctld"
    found(fault, row(folder, since))


def test_two_jobs_of_one_user_on_one_node(slurm, place, found):
    """Each has its own Ray; the first to end does not disturb the other."""
    for name in ("left", "right"):
        words = ("submit", "slurm", "--nodes", 1, "--cpus-per-task", 2, "--sbatch", "--nodelist=n1", "--")
        slurm.tune(*words, "sweep", "sec_rho", "--name", name, "--seeds", 2, *STEPS, cwd=place)
    slurm.wait_for(lambda: is_running(slurm, "left") and is_running(slurm, "right"), seconds=120)
    slurm.wait_for(
        lambda: ended(place / "sweeps" / "left") >= 1 and ended(place / "sweeps" / "right") >= 1, seconds=300
    )
    slurm.tune("cancel", "slurm", "left", cwd=place)
    assert not jobs(slurm, "left")
    assert is_running(slurm, "right")
    since = time.time()
    slurm.wait_for(lambda: not jobs(slurm, "right"), seconds=400)
    right = row(place / "sweeps" / "right", since)
    assert right["finished"] == 12
    assert right["repeated"] == 0
    found("SLURM: two jobs of one user on one node, one is cancelled", right)
    slurm.tune("submit", "slurm", "--", "resume", "left", cwd=place)
    slurm.wait_for(lambda: not jobs(slurm, "left"), seconds=400)
    assert table(place / "sweeps" / "left") == table(place / "sweeps" / "right")
    assert not [pid for pid in all_pids() if str(slurm.folder / "spool") in command_of(pid)]


def test_a_preempted_job_is_queued_again_and_continues(slurm, place, found):
    """A partition of higher priority takes the nodes; SLURM sends TERM, waits its grace time, and queues the job again."""
    slurm.profile("warn_seconds = 30\nrequeue = true\ntime = '20'\n")
    words = ("submit", "slurm", "--nodes", 1, "--cpus-per-task", 2, "--sbatch", "--nodelist=n1", "--", "sweep")
    slurm.tune(*words, "sec_rho", "--name", "low", "--seeds", 3, *STEPS, cwd=place)
    folder = place / "sweeps" / "low"
    slurm.wait_for(lambda: ended(folder) >= 3, seconds=300)
    since = time.time()
    slurm.out("sbatch", "--partition=urgent", "--exclusive", "--nodelist=n1", "--wrap", "sleep 5")
    slurm.wait_for(lambda: not is_running(slurm, "low"), seconds=120)
    slurm.wait_for(lambda: ended(folder) == 18 and not jobs(slurm, "low"), seconds=600)
    assert table(folder) == local_table(slurm, place, 3)
    found("SLURM: a job is preempted by another partition, and queued again", row(folder, since))


def test_an_array_with_killed_tasks(slurm, place, found):
    """SLURM is the scheduler; unfinished trials of a killed task run in the next round."""
    words = ("submit", "slurm", "--array", "--", "sweep", "sec_rho", "--name", "rows", "--seeds", 34, *STEPS)
    slurm.tune(*words, cwd=place)
    folder, killed, since = place / "sweeps" / "rows", set(), time.time()

    def kill_some():
        for pid in all_pids():
            command = command_of(pid)
            key = command.split()[-1] if command.split() else ""
            if (
                f"slurm task {folder}" in command
                and key.isdigit()
                and len(killed) < 10
                and int(key) % 17 == 3
                and key not in killed
            ):
                killed.add(key)
                os.kill(pid, signal.SIGKILL)
        return not jobs(slurm, "rows") and ended(folder) == 204

    slurm.wait_for(kill_some, seconds=1500)
    assert len(killed) == 10
    assert table(folder) == local_table(slurm, place, 34)
    found("SLURM: an array of 204 trials, 10 tasks killed, collected in two rounds", row(folder, since))


def test_the_documented_commands_work_from_the_login_node(slurm, place):
    began = time.monotonic()
    slurm.tune("submit", "slurm", "--cpus-per-task", 2, "--", "sweep", "sec_rho", "--name", "page", "--seeds", 2,
               *STEPS, cwd=place)  # fmt: skip
    folder = place / "sweeps" / "page"
    slurm.wait_for(
        lambda: (folder / "ledger.jsonl").exists() and '"started"' in (folder / "ledger.jsonl").read_text(), seconds=240
    )
    print(f"submit to first trial: {time.monotonic() - began:.1f} s")  # noqa: T201
    assert "is running" in slurm.tune("status", "page", cwd=place).stdout
    slurm.tune("cancel", "slurm", "page", cwd=place)
    slurm.tune("cancel", "slurm", "page", cwd=place)
    assert "started" in slurm.tune("logs", "slurm", "page", cwd=place).stdout
    slurm.tune("submit", "slurm", "--", "resume", "page", cwd=place)
    slurm.tune("logs", "slurm", "page", "--follow", cwd=place, timeout=400)
    assert "page" in slurm.tune("submit", "slurm", "--", "list", "--storage", folder.parent, cwd=place).stdout
    assert json.loads(slurm.tune("status", "page", "--json", cwd=place).stdout)["counts"]["finished"] == 12
    slurm.tune("submit", "slurm", "--", "report", "page", cwd=place)
    assert Path(folder / "report" / "report.html").exists()


def _charliecloud(slurm, image):
    """Make an image with nothing but mount points; return the profile's container line and a Python that only it has."""
    for name in ("usr", "etc", "dev", "proc", "sys", "tmp", "var", "home", "mnt", "run"):
        (image / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (image / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (image / "etc" / name).touch()
    bound = {"/usr": "/usr", sys.prefix: "/mnt/env", **{str(path): str(path) for path in (PROJECT, sys.base_prefix)}}
    for place in bound.values():
        (image / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
    slurm.environment.setdefault("USER", "root")
    binds = " ".join(f"--bind={source}:{place}" for source, place in bound.items())
    return f"ch-run {binds} {image} --", "/mnt/env/bin/python"


@pytest.mark.skipif(not shutil.which("ch-run"), reason="no Charliecloud: apt-get install charliecloud")
@pytest.mark.parametrize("words", [("--nodes", 2), ("--array",)], ids=["ray", "array"])
def test_trials_run_in_a_container(slurm, place, words):
    container, python = _charliecloud(slurm, place / "image")
    slurm.profile(PROFILE + f"container = '{container}'\npython = '{python}'\n")
    checked = slurm.tune("doctor", "slurm", "--storage", place / "sweeps", cwd=place, check=False).stdout
    assert "Ready for" in checked
    name, folder = words[0].strip("-"), place / "sweeps" / words[0].strip("-")
    steps = [*STEPS[:2], "--set", "training.steps=3000", "--set", "training.eval_every=100"]
    slurm.tune("submit", "slurm", *words, "--", "sweep", "sec_rho", "--name", name, "--seeds", 2, *steps, cwd=place)
    slurm.wait_for(lambda: trials_with_rows(folder) >= 3, seconds=300)
    slurm.tune("cancel", "slurm", name, cwd=place)  # the signal reaches the trials inside
    slurm.wait_for(lambda: not jobs(slurm, name), seconds=120)
    assert ended(folder) < 12
    slurm.tune("submit", "slurm", *words, "--", "resume", name, cwd=place)
    slurm.wait_for(lambda: ended(folder) == 12 and not jobs(slurm, name), seconds=400)
    assert table(folder) == local_table(slurm, place, 2, *steps)
    assert not Path(python).exists()
    assert not [pid for pid in all_pids() if command_of(pid).startswith(python)]
