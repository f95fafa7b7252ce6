"""`tune-dml submit`: run a command on a cluster, where it continues without this machine."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.cli._slurm import JOB_VERBS, SLURM, SlurmOptions, next_commands
from tune_dml.cli._supervisor import ParsedFlags, flags_of
from tune_dml.cli.options import Json, read_values, request_of, verb
from tune_dml.cli.screen import Lines, print_result
from tune_dml.text import duration

if TYPE_CHECKING:
    from tune_dml.running.cluster.upload import Upload

ORDER = 45
_READ_VERBS = (
    *("list", "status", "report", "compare", "open", "rescore", "sync"),
    *("plan", "doctor", "datasets", "version"),
)
"""Verbs that only read, and print their output here."""
_TARGET = "cluster.yaml|ADDRESS|slurm"
Target = Annotated[
    str, typer.Argument(metavar=_TARGET, help="slurm, a cluster file, http://HEAD:8265, HOST:6379 or ray://HOST:10001.")
]


@verb
def submit(
    target: Target,
    words: Annotated[list[str], typer.Argument(metavar="-- VERB ...", help="What to run there: sweep, status, ...")],
    *,
    working_dir: Annotated[
        Path | None, typer.Option(help="A folder of modules to upload too; a named sweep file is always uploaded.")
    ] = None,
    slurm: SlurmOptions,
    as_json: Json = False,
) -> None:
    """Run a command on a cluster; sweep, resume, extend and confirm continue there without this machine."""
    if target == SLURM:
        from tune_dml.cli._slurm import submit_to_slurm, with_storage

        submit_to_slurm(slurm, read_command(with_storage(words), SLURM), as_json)
        return
    slurm.raise_if_given(target)
    from tune_dml.running.cluster import jobs
    from tune_dml.running.cluster.upload import collect_upload

    command = read_command(words, target, has_all_modules=working_dir is None)
    target_words = shlex.join([target, *(["--working-dir", str(working_dir)] if working_dir else [])])
    upload = collect_upload(command.files, working_dir)
    with jobs.cluster_client(target) as client:
        if command.verb in _READ_VERBS:
            remote = command.in_json() if as_json else command
            with jobs.run_temporary_job(client, target_words, remote.words, upload) as job:
                for text in jobs.command_output(client, job):
                    typer.echo(text, nl=False)
                code = jobs.exit_code(client, job)
            raise typer.Exit(code)
        ceiling = command.ceiling(jobs.cluster_capacity(client))
        if not as_json:
            print_result(None, _announcement(upload, ceiling), as_json=False)
        job, new = jobs.submit(client, target_words, command.sweep, command.words, upload)
    uploaded = {
        "bytes": upload.size,
        "files": len(upload.files),
        "kept_back": list(upload.secrets),
        "left_out": list(upload.skipped_links),
        "ceiling": ceiling,
    }
    data = {"job": job.id, "sweep": command.sweep, "new": new, "upload": uploaded}
    state = "submitted" if new else f"runs already ({job.status.lower()}): nothing was started"
    print_result(data, [f"{job.id} {state}", *_commands_for(command, target, target_words)], as_json)


@dataclass(frozen=True)
class SubmittedCommand:
    """A command to run on the cluster, parsed as it would be here."""

    words: tuple[str, ...]
    given: ParsedFlags

    @property
    def verb(self) -> str:
        """The verb."""
        return self.words[0]

    @property
    def sweep(self) -> str:
        """The name of the sweep; empty if there is none."""
        return str(self.given.get("sweep_name") or self.given.get("name") or "")

    @property
    def files(self) -> list[Path]:
        """The sweep files that the command names: that of the sweep, or those of arms to add to it."""
        words = (self.given.get("space"), *(self.given.get("arm") or ()))
        return [Path(word) for word in words if str(word).endswith((".yaml", ".yml"))]

    def in_json(self) -> SubmittedCommand:
        """Return this command with --json, if the verb has it."""
        return self if self.given.get("as_json") is not False else replace(self, words=(*self.words, "--json"))

    def ceiling(self, capacity: Mapping[str, float]) -> str:
        """Return a sentence with the largest possible cost, as far as the flags limit it."""
        given, stop = self.given, "Then it stops, resumable."
        hours, seconds = given.get("gpu_hours") or given.get("budget"), given.get("time_budget")
        if not capacity["GPU"] and not capacity["CPU"]:  # the cluster has no worker yet
            if hours:
                return f"Ceiling: {hours:g} GPU-hours, or worker-hours where no GPU comes. {stop}"
            on_all = f"{duration(seconds)} on all nodes that the cluster will add. Set hours" if seconds else ""
            unlimited = "none was set, and the cluster, which has no worker yet, may grow. Set one"
            return f"Ceiling: {on_all or unlimited} with --gpu-hours."
        unit, number = "GPU", capacity["GPU"]
        if not number or given.get("gpus_per_worker") == 0:
            unit, number = "worker", capacity["CPU"] // (given.get("cpus_per_worker") or 1)
        if hours:
            return f"Ceiling: {hours:g} {unit}-hour{'s' if hours != 1 else ''}. {stop}"
        if seconds:
            at_most = number * seconds / 3600
            cost = f"{at_most:.{2 if at_most >= 1 else 4}f} {unit}-hours: {number:g} {unit}s for {duration(seconds)}"
            return f"Ceiling: {cost}, if all are busy. {stop}"
        now = f"the cluster has {number:g} {unit}s now, so at most {number:g} {unit}-hours an hour"
        return f"Ceiling: none was set; {now}. Set one with --gpu-hours or --time-budget."


def read_command(words: Sequence[str], target: str = _TARGET, *, has_all_modules: bool = True) -> SubmittedCommand:
    """Return the command with its flags checked; raises ConfigError for one that cannot run as a job.

    A sweep gets an explicit name, by which its job is found. Its storage must not be in the job's working directory,
    which is deleted with the job.

    Args:
        words: the verb and its arguments.
        target: the cluster, as typed.
        has_all_modules: False if uploaded modules of the user may declare the space and its methods.
    """
    from tune_dml.cli import application

    verb = words[0]
    group: Any = typer.main.get_command(application())
    if verb not in (*JOB_VERBS, *_READ_VERBS):
        remedy = _verb_remedy(words, target, group.commands)
        raise ConfigError(Problem("submit", "must be a verb that can run as a job", verb, remedy))
    context = group.commands[verb].make_context(f"tune-dml submit {shlex.quote(target)} -- {verb}", list(words[1:]))
    if verb == "sweep":
        read_values(context.params)
    given, argv = dict(context.params), list(words)
    command = SubmittedCommand(tuple(argv), given)
    raise_if_any(_problems(command, target))
    if verb == "sweep" and (has_all_modules or not given["name"]):
        name = _study_name(given, has_all_modules=has_all_modules)
        if not given["name"]:
            given["name"] = name
            command = SubmittedCommand((*argv, "--name", name), given)
    return command


def _verb_remedy(words: Sequence[str], target: str, verbs: Iterable[str]) -> str:
    """Return the remedy for a verb that cannot run as a job."""
    verb, *rest = words
    if verb == "tune-dml":
        return "Leave that word out."
    if verb in {"logs", "cancel"}:
        return f"That verb asks the cluster itself: `tune-dml {shlex.join([verb, target, *rest])}`."
    jobs = (*JOB_VERBS, *_READ_VERBS)
    if verb not in verbs and (matches := difflib.get_close_matches(verb, jobs, n=1)):
        return f"Did you mean {matches[0]!r}?"
    prefix = f"`tune-dml {verb}` runs here. There: " if verb in verbs else "One of "
    return f"{prefix}{', '.join(jobs)}."


def _study_name(given: ParsedFlags, *, has_all_modules: bool) -> str:
    """Return the sweep's default name. Raise ConfigError for an unknown space or a wrong sweep file."""
    from tune_dml.planning.study import study_of

    try:
        study = study_of(request_of(given))
        raise_if_any(study.problems)
    except ConfigError:
        if has_all_modules:
            raise
        rule = "a sweep whose space is declared in uploaded modules must be named"
        raise ConfigError(Problem("--name", rule, None, "Example: --name eta1.")) from None
    return study.name


