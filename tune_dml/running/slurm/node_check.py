"""Check a SLURM site by a short job: scheduler, partition, shared folder, clock, temporary folder, GPUs, torch."""

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from trainables.errors import ConfigError
from tune_dml.running.cluster.nodes import Finding
from tune_dml.running.slurm.jobs import run_command
from tune_dml.running.slurm.profile import Profile
from tune_dml.running.slurm.script import head, python_command

_MAX_SKEW = 5.0  # largest accepted difference between the clocks of login node and node, in seconds


def check_site(profile: Profile, storage: Path) -> list[Finding]:
    """Check SLURM and, by a short job, one of its nodes."""
    try:
        version = run_command("sinfo", "--version").strip()
        partitions = run_command("sinfo", "--noheader", "--format=%R %a %l %D").splitlines()
    except ConfigError as error:
        return [Finding("scheduler", "problem", str(error), "Run the command on a login node.")]
    findings = [Finding("scheduler", "ok", version)]
    names = [line.split()[0] for line in partitions]
    if unknown := [name for name in profile.partition.split(",") if name and name not in names]:
        rule = f"no partition {unknown[0]!r}"
        return [*findings, Finding("partition", "problem", rule, f"There are: {', '.join(names)}.")]
    findings.append(Finding("partition", "ok", "; ".join(partitions)))
    storage.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix=".doctor-", dir=storage))
    try:
        return [*findings, *_ask_node(profile, folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask_node(profile: Profile, folder: Path) -> Iterator[Finding]:
    (folder / "slurm").mkdir()
    short_profile = replace(profile, time="1", nodes=1, requeue=False, warn_seconds=1)
    script = folder / "job.sh"
    lines = head(short_profile, "doctor", folder, "%j", signals=False)
    script.write_text(f"{lines}{python_command(profile)} check {shlex.quote(str(folder))}\n")
    try:
        # SLURM removes the job, which takes up to a minute, if it has not begun after three minutes.
        run_command("sbatch", "--wait", "--deadline=now+4minutes", str(script), seconds=300.0)
    except ConfigError as error:
        logs = [log.read_text(errors="replace")[-500:] for log in folder.glob("slurm/*.log")]
        yield Finding("job", "problem", f"{error} {' '.join(logs)}".strip(), "Correct ~/.config/tune-dml/slurm.toml.")
        return
    answer_file = folder / "answer.json"
    if not answer_file.exists():
        remedy = "Choose a --storage folder that all nodes and the login node share."
        found = f"the file that a node wrote into {folder.parent} is missing here"
        yield Finding("shared folder", "problem", found, remedy)
        return
    node_answer = json.loads(answer_file.read_text())
    yield Finding("shared folder", "ok", f"{folder.parent}, as {node_answer['host']} sees it")
    skew = abs(answer_file.stat().st_mtime - node_answer["time"])
    yield Finding.of("clock", skew < _MAX_SKEW, f"{skew:.1f} s apart", "Set up NTP.")
    found = node_answer["temp"] or f"{profile.temp} can be written"
    yield Finding.of("temp", not node_answer["temp"], found, "Set temp in the profile.")
    has_gpus = "gpu" not in profile.gres or node_answer["gpus"] > 0
    found = f"torch {node_answer['torch']} sees {node_answer['gpus']}"
    yield Finding.of("GPUs", has_gpus, found, "Check driver and container.")


def write_answer(folder: Path, temp: str) -> int:
    """Write the answer of this node for `check_site`; return 0, the exit code."""
    import socket

    import torch

    temp_error = ""
    try:
        shutil.rmtree(mkdtemp(prefix="t", dir=temp))
    except OSError as error:
        temp_error = f"{temp}: {error.strerror}"
    answer = {"host": socket.gethostname(), "gpus": torch.cuda.device_count(), "torch": torch.__version__}
    (folder / "answer.json").write_text(json.dumps({**answer, "temp": temp_error, "time": time.time()}))
    return 0
