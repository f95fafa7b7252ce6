"""Build commands for a sweep that a user can paste, with the options of its sessions."""

import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainables.errors import Problem
from tune_dml.record.origin.provenance import STARS, mask, without_login
from tune_dml.record.results import Results

_STORES = ("--tracking-uri", "--experiment")
_REPEATED_OPTIONS = {
    **dict.fromkeys(("resume", "extend", "confirm"), (*_STORES, "--cache-dir", "--address", "--max-concurrent")),
    **dict.fromkeys(("report", "open", "rescore", "sync"), _STORES),
}
"""Verb -> options, besides --storage, that are repeated from the last session that had them."""
SUBMITTED_TO = "TUNE_DML_SUBMITTED_TO"
"""Environment variable of a submitted job: the cluster as its user typed it, and further options of `submit`."""
CONTINUE_WITH = "Continue with: "  # by which clients of a submitted job find the command that continues a sweep
_PROGRAM_NAMES = ("tune-dml", "__main__")
_NAMES_SWEEP = re.compile(
    r"`tune-dml (?:list|(?:compare|confirm|export|extend|mv|open|report|rescore|resume|rm|show|status|sync) [^-`])"
    "(?![^`]* --(?:storage|from-))[^`]*(?=`)"
)
"""A command in a message that looks for a sweep in the default storage."""


def command(results: Results, verb: str, change: str = "", *, options: Mapping[str, str | None] | None = None) -> str:
    """Return a command such as `tune-dml extend rho1 --seeds 5 --storage /shared/sweeps`, without defaults and secrets.

    `change` holds further arguments. Options of the present command line take precedence over those of sessions.
    """
    options = options or {}
    words = [program(), verb, shlex.quote(results.name), *([change] if change else [])]
    words += storage_option(results, given=bool(options.get("--storage")))
    lines = [
        line for line in (*results.continued_by, results.provenance.get("argv", [])) if line and is_program(line[0])
    ]
    for option in _REPEATED_OPTIONS.get(verb, ()):
        given = (_option_value(line, option) for line in lines)
        value = without_login(options.get(option) or next(filter(None, given), ""))
        if value and STARS not in value:
            words += [option, shlex.quote(value)]
    return " ".join(words)


def storage_option(results: Results, *, given: bool = False) -> list[str]:
    """Return `--storage` and the sweep's present folder; nothing if this is the default, unless it is given now."""
    first_words = results.provenance.get("argv", [])
    is_ours = bool(first_words) and is_program(first_words[0])
    given = given or (is_program(sys.argv[0]) and bool(_option_value(sys.argv, "--storage")))
    is_elsewhere = bool(_option_value(first_words, "--storage")) if is_ours else results.folder.parent.name != "sweeps"
    return ["--storage", shlex.quote(str(results.folder.parent.absolute()))] if is_elsewhere or given else []


def is_program(word: str) -> bool:
    """Return whether a word of a command line is this program."""
    return Path(word).stem in _PROGRAM_NAMES


def interruption_message(next_command: str) -> str:
    """Return the message of an interrupted session."""
    return f"Interrupted. {CONTINUE_WITH}{next_command}"


def program() -> str:
    """Return `tune-dml` or, within a submitted job, the command that submits to its cluster."""
    target = os.environ.get(SUBMITTED_TO)
    return f"tune-dml submit {target} --" if target else "tune-dml"


def with_program(text: str) -> str:
    """Replace `tune-dml` by `program()` in the commands of a text, which are in backticks."""
    return re.sub("`tune-dml (?!submit |cancel )", lambda match: f"`{program()} ", text)


def with_storage(problem: Problem, words: Sequence[str]) -> Problem:
    """Return a problem whose advised commands look for sweeps in the --storage of a command line, if it has one."""
    storage = _option_value(words, "--storage")

    def located(text: str) -> str:
        return _NAMES_SWEEP.sub(lambda match: f"{match[0]} --storage {shlex.quote(storage)}", text)

    return replace(problem, rule=located(problem.rule), remedy=located(problem.remedy)) if storage else problem


def cluster_of_this_job() -> str | None:
    """Return the cluster of this job as its user typed it; None outside of a submitted job."""
    target = os.environ.get(SUBMITTED_TO)
    return mask(shlex.split(target)[0]) if target else None


def stop_instruction(results: Results) -> str:
    """Return how to stop a running sweep, as a part of a sentence."""
    if results.submitted_to:
        return f"`tune-dml cancel {shlex.quote(results.submitted_to)} {results.name}`"
    other_host = f", on {results.host}" if results.host not in {"", platform.node()} else ""
    return f"Ctrl-C where it runs{other_host}"


def smaller_micro_batch(results: Results) -> int | None:
    """Return half of the smallest micro-batch that ran out of memory.

    None if no trial did, or if one uses batch statistics, which need the whole batch.
    """
    sizes = []
    for trial in (*results.trials, *results.confirmed):
        settings = trial.cell.settings
        if trial.out_of_memory and not settings["model.freeze_bn"]:
            return None
        if trial.out_of_memory:
            share = math.ceil(settings["batch.batch_size"] / results.resources.workers)
            sizes.append(trial.micro_batch or settings["training.micro_batch"] or share)
    return min(sizes, default=0) // 2 or None


def retry_arguments(results: Results) -> str:
    """Return `--retry-failed`, with a smaller micro-batch after trials ran out of memory."""
    micro_batch = smaller_micro_batch(results)
    return "--retry-failed" if micro_batch is None else f"--retry-failed --micro-batch {micro_batch}"


def _option_value(words: Sequence[str], option: str) -> str:
    for word, next_word in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            return next_word
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