def _problems(command: SubmittedCommand, target: str) -> Iterable[Problem]:
    """Yield the problems of a command, missing files first."""
    from tune_dml.planning.rules import name_rule_problems
    from tune_dml.record.origin.provenance import mask
    from tune_dml.running.cluster.cluster_file import cluster_file_problems

    if target.endswith((".yaml", ".yml")):
        yield from cluster_file_problems(Path(target), to_start=False)
    for file in command.files:
        if not file.is_file():
            yield Problem("--arm" if command.verb == "extend" else "SPACE", "no such sweep file", str(file))
    for flag in ("trial_files", "tracking_uri", "command"):  # Ray's dashboard shows a job's command
        value = str(command.given.get(flag) or "")
        if mask(value) != value:
            rule, remedy = "must not contain credentials: the cluster shows it", "Put them into the job's environment."
            yield Problem(f"--{flag.replace('_', '-')}", rule, mask(value), remedy)
    if target != SLURM:
        yield from _relative_problems(command.given)
    if command.given.get("address"):
        rule = "a job runs on the cluster that it was sent to"
        yield Problem("--address", rule, command.given["address"], "Leave it out.")
    if command.verb in JOB_VERBS and (name := command.sweep):
        yield from name_rule_problems("--name" if command.verb == "sweep" else "SWEEP", name, "Example: eta1.")


_FOLDER_RULES = {
    "storage": ("sweeps must be kept in a folder that every node sees", "/mnt/shared/sweeps"),
    "output": ("the report would be lost", "/mnt/shared/report"),
    "data_root": ("pictures must lie in a folder that every node has", "/mnt/shared/pictures"),
    "cache_dir": ("decoded pictures would be lost", "/var/cache/tune_dml"),
}
"""Flag of a folder -> why the cluster must see the folder, and an example."""


def _relative_problems(given: ParsedFlags) -> Iterator[Problem]:
    """Yield a problem for each relative folder, which would be inside the job's temporary folder."""
    for name, (why, example) in _FOLDER_RULES.items():
        folder = given.get(name)
        if folder is None or Path(folder).is_absolute() or str(folder).startswith("~"):
            continue
        flag = "-o" if name == "output" else f"--{name.replace('_', '-')}"
        yield Problem(flag, f"a job's own folder is deleted with it: {why}", str(folder), f"Example: {flag} {example}.")


def _announcement(upload: Upload, ceiling: str) -> Lines:
    yield f"Uploads {upload}"
    if upload.secrets:
        yield f"Not uploaded, because they look like secrets: {', '.join(upload.secrets)}"
    if upload.skipped_links:
        links = ", ".join(upload.skipped_links)
        yield f"Not uploaded, because these links lead outside, to a folder or nowhere: {links}"
    yield ceiling


def _commands_for(command: SubmittedCommand, target: str, target_words: str) -> list[str]:
    """Return the next commands; `target_words` are the target and the flags of `submit`, as typed."""
    program = f"tune-dml submit {target_words} --"
    storage = shlex.join(["--storage", str(command.given["storage"])])
    resume = f"{program} resume {command.sweep} {shlex.join(flags_of('resume', command.given))}"
    return next_commands(shlex.quote(target), command.sweep, program, storage, resume=resume)
