"""Commands for a sweep, ready to paste, with the options that its sessions were given."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tune_dml.record.origin.provenance import mask, without_login
from tune_dml.record.results import Results

_STORES = ("--tracking-uri", "--experiment")
_CARRIED = {
    **dict.fromkeys(("resume", "extend", "confirm"), (*_STORES, "--cache-dir", "--address", "--max-concurrent")),
    **dict.fromkeys(("report", "open", "rescore", "sync"), _STORES),
}
"""Verb -> options that are repeated from the last session that was given them, beside --storage."""
SUBMITTED_TO = "TUNE_DML_SUBMITTED_TO"
"""Environment variable of a submitted job: the cluster as its user named it, and further options of `submit`."""
_PROGRAM = ("tune-dml", "__main__")
_STARS = "***"
_NOTHING: Mapping[str, str | None] = MappingProxyType({})


def command(results: Results, verb: str, change: str = "", *, now: Mapping[str, str | None] = _NOTHING) -> str:
    """Return a command such as `tune-dml extend rho1 --seeds 5 --storage /shared/sweeps`, without defaults and secrets.

    Args:
        results: the sweep.
        verb: the verb.
        change: further arguments.
        now: option -> value on the present command line; it takes precedence over those of sessions.
    """
    typed = [str(word) for word in results.provenance.get("argv", ())]
    words = [program(), verb, shlex.quote(results.name), *([change] if change else [])]
    words += storage_option(results, given=bool(now.get("--storage")))
    lines = [line for line in (*results.continued_by, typed) if line and is_program(line[0])]
    for option in _CARRIED.get(verb, ()):
        given = (_given(line, option) for line in lines)
        value = without_login(now.get(option) or next(filter(None, given), ""))
        if value and _STARS not in value:
            words += [option, shlex.quote(value)]
    return " ".join(words)


def storage_option(results: Results, *, given: bool = False) -> list[str]:
    """Return `--storage` and the sweep's present folder; empty if it lies in the default one and none was given."""
    typed = [str(word) for word in results.provenance.get("argv", ())]
    by_us = bool(typed) and is_program(typed[0])
    elsewhere = bool(_given(typed, "--storage")) if by_us else results.folder.parent.name != "sweeps"
    return ["--storage", shlex.quote(str(results.folder.parent.absolute()))] if elsewhere or given else []


def is_program(word: str) -> bool:
    """Whether a word of a command line is this program."""
    return Path(word).stem in _PROGRAM


def interrupted(go_on: str) -> str:
    """Return the message of an interrupted session."""
    return f"Interrupted. Continue with: {go_on}"


def program() -> str:
    """Return `tune-dml`, or within a job the command that submits to its cluster."""
    there = os.environ.get(SUBMITTED_TO)
    return f"tune-dml submit {there} --" if there else "tune-dml"


def as_typed_here(text: str) -> str:
    """Return a text whose commands, in backticks, begin with `program()`."""
    return re.sub("`tune-dml (?!submit |cancel )", lambda found: f"`{program()} ", text)


def cluster_of_this_job() -> str | None:
    """Return the cluster of this job as its user named it; None if this is no job."""
    there = os.environ.get(SUBMITTED_TO)
    return mask(shlex.split(there)[0]) if there else None


def stop(results: Results) -> str:
    """Return how to stop a running sweep, as the end of a sentence."""
    if results.submitted_to:
        return f"`tune-dml cancel {shlex.quote(results.submitted_to)} {results.name}`"
    elsewhere = f", on {results.host}" if results.host not in {"", platform.node()} else ""
    return f"Ctrl-C where it runs{elsewhere}"


def smaller_micro_batch(results: Results) -> int | None:
    """Return half of the smallest micro-batch that ran out of memory.

    None if no trial did, or if one uses batch statistics, which need the whole batch.
    """
    held = []
    for trial in (*results.trials, *results.confirmed):
        settings = trial.cell.settings
        if trial.out_of_memory and not settings["model.freeze_bn"]:
            return None
        if trial.out_of_memory:
            share = math.ceil(settings["batch.batch_size"] / results.resources.workers)
            held.append(trial.micro_batch or settings["training.micro_batch"] or share)
    return min(held, default=0) // 2 or None


def try_again(results: Results) -> str:
    """Return `--retry-failed`, with a smaller micro-batch after trials ran out of memory."""
    fewer = smaller_micro_batch(results)
    return "--retry-failed" if fewer is None else f"--retry-failed --micro-batch {fewer}"


def _given(typed: Sequence[str], option: str) -> str:
    """Return an option's value on a command line; empty if it is not there."""
    for word, following in zip(typed, [*typed[1:], ""], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
