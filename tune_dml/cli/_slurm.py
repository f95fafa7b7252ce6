"""`tune-dml submit slurm`: run a sweep as SLURM jobs, addressed by its name from the login node."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.cli._json import as_json as strict_json
from tune_dml.cli._supervisor import flags_of
from tune_dml.cli.screen import print_result
from tune_dml.text import duration

if TYPE_CHECKING:
    from tune_dml.running.slurm.jobs import Submission
    from tune_dml.running.slurm.profile import Profile

SLURM = "slurm"
JOB_VERBS = ("sweep", "resume", "extend", "confirm")  # verbs that train, and so run as jobs; other verbs run at once
_CANCEL_SECONDS = 120.0  # seconds that a cancelled sweep may take to write its table and report


@dataclass(frozen=True)
class SlurmOptions:
    """Flags of `submit slurm`; the profile file has those of the site."""

    partition: Annotated[str | None, typer.Option(help="SLURM: partition.")] = None
    account: Annotated[str | None, typer.Option(help="SLURM: account.")] = None
    qos: Annotated[str | None, typer.Option(help="SLURM: quality of service.")] = None
    gres: Annotated[str | None, typer.Option(help="SLURM: GPUs per node, such as gpu:4.")] = None
    time: Annotated[str | None, typer.Option(help="SLURM: time of one job, HH:MM:SS.")] = None
    nodes: Annotated[int | None, typer.Option(help="SLURM: nodes.")] = None
    cpus_per_task: Annotated[int | None, typer.Option(help="SLURM: CPUs per node.")] = None
    mem: Annotated[str | None, typer.Option(help="SLURM: memory per node.")] = None
    sbatch: Annotated[list[str] | None, typer.Option(help="SLURM: a further line #SBATCH; repeatable.")] = None
    array: Annotated[bool, typer.Option("--array", help="SLURM: a task for each trial, without Ray.")] = False
    group: Annotated[int | None, typer.Option(min=1, help="SLURM: trials of one task of the array.")] = None
    print_only: Annotated[bool, typer.Option("--print", help="SLURM: print the script; submit nothing.")] = False

    def given(self) -> dict[str, object]:
        """Return the flags that change the profile."""
        return {name: value for name, value in asdict(self).items() if name not in {"array", "group", "print_only"}}

    def words(self) -> list[str]:
        """Return the given flags as words of the command line."""
        words = ["--array"] if self.array else []
        for name, value in asdict(self).items():
            if name not in {"array", "print_only"} and value is not None:
                for item in value if isinstance(value, list) else [value]:
                    words += [f"--{name.replace('_', '-')}", str(item)]
        return words

    def raise_if_given(self, target: str) -> None:
        """Raise ConfigError if a flag was given although the target is another kind of cluster."""
        if words := self.words() or (["--print"] if self.print_only else []):
            rule = "is an option of SLURM"
            raise ConfigError(Problem(words[0], rule, None, f"Leave it out, or submit to slurm instead of {target}."))


def submit_to_slurm(options: SlurmOptions, command: Any, as_json: bool) -> None:
    """Submit a command as SLURM jobs, or run it here if it only reads: the login node sees the sweep's folder."""
    from tune_dml.cli import application
    from tune_dml.cli.options import read_values, request_of
    from tune_dml.planning.checks.prepare import prepare
    from tune_dml.running.slurm.jobs import MAX_TASKS, Submission, max_array_tasks, submit
    from tune_dml.running.slurm.profile import profile_file, read_profile

    if command.verb not in JOB_VERBS:
        local_command = command.in_json() if as_json else command
        application()(list(local_command.words), prog_name="tune-dml")
    profile = read_profile(profile_file()).with_flags(options.given())
    raise_if_any(profile.problems(SLURM))
    if command.verb == "sweep":  # check plan, pictures and weights here, because nodes may be unable to fetch them
        prepare(request_of(command.given), cache_dir=read_values(command.given)["cache_dir"], decode=False)
    folder = Path(command.given["storage"]).absolute() / command.sweep
    again = ("resume", command.sweep, *flags_of("resume", command.given))
    group = (options.group or 1) if options.array else 0
    _check_array_flags(command, options)
    target = shlex.join([SLURM, *options.words()])
    if group:
        profile = replace(profile, nodes=1)  # a task runs on one node
    limit = max_array_tasks() if group and not options.print_only else MAX_TASKS
    submission = Submission(
        command.sweep, str(folder), command.words, again, target, time.time(), profile.temp, group, limit, profile.gpus
    )
    scripts = _scripts(profile, submission)
    ceiling = _ceiling(profile, command, group)
    if not as_json:
        typer.echo("\n".join(scripts.values()))  # without line breaks at the terminal's width
    if options.print_only or not as_json:
        print_result({"scripts": scripts, "ceiling": ceiling}, [ceiling], as_json)
    if not options.print_only:
        stored, job, new = submit(submission, scripts)
        state = {"sweep": stored.name, "job": job.id, "state": job.state.lower(), "new": new}
        data = {**state, "folder": stored.folder, "ceiling": ceiling}
        submitted = f"submitted as job {job.id}" if new else f"{job.text()}: nothing was submitted"
        storage = shlex.join(["--storage", str(folder.parent)])
        resume = f"tune-dml submit {stored.there} -- resume {stored.name} {storage}"
        commands = next_commands(SLURM, stored.name, "tune-dml", storage, resume=resume)
        print_result(data, [f"{stored.name}: {submitted}", *commands], as_json)


