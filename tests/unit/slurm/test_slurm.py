"""SLURM without a cluster: profile, ports, signals, jobs by name; fakes replace its programs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.sources import ROOT

from trainables.errors import ConfigError
from tune_dml.running.slurm import jobs, node
from tune_dml.running.slurm.collecting import _count_losses
from tune_dml.running.slurm.jobs import Submission
from tune_dml.running.slurm.node import _Allocation, _descendants
from tune_dml.running.slurm.profile import TEMPLATE, Profile, _seconds_of, read_profile

SCRIPTS = {"job.sh": "#!/bin/bash\n"}


def submission(folder, *words):
    words = words or ("sweep", "sec_rho", "--name", "eta1")
    return Submission("eta1", str(folder / "eta1"), words, ("resume", "eta1"), "slurm --time 5", time.time())


@pytest.fixture
def sent(fake):
    """The submission of job 101, as it was recorded."""
    return jobs.submit(submission(fake), SCRIPTS)[0]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("5", 300), ("2:30", 150), ("01:00:00", 3600), ("1-00", 86_400), ("1-01:30", 91_800), ("2-00:00:10", 172_810)],
)
def test_time_limits_are_read_as_slurm_reads_them(time, seconds):
    assert _seconds_of(time) == seconds


def test_the_template_is_a_valid_profile(tmp_path):
    file = tmp_path / "slurm.toml"
    file.write_text(TEMPLATE.read_text())
    assert read_profile(file) == Profile()
    lines = [
        line[2:].partition("    ")[0]
        for line in TEMPLATE.read_text().splitlines()
        if line.startswith("# ") and " = " in line
    ]
    file.write_text("\n".join(lines))
    assert read_profile(file).gres == "gpu:4"
    assert len(lines) == len(vars(Profile()))


def test_all_problems_of_a_profile_are_reported_together(tmp_path):
    file = tmp_path / "slurm.toml"
    file.write_text('partion = "gpu"\nnodes = "two"\nprologue = "module load x"\n')
    with pytest.raises(ConfigError) as caught:
        read_profile(file)
    assert len(caught.value.problems) == 3
    assert "Did you mean partition?" in str(caught.value)


def test_a_profile_is_toml_and_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "slurm.toml"
    file.write_text("\ufeffnodes = 2\n")
    assert read_profile(file).nodes == 2
    file.write_text("nodes = 1\nnodes = 2")
    with pytest.raises(ConfigError, match="must be TOML"):
        read_profile(file)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"time": "5"}, "must exceed warn_seconds"),
        ({"time": "5", "requeue": False}, "must exceed warn_seconds"),  # SLURM signals it at its start, too
        ({"time": "tomorrow"}, "HH:MM:SS"),
        ({"nodes": 0}, "at least 1"),
        ({"partition": "a; rm -rf /"}, "without shell characters"),
        ({"sbatch": ["--signal=TERM@1"]}, "sets this option itself"),
        ({"sbatch": ["echo"]}, "must be an option of sbatch"),
        ({"temp": "/a-very-long-place-on-the-local-disk-of-this-node"}, "creates its sockets"),
    ],
)
def test_settings_that_slurm_or_ray_rejects_are_refused(given, said):
    assert said in "\n".join(map(str, Profile().with_flags(given).problems("slurm")))


def test_flags_override_the_profile_and_add_lines():
    profile = Profile(partition="cpu", sbatch=("--constraint=a100",))
    changed = profile.with_flags({"partition": "gpu", "nodes": None, "sbatch": ["#SBATCH --exclusive"]})
    assert (changed.partition, changed.nodes) == ("gpu", 1)
    assert changed.sbatch == ("--constraint=a100", "--exclusive")


def test_gpus_per_node():
    written = ("", "gpu", "gpu:4", "gpu:a100:2", "shard:3,gpu:1")
    assert [Profile(gres=text).gpus for text in written] == [0, 1, 4, 2, 1]


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("began", 1),
        ("began cut", 0),
        ("began began", 2),
        ("began requeued", 1),
        ("began requeued cut", 0),
        ("began cut requeued requeued began", 2),
    ],
)
def test_a_trial_whose_task_slurm_queued_again_was_not_lost(said, lost):
    kinds = {"began": {"began": {}}, "requeued": {"began": {"requeued": True}}, "cut": {"cut": 1.0}}
    assert _count_losses([kinds[word] for word in said.split()]) == lost


def test_a_second_submission_returns_the_job_that_waits(fake):
    first, job, new = jobs.submit(submission(fake), SCRIPTS)
    assert (job.id, new) == ("101", True)
    (fake / "queue").write_text("99|RUNNING|None\n101|PENDING|Priority\n")
    again, job, new = jobs.submit(submission(fake), SCRIPTS)
    assert (job.text(), new, again) == ("job 101 is pending (Priority)", False, first)
    with pytest.raises(ConfigError, match="started by another command"):
        jobs.submit(submission(fake, "sweep", "sec_eta", "--name", "eta1"), {})
    (fake / "queue").write_text("101|COMPLETED|None\n")
    _, job, new = jobs.submit(submission(fake), SCRIPTS)
    assert (job.id, new) == ("102", True)
    found = jobs.find_submission("eta1")
    assert (found.scripts_folder, found.words) == (fake / "eta1" / "slurm", submission(fake).words)
    assert not (fake / "eta1" / "slurm" / "submission.json").stat().st_mode & 0o077


def test_the_status_of_a_pending_sweep_comes_from_slurm(fake, sent, output_of):
    (fake / "queue").write_text("101|PENDING|Priority\n")
    status = ("status", "eta1", "--storage", fake)
    assert output_of(*status) == "eta1 waits for SLURM: job 101 is pending (Priority). No trial has begun.\n"
    said = json.loads(output_of(*status, "--json"))
    assert (said["state"], said["waits_for"], said["trials"]) == ("submitted", "job 101 is pending (Priority)", [])
    (fake / "queue").write_text("101|FAILED|NonZeroExitCode\n")
    told = "no job waits or runs, and no trial has begun. See: tune-dml logs slurm eta1"
    assert told in output_of(*status, "--wait", code=130)


def test_cancel_signals_running_jobs_and_removes_waiting_ones(fake, sent):
    (fake / "queue").write_text("101|RUNNING|None\n")
    jobs.cancel(sent)
    assert "scancel --batch --signal=USR2 101" in (fake / "calls").read_text()
    (fake / "queue").write_text("101|PENDING|Priority\n")
    jobs.cancel(sent)
    assert (fake / "calls").read_text().endswith("scancel 101\n")


def test_a_job_whose_number_cannot_be_written_is_removed(full_disk):
    with pytest.raises(OSError, match="No space left"):
        jobs.submit(submission(full_disk), SCRIPTS)
    assert (full_disk / "calls").read_text().endswith("job.sh\nscancel 101\n")


def test_tasks_of_an_array_are_one_line(fake, sent):
    (fake / "queue").write_text("".join(f"101_{task}|RUNNING|None\n" for task in range(40)))
    assert [job.text() for job in jobs.jobs_of(sent)] == ["array 101: 40 tasks running"]


def test_logs_include_jobs_and_array_tasks(fake, sent):
    (fake / "queue").write_text("101|COMPLETED|None\n")
    for number in ("101_2", "101_10", "101", "99"):
        (sent.scripts_folder / f"{number}.log").write_text(f"{number}\n")
    assert list(jobs.follow(sent, to_end=False)) == ["101_10\n"]
    jobs.submit(sent, SCRIPTS)
    (fake / "queue").write_text("102|COMPLETED|None\n")
    (sent.scripts_folder / "102.log").write_text("102\n")
    assert list(jobs.follow(sent, to_end=False)) == ["102\n"]


def test_followed_logs_exclude_earlier_jobs(sent, monkeypatch):
    """After `cancel` and `resume`, the log of the first job followed that of the second."""
    (sent.scripts_folder / "jobs").write_text("101\n102\n")
    for number in ("101", "102_0", "102_1"):
        (sent.scripts_folder / f"{number}.log").write_text(f"{number}\n")
    states = iter(["RUNNING", "COMPLETED"])
    monkeypatch.setattr(jobs, "jobs_of", lambda sent: [jobs.SlurmJob("102_", next(states), "None")])
    monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=lambda seconds: None))
    assert list(jobs.follow(sent, to_end=True)) == ["102_1\n", "102_0\n"]


@pytest.mark.parametrize("name", ["nothing", ".", "../slurm"])
@pytest.mark.usefixtures("sent")
def test_an_unknown_name_gets_the_submit_command(name):
    with pytest.raises(ConfigError, match="submit slurm -- sweep"):
        jobs.find_submission(name)


@pytest.mark.parametrize("text", ['{"name": 5', "{}"])
def test_a_damaged_submission_is_named(fake, sent, text):
    (sent.scripts_folder / "submission.json").write_text(text)
    with pytest.raises(ConfigError, match=r"submission\.json.*the file is damaged.*scancel --name tune-dml-eta1"):
        jobs.find_submission("eta1")
    assert jobs.open_jobs(fake / "eta1") == []


def test_jobs_are_found_by_number_and_name(fake, sent):
    body = '[[ "$*" = *--name=tune-dml-eta1* ]] || echo "101|RUNNING|None"'
    (fake / "bin" / "squeue").write_text(f"#!/bin/bash\n{body}\n")
    assert jobs.jobs_of(sent) == []


@pytest.mark.parametrize(("size", "most"), [("51", 51), ("40000", 1000), ("none", 1000)])
def test_an_array_is_as_large_as_slurm_allows(fake, size, most):
    (fake / "job").write_text(f"MaxArraySize            = {size}\n")
    assert jobs.max_array_tasks() == most


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--array", "--nodes", "2"), "a task of an array has one node"),
        (("--group", "2"), "--group: groups the trials of an array"),
        (("--array", "--group", "2"), "#SBATCH --nodes=1"),
    ],
)
def test_a_task_of_an_array_has_one_node(fake, command_line, monkeypatch, words, said):
    (fake / "config" / "tune-dml").mkdir(parents=True)
    (fake / "config" / "tune-dml" / "slurm.toml").write_text("nodes = 2\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(fake / "config"))
    _, out, err = command_line("submit", "slurm", *words, "--print", "--", "resume", "eta1", "--storage", fake)
    assert said in out + err


def test_trials_of_an_arrays_task_do_not_share_a_gpu(fake, command_line):
    words = ("sweep", "sec_rho", "--gpus-per-worker", "0.5", "--storage", fake / "sweeps")
    _, _, err = command_line("submit", "slurm", "--array", "--print", "--", *words)
    assert "do not share a GPU" in err


def test_ports_of_neighbouring_jobs_differ_and_lie_below_those_of_connections(monkeypatch):
    monkeypatch.setattr(node, "_is_free", lambda port: True)
    ranges = [set(node._free_ports(str(job))) for job in range(100, 200)]
    assert len(set.union(*ranges)) == sum(map(len, ranges))
    assert max(map(max, ranges)) < 32_768
    monkeypatch.setattr(node, "_is_free", lambda port: port not in ranges[0])
    assert not ranges[0] & set(node._free_ports("100"))


def test_an_allocation_is_read_from_slurms_variables():
    given = {"SLURM_JOB_ID": "12", "SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "8"}
    shares = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "0,1"}
    assert _Allocation.read({**given, **shares}) == _Allocation("12", 1, 2, 8, 2, 0)
    assert _Allocation.read({**given, "CUDA_VISIBLE_DEVICES": "0,1"}).gpus == 0  # the machine's, not the job's
    assert _Allocation.read(given).folder("/tmp") == Path("/tmp/t12.1")  # noqa: S108


def test_only_descendant_processes_are_ended(tmp_path):
    """A child in a new session whose parent died is still ours; other processes are not touched."""
    program = """
import subprocess
from tune_dml.running.slurm import node
node._TERM_SECONDS = 1.0
node._adopt_orphans()
subprocess.run(["bash", "-c", "setsid sleep 100 & setsid bash -c 'trap : TERM; while :; do sleep 0.1; done' & echo"])
node._end_descendants()
print("left")
"""
    stranger = subprocess.Popen(["sleep", "100"], start_new_session=True)
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.endswith("left\n")
    assert stranger.poll() is None
    assert stranger.pid in _descendants(os.getpid())
    stranger.kill()
    stranger.wait()
    assert stranger.pid not in _descendants(os.getpid())
