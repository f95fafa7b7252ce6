"""Check a site in a job of a minute: scheduler, partition, shared folder, clock, temporary folder, GPUs, packages."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from trainables.errors import ConfigError
from tune_dml.running.slurm.jobs import run_command
from tune_dml.running.slurm.profile import Profile
from tune_dml.running.slurm.script import head, python_command

_MOST_SKEW = 5.0
"""Seconds between the clocks of login node and node."""
_WAIT = "180"
"""Seconds that the job may wait for a node."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    is_fine: bool
    found: str
    remedy: str = ""


def check_site(profile: Profile, storage: Path) -> list[Finding]:
    """Check SLURM, and one of its nodes by a short job."""
    try:
        version = run_command("sinfo", "--version").strip()
        partitions = run_command("sinfo", "--noheader", "--format=%R %a %l %D").splitlines()
    except ConfigError as error:
        return [Finding("scheduler", False, str(error), "Type it on a login node.")]
    found = [Finding("scheduler", True, version)]
    names = [line.split()[0] for line in partitions]
    if profile.partition and profile.partition not in names:
        rule = f"no partition {profile.partition!r}"
        return [*found, Finding("partition", False, rule, f"There are: {', '.join(names)}.")]
    found.append(Finding("partition", True, "; ".join(partitions)))
    storage.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix=".doctor-", dir=storage))
    try:
        return [*found, *_ask_node(profile, folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask_node(profile: Profile, folder: Path) -> Iterator[Finding]:
    """Run the job, and read what the node wrote into the shared folder."""
    (folder / "slurm").mkdir()
    minute = replace(profile, time="1", nodes=1, requeue=False, warn_seconds=1)
    script = folder / "job.sh"
    script.write_text(
        head(minute, "doctor", folder, "%j", signals=False)
        + f"{python_command(profile)} check {shlex.quote(str(folder))}\n"
    )
    try:
        run_command("sbatch", "--wait", "--deadline=now+4minutes", str(script), seconds=float(_WAIT) + 120)
    except ConfigError as error:
        logs = [log.read_text(errors="replace")[-500:] for log in folder.glob("slurm/*.log")]
        yield Finding("job", False, f"{error} {' '.join(logs)}".strip(), "Correct ~/.config/tune-dml/slurm.toml.")
        return
    answer = folder / "answer.json"
    if not answer.exists():
        remedy = "Choose with --storage a folder that nodes and login node share."
        yield Finding(
            "shared folder", False, f"the file that a node wrote into {folder.parent} is missing here", remedy
        )
        return
    said = json.loads(answer.read_text())
    yield Finding("shared folder", True, f"{folder.parent}, as {said['host']} sees it")
    skew = abs(answer.stat().st_mtime - said["time"])
    yield Finding("clock", skew < _MOST_SKEW, f"{skew:.1f} s apart", "" if skew < _MOST_SKEW else "Have ntp set up.")
    temp = said["temp"]
    yield Finding(
        "temp", not temp, temp or f"{profile.temp} can be written", "Set temp in the profile." if temp else ""
    )
    wanted = "gpu" in profile.gres
    fine = not wanted or said["gpus"] > 0
    yield Finding(
        "GPUs", fine, f"torch {said['torch']} sees {said['gpus']}", "" if fine else "Check driver and container."
    )


def answer(folder: Path, temp: str) -> int:
    """Write this node's answers for `check_site`."""
    import socket

    import torch

    why = ""
    try:
        shutil.rmtree(mkdtemp(prefix="t", dir=temp))
    except OSError as error:
        why = f"{temp}: {error.strerror}"
    seen = {"host": socket.gethostname(), "gpus": torch.cuda.device_count(), "torch": torch.__version__, "temp": why}
    (folder / "answer.json").write_text(json.dumps({**seen, "time": time.time()}))
    return 0
