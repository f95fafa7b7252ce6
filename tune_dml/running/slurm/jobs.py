"""Submit, list, follow and cancel the SLURM jobs of a sweep.

<sweep>/slurm/submission.json    the command, and the command that continues the sweep
<sweep>/slurm/job.sh, array.sh   the scripts
<sweep>/slurm/jobs               job ids, one per line, oldest first
<sweep>/slurm/<job>.log          the output of a job; <job>_<task>.log: of a task of an array
"""

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from trainables.errors import ConfigError, Problem
from trainables.files import write_whole
from tune_dml.record.origin.several_jobs import BUDGET_FROM
from tune_dml.text import counted

JOB_NAME = "tune-dml-"  # prefix of a job's name, before the name of its sweep
MAX_TASKS = 1000  # tasks of one array: SLURM's default `MaxArraySize` is 1001
_TIMEOUT = 60.0  # seconds to wait for a SLURM command
_FINAL_STATES = {
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"),
    *("BOOT_FAIL", "DEADLINE"),
}


@dataclass(frozen=True)
class Submission:
    """A sweep submitted to SLURM."""

    name: str
    folder: str  # of the sweep
    words: tuple[str, ...]  # the command that the jobs run
    again: tuple[str, ...]  # the command that continues the sweep after it has started
    there: str  # the arguments of `tune-dml submit` that reach these jobs, for commands in messages
    began: float  # time of the submission, in seconds since the epoch; budgets count from here
    temp: str = "/tmp"  # noqa: S108
    group: int = 0  # trials per task of an array; 0 runs a Ray over the allocation instead
    tasks: int = MAX_TASKS  # largest number of tasks in an array
    gpus: int = 0  # GPUs of each task of an array

    @property
    def scripts_folder(self) -> Path:
        """Folder of the scripts and logs."""
        return Path(self.folder) / "slurm"


@dataclass(frozen=True)
class SlurmJob:
    """A job that SLURM knows."""

    id: str
    state: str
    reason: str
    tasks: int = 1  # tasks of an array in this state

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in _FINAL_STATES

    def text(self) -> str:
        """Return `job 12 is pending (Priority)`, or `array 12: 40 tasks running`."""
        reason_text = f" ({self.reason})" if self.reason not in {"", "None", "(null)"} else ""
        if self.tasks > 1 or "_" in self.id:
            return f"array {self.id.partition('_')[0]}: {counted(self.tasks, 'task')} {self.state.lower()}{reason_text}"
        return f"job {self.id} is {self.state.lower()}{reason_text}"


def _index(name: str) -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "tune-dml" / "slurm" / name


def find_submission(name: str) -> Submission:
    """Return the submission of a sweep's name. Raise ConfigError if there is none."""
    try:
        folder = Path(_index(name).read_text(encoding="utf-8").strip())
        return read_submission(folder)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        rule = "no sweep of this name was submitted to SLURM by you"
        remedy = f"Submit it: `tune-dml submit slurm -- sweep ... --name {name}`."
        raise ConfigError(Problem("SWEEP", rule, name, remedy)) from None


def read_submission(folder: Path) -> Submission:
    """Return the submission in a sweep's folder. Raise ConfigError if its file is damaged."""
    file = folder / "slurm" / "submission.json"
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return Submission(**{**stored, "words": tuple(stored["words"]), "again": tuple(stored["again"])})
    except (ValueError, LookupError, TypeError) as error:
        remedy = f"Cancel its jobs with `scancel --name {JOB_NAME}{folder.name}`, delete the file and submit again."
        raise ConfigError(Problem(str(file), f"the file is damaged ({error!r})", None, remedy)) from error


def open_jobs(folder: Path) -> list[SlurmJob]:
    """Return the waiting and running jobs of a sweep; none without a submission or if SLURM does not answer."""
    try:
        return [job for job in jobs_of(read_submission(folder)) if not job.has_ended]
    except (ConfigError, OSError):
        return []


def raise_if_jobs_are_open(folder: Path) -> None:
    """Raise ConfigError if other SLURM jobs of a sweep wait or run. Tasks of an array take no lock."""
    if BUDGET_FROM in os.environ:  # this process is one of its jobs
        return
    if jobs := open_jobs(folder):
        rule = f"{jobs[-1].text()}, and one process at a time may run a sweep"
        remedy = f"Wait for its end, or `tune-dml cancel slurm {folder.name}`."
        raise ConfigError(Problem(folder.name, rule, None, remedy))