def next_commands(target: str, sweep: str, program: str, storage: str, *, resume: str) -> list[str]:
    """Return the commands for a submitted sweep; `program` starts those that read it."""
    return [
        f"  follow: tune-dml logs {target} {sweep} --follow",
        f"  status: {program} status {sweep} {storage}",
        f"  stop:   tune-dml cancel {target} {sweep}",
        f"  resume: {resume}",
        f"  report: {program} report {sweep} {storage}",
    ]


def _scripts(profile: Profile, submission: Submission) -> dict[str, str]:
    from tune_dml.running.slurm import script

    folder = Path(submission.folder)
    if not submission.group:
        return {"job.sh": script.sweep_script(profile, submission.name, folder)}
    return {
        "job.sh": script.collect_script(profile, submission.name, folder),
        "array.sh": script.array_script(profile, submission.name, folder),
    }


def with_storage(words: list[str]) -> list[str]:
    """Return a command with absolute folders and with --storage, that of an earlier submission if there is one."""
    from tune_dml.running.slurm.jobs import find_submission

    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in {"--storage", "--data-root", "--cache-dir", "--output", "-o"}:
            if equals:
                words[index] = f"{flag}={os.path.abspath(os.path.expanduser(value))}"
            elif index + 1 < len(words):
                words[index + 1] = os.path.abspath(os.path.expanduser(words[index + 1]))
    if any(word.partition("=")[0] == "--storage" for word in words):
        return words
    storage_folder = Path("sweeps").absolute()
    if words[0] not in {"sweep", "list", "plan", "doctor", "datasets", "version"} and len(words) > 1:
        with contextlib.suppress(ConfigError):
            storage_folder = Path(find_submission(words[1]).folder).parent
    return words if words[0] in {"plan", "datasets", "version"} else [*words, "--storage", str(storage_folder)]


def _check_array_flags(command: Any, options: SlurmOptions) -> None:
    """Raise ConfigError for flags that the tasks of an array do not support."""
    given = command.given
    nodes, workers, share = options.nodes or 1, given.get("workers") or 1, given.get("gpus_per_worker") or 0
    stopping, files = given.get("stopping"), given.get("trial_files")
    not_seen = "trials of an array cannot be stopped early, because they do not see each other"
    in_turn = "trials of a task run one after the other, and do not share a GPU"
    refused = [
        (nodes != 1, "--nodes", "a task of an array has one node", nodes, "Leave --array out."),
        (workers != 1, "--workers", "a trial of an array trains with one worker", workers, "Leave --array out."),
        (0 < share < 1, "--gpus-per-worker", in_turn, share, "Use 1, or leave --array out."),
        (stopping, "--stopping", not_seen, stopping, "Leave --array out."),
        (files, "--trial-files", "trials of an array keep their files in the sweep's folder", files, "Leave it out."),
    ]
    if not options.array:
        refused = [(options.group, "--group", "groups the trials of an array", options.group, "Add --array.")]
    raise_if_any(Problem(*problem) for is_wrong, *problem in refused if is_wrong)


