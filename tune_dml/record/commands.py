"""Commands about a sweep, ready to paste: they carry the places that its first session was told of."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tune_dml.record.provenance import mask, without_login
from tune_dml.record.results import Results

_STORES = ("--tracking-uri", "--experiment")
_CARRIED = {
    **dict.fromkeys(("resume", "extend", "confirm"), (*_STORES, "--cache-dir", "--address", "--max-concurrent")),
    **dict.fromkeys(("report", "open", "rescore", "sync"), _STORES),
}
"""Options of each verb that later sessions need as the first one had them, beside the folder of the sweeps."""
SUBMITTED_TO = "TUNE_DML_SUBMITTED_TO"
"""In the environment of a command that was submitted: the cluster as its user named it, and what else `submit` was told."""
_PROGRAM = ("tune-dml", "__main__")
_STARS = "***"
_NOTHING: Mapping[str, str | None] = MappingProxyType({})


def command(results: Results, verb: str, change: str = "", *, now: Mapping[str, str | None] = _NOTHING) -> str:
    """`tune-dml extend rho1 --seeds 5 --storage /shared/sweeps`; without what is the default, and without secrets.

    What runs as a job on a cluster is read elsewhere: its commands are to be submitted, too.

    `now`: flag -> value of the options of this line, which count before those of the first session.
    """
    typed = [str(word) for word in results.provenance.get("argv", ())]
    words = [program(), verb, shlex.quote(results.name), *([change] if change else [])]
    by_us = bool(typed) and is_program(typed[0])
    elsewhere = bool(_given(typed, "--storage")) if by_us else results.folder.parent.name != "sweeps"
    if elsewhere or now.get("--storage"):
        words += ["--storage", shlex.quote(str(results.folder.parent.absolute()))]
    for option in _CARRIED.get(verb, ()):
        value = without_login(now.get(option) or (_given(typed, option) if by_us else ""))
        if value and _STARS not in value:
            words += [option, shlex.quote(value)]
    return " ".join(words)


def is_program(word: str) -> bool:
    """Whether a command line began with this program."""
    return Path(word).stem in _PROGRAM


def interrupted(go_on: str) -> str:
    """What is said where no table comes any more."""
    return f"Interrupted. Continue with: {go_on}"


def program() -> str:
    """What a command begins with: `tune-dml`, or what submits it to the cluster on which this runs as a job."""
    there = os.environ.get(SUBMITTED_TO)
    return f"tune-dml submit {there} --" if there else "tune-dml"


def as_typed_here(text: str) -> str:
    """A text whose commands, in backticks, begin as they must where it is read."""
    return re.sub("`tune-dml (?!submit |cancel )", lambda found: f"`{program()} ", text)


def cluster_of_this_job() -> str | None:
    """The cluster on which this runs as a job, as its user named it; None where it was not submitted."""
    there = os.environ.get(SUBMITTED_TO)
    return mask(shlex.split(there)[0]) if there else None


def stop(results: Results) -> str:
    """How a sweep that runs is stopped, as the end of a sentence; it may run elsewhere than where this is asked."""
    if results.submitted_to:
        return f"`tune-dml cancel {shlex.quote(results.submitted_to)} {results.name}`"
    elsewhere = f", on {results.host}" if results.host not in {"", platform.node()} else ""
    return f"Ctrl-C where it runs{elsewhere}"


def smaller_micro_batch(results: Results) -> int | None:
    """Half of the fewest pictures that a worker held at a time in the trials that ran out of memory.

    None where none did, and where a network may use batch statistics, which are those of the whole batch.
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
    """`--retry-failed`, and for trials that ran out of memory fewer pictures at a time."""
    fewer = smaller_micro_batch(results)
    return "--retry-failed" if fewer is None else f"--retry-failed --micro-batch {fewer}"


def _given(typed: Sequence[str], option: str) -> str:
    """An option's value as it was typed; empty where it was not."""
    for word, following in zip(typed, [*typed[1:], ""], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""