def submit(submission: Submission, scripts: Mapping[str, str]) -> tuple[Submission, SlurmJob, bool]:
    """Submit a sweep's job to SLURM, or return its job that already waits or runs.

    Return the submission in force, its job, and whether it is new. Raise ConfigError if SLURM refuses the job, or
    another command runs under this name.
    """
    scripts_folder = submission.scripts_folder
    scripts_folder.mkdir(parents=True, exist_ok=True)
    with FileLock(scripts_folder / "lock", timeout=_TIMEOUT):
        running = [job for job in jobs_of(submission) if not job.has_ended]
        if running:
            stored_submission = read_submission(Path(submission.folder))
            if submission.words not in (stored_submission.words, stored_submission.again):
                rule = f"{running[-1].text()}, started by another command; nothing was submitted"
                remedy = f"Wait for its end, or `tune-dml cancel slurm {submission.name}`."
                raise ConfigError(Problem("submit", rule, " ".join(submission.words), remedy))
            return stored_submission, running[-1], False
        for file, text in scripts.items():
            write_whole(scripts_folder / file, text.encode())
        write_whole(scripts_folder / "submission.json", json.dumps(asdict(submission), indent=1) + "\n", private=True)
        _index(submission.name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(_index(submission.name), f"{submission.folder}\n")
        number = run_command("sbatch", "--parsable", str(scripts_folder / "job.sh")).strip().partition(";")[0]
        try:
            with (scripts_folder / "jobs").open("a") as file_of_jobs:
                file_of_jobs.write(f"{number}\n")
        except OSError:  # without the number, `status` and `cancel` would not know the job
            run_command("scancel", number)
            raise
        return submission, SlurmJob(number, "PENDING", ""), True


def _job_ids(submission: Submission) -> list[str]:
    try:
        lines = (submission.scripts_folder / "jobs").read_text().split()
    except FileNotFoundError:
        return []
    return [line.partition(";")[0] for line in lines]


def jobs_of(submission: Submission) -> list[SlurmJob]:
    """Return the jobs of a sweep that SLURM still lists, oldest first. Tasks of an array are joined by state."""
    job_ids = _job_ids(submission)
    if not job_ids:
        return []
    options = ("--noheader", "--states=all", f"--user={os.getuid()}", "--array", f"--name={JOB_NAME}{submission.name}")
    output = run_command("squeue", *options, "--format=%i|%T|%r")  # also by name: SLURM may reuse a number
    tasks: Counter[tuple[str, str, str]] = Counter()
    for line in output.splitlines():
        number, state, reason = [*line.strip().split("|"), "", ""][:3]
        base, of_array, _ = number.partition("_")
        if base in job_ids:
            tasks[f"{base}{of_array}", state, reason] += 1
    jobs = [SlurmJob(*job, count) for job, count in tasks.items()]
    return sorted(jobs, key=lambda job: job_ids.index(job.id.rstrip("_")))


def cancel(submission: Submission) -> list[str]:
    """Cancel a sweep's jobs, and return a line about each. Running sessions end in order; waiting jobs are removed."""
    done = []
    for job in jobs_of(submission):
        number = job.id.rstrip("_")
        if job.has_ended:
            continue
        if job.state in {"RUNNING", "COMPLETING"} and not submission.group:
            run_command("scancel", "--batch", "--signal=USR2", number)
            done.append(f"job {number} was told to end")
        else:
            run_command("scancel", number)
            done.append(f"{job.text()}: removed")
    return done


def wait(submission: Submission, seconds: float) -> bool:
    """Wait until no job of a sweep waits or runs; return False if `seconds` are not enough."""
    until = time.monotonic() + seconds
    while any(not job.has_ended for job in jobs_of(submission)):
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def follow(submission: Submission, *, to_end: bool) -> Iterator[str]:
    """Yield the newest log. With `to_end`, follow all logs of its job and of later jobs until no job is left."""
    logs = _logs(submission)
    newest = logs[-1:]
    offsets = {log: log.stat().st_size for log in logs if _job_of(log) != _job_of(newest[0])}
    while True:
        is_last_read = not to_end or all(job.has_ended for job in jobs_of(submission))
        for log in newest or _logs(submission):
            with log.open(errors="replace") as file:
                file.seek(offsets.get(log, 0))
                text = file.read()
                offsets[log] = file.tell()
            if text:
                yield text
        if is_last_read:
            return
        newest = []
        time.sleep(0.5)


def _logs(submission: Submission) -> list[Path]:
    existing: list[Path] = []
    for number in _job_ids(submission):
        tasks = sorted(submission.scripts_folder.glob(f"{number}_*.log"), key=lambda log: (len(log.name), log.name))
        existing += [log for log in (submission.scripts_folder / f"{number}.log", *tasks) if log.exists()]
    return existing


def _job_of(log: Path) -> str:
    return log.stem.partition("_")[0]


def max_array_tasks() -> int:
    """Return the largest number of tasks that an array may have here. Raise ConfigError if SLURM allows no arrays."""
    try:
        setting = re.search(r"^MaxArraySize\s*=\s*(\d+)", run_command("scontrol", "show", "config"), re.MULTILINE)
    except ConfigError:
        return MAX_TASKS
    limit = min(MAX_TASKS, int(setting[1])) if setting else MAX_TASKS
    if limit < 1:
        raise ConfigError(Problem("--array", "this SLURM allows no arrays (MaxArraySize is 0)", None, "Leave it out."))
    return limit


def run_command(*command: str, seconds: float = _TIMEOUT) -> str:
    """Return the output of a SLURM command. Raise ConfigError with its error if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603
    except FileNotFoundError as error:
        rule = f"the program `{command[0]}` must be on the PATH, as it is on a login node of SLURM"
        raise ConfigError(Problem("slurm", rule, None, "Run the command on a login node.")) from error
    except subprocess.TimeoutExpired as error:
        rule = f"SLURM must answer within {seconds:g} seconds"
        raise ConfigError(Problem("slurm", rule, " ".join(command), "Try again.")) from error
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(Problem("slurm", f"{command[0]} must succeed ({message})", " ".join(command[1:])))
    return done.stdout