def _ceiling(profile: Profile, command: Any, group: int) -> str:
    gpus = profile.gpus
    unit, count = ("GPU", gpus) if gpus else ("CPU", profile.cpus_per_task)
    size = f"{profile.nodes} node{'s' if profile.nodes != 1 else ''} x {count} {unit}{'s' if count != 1 else ''}"
    seconds = profile.seconds()
    time_text = f" x {duration(seconds)}" if seconds else ", for the partition's own time limit"
    cost = f" = {profile.nodes * count * seconds / 3600:g} {unit}-hours" if seconds else ""
    each_job = f"{'Each task of the array' if group else 'Each job'}: {size}{time_text}{cost}."
    hours = command.given.get("gpu_hours") or command.given.get("budget")
    if hours:
        unit = "GPU" if gpus else "worker"
        return f"{each_job} All of them: {hours:g} {unit}-hours of trials at most. Then it stops, resumable."
    return f"{each_job} Jobs follow until the sweep is done; set a ceiling with --gpu-hours."


def write_profile(path: Path | None, as_json: bool) -> None:
    """Write a commented profile for this site."""
    from tune_dml.running.slurm.profile import TEMPLATE, profile_file

    file = path or profile_file()
    if file.exists():
        raise ConfigError(Problem(str(file), "the file exists already", None, "Change it, or write another with -o."))
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TEMPLATE, file)
    content = "partition, account, container, prologue and more; every line is an example"
    command = "tune-dml submit slurm --print -- sweep sec_rho"
    lines = [f"Wrote {file}: {content}.", f"Next: {command}"]
    print_result({"file": str(file), "next": command}, lines, as_json, wrap=False)


def jobs_line(folder: Path) -> list[str]:
    """Return one line about the sweep's waiting and running jobs; no line if SLURM does not answer."""
    from tune_dml.running.slurm.jobs import open_jobs

    return [f"SLURM: {'; '.join(job.text() for job in shown)}"] if (shown := open_jobs(folder)) else []


def show_pending(folder: Path, as_json: bool) -> None:
    """Print the state of a sweep that was submitted to SLURM and has no started job, as `status` does."""
    from tune_dml.running.slurm.jobs import open_jobs

    name, jobs = folder.name, "; ".join(job.text() for job in open_jobs(folder))
    data: dict[str, object] = {
        **{"sweep": name, "dataset": "", "metric": {"key": "", "goal": ""}, "state": "submitted", "waits_for": jobs},
        **dict.fromkeys(("answer", "next", "notes", "trials"), ()),
        **{"counts": {}, "unjudged": "", "race": None, "trial_files": None, "unfetched": 0},
    }
    waiting = f"{name} waits for SLURM: {jobs}. No trial has begun."
    ended = f"{name}: no job waits or runs, and no trial has begun. See: tune-dml logs slurm {name}"
    print_result(data, [waiting if jobs else ended], as_json)


def slurm_logs(name: str, follow: bool, as_json: bool) -> None:
    """Print the output of a sweep's jobs."""
    from tune_dml.running.slurm import jobs

    submission = jobs.find_submission(name)
    parts = jobs.follow(submission, to_end=follow)
    if not as_json:
        for text in parts:
            typer.echo(text, nl=False)
    log = "".join(parts)
    jobs_left = jobs.jobs_of(submission)
    if as_json:
        state = jobs_left[-1].state.lower() if jobs_left else "ended"
        typer.echo(strict_json({"sweep": name, "status": state, "log": log}))
    elif jobs_left:
        typer.echo(f"{name}: {jobs_left[-1].text()}", err=True)


def slurm_cancel(name: str, as_json: bool) -> None:
    """Cancel a sweep's jobs, and wait until they have ended."""
    from tune_dml.running.slurm import jobs

    submission = jobs.find_submission(name)
    cancelled = jobs.cancel(submission)
    ended = jobs.wait(submission, _CANCEL_SECONDS)
    storage = shlex.quote(str(Path(submission.folder).parent))
    resume = f"  resume: tune-dml submit {submission.there} -- resume {name} --storage {storage}"
    lines = [*(cancelled or [f"{name}: no job waits or runs"]), resume]
    print_result({"sweep": name, "cancelled": cancelled, "ended": ended}, lines, as_json, wrap=False)
