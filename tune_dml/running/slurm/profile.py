"""Read a site's SLURM settings from a TOML file; the flags of `tune-dml submit slurm` override them."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from trainables.errors import Problem, raise_if_any

_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
_ONE_WORD = re.compile(r"[^\s\0'\"`$\\;|&<>]+")
_MAX_SOCKET_PATH = 107  # longest path of a Unix socket, in bytes
_RAY_SOCKET_LENGTH = len("/.1234567890.123/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")

TEMPLATE = Path(__file__).with_name("templates") / "slurm.toml"  # the commented profile of `tune-dml init slurm`


@dataclass(frozen=True)
class Profile:
    """A site's settings."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    gres: str = ""
    time: str = ""
    nodes: int = 1
    cpus_per_task: int = 1
    mem: str = ""
    sbatch: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    container: str = ""
    srun: tuple[str, ...] = ()
    python: str = ""
    temp: str = "/tmp"  # noqa: S108 - a folder per job is made below it, for its owner alone
    warn_seconds: int = 300
    requeue: bool = True

    def with_flags(self, given: Mapping[str, object]) -> Profile:
        """Return the profile with the given flags, those that are not None; `sbatch` lines are added."""
        flags = {name: value for name, value in given.items() if value is not None and name != "sbatch"}
        sbatch_lines = map(_without_prefix, given.get("sbatch") or ())  # type: ignore[call-overload]
        return replace(self, **flags, sbatch=(*self.sbatch, *sbatch_lines))  # type: ignore[arg-type]

    @property
    def gpus(self) -> int:
        """GPUs per node in `gres`, such as `gpu:4`, `gpu:a100:4` or `gpu`."""
        total = 0
        for part in self.gres.split(","):
            name, *parts = part.partition("(")[0].split(":")
            if name == "gpu":
                total += int(parts[-1]) if parts and parts[-1].isdigit() else 1
        return total

    def seconds(self) -> int | None:
        """Return the seconds of `time`; None without one."""
        return _seconds_of(self.time) if self.time else None

    def problems(self, origin: str) -> Iterator[Problem]:
        """Yield what SLURM or Ray would refuse."""
        if self.time and not _TIME.fullmatch(self.time):
            yield Problem(f"{origin} time", "must be MINUTES, HH:MM:SS or D-HH:MM:SS", self.time, "Example: 04:00:00.")
        elif self.time and (self.seconds() or 0) <= self.warn_seconds:
            remedy = "Raise time, or lower warn_seconds."
            yield Problem(f"{origin} time", f"must exceed warn_seconds ({self.warn_seconds})", self.time, remedy)
        for name in ("nodes", "cpus_per_task", "warn_seconds"):
            if getattr(self, name) < 1:
                yield Problem(f"{origin} {name}", "must be at least 1", getattr(self, name))
        for name in ("partition", "account", "qos", "gres", "mem"):
            value = getattr(self, name)
            if value and not _ONE_WORD.fullmatch(value):
                yield Problem(f"{origin} {name}", "must be one word without shell characters", value)
        for name, lines in (("sbatch", self.sbatch), ("collect", self.collect)):
            place = f"{origin} {name}"
            for line in lines:
                if not line.startswith("-") or "\n" in line:
                    yield Problem(place, "must be an option of sbatch", line, "Example: --constraint=a100.")
                elif re.match(r"--(signal|output|open-mode|job-name|array|ntasks)|-[oJan]\b", line):
                    yield Problem(place, "the script sets this option itself", line, "Leave it out.")
        if not self.temp.startswith("/") or len(os.fsencode(self.temp)) + _RAY_SOCKET_LENGTH > _MAX_SOCKET_PATH:
            limit = _MAX_SOCKET_PATH - _RAY_SOCKET_LENGTH
            rule = f"must be an absolute path of at most {limit} bytes, because Ray creates its sockets there"
            yield Problem(f"{origin} temp", rule, self.temp, "Example: /tmp.")


def _seconds_of(time: str) -> int:
    """Return the seconds of SLURM's `MINUTES`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`."""
    days, dash, time_of_day = time.rpartition("-")
    parts = [int(part) for part in time_of_day.split(":")]
    if dash:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return int(days) * 86_400 + hours * 3600 + minutes * 60 + seconds
    if len(parts) == 1:
        return parts[0] * 60
    hours, minutes, seconds = (0, *parts)[-3:]
    return hours * 3600 + minutes * 60 + seconds


def _without_prefix(line: str) -> str:
    return line.removeprefix("#SBATCH").strip()


def profile_file() -> Path:
    """Return the user's profile file; it need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "tune-dml" / "slurm.toml"


def read_profile(path: Path) -> Profile:
    """Return the profile of a file, or the default if there is none. Raise ConfigError if the file is damaged."""
    if not path.exists():
        return Profile()
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise_if_any([Problem(str(path), f"must be TOML ({error})")])
    types: dict[str, Any] = {field.name: type(field.default) for field in fields(Profile)}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        if (expected := types.get(name)) is None:
            matches = difflib.get_close_matches(name, types, n=1)
            remedy = f"Did you mean {matches[0]}?" if matches else f"Known: {', '.join(types)}."
            problems.append(Problem(f"{path} {name}", "unknown key", value, remedy))
        elif expected is tuple and isinstance(value, list) and all(isinstance(line, str) for line in value):
            values[name] = tuple(map(_without_prefix, value) if name in {"sbatch", "collect"} else value)
        elif type(value) is expected:
            values[name] = value
        else:
            type_text = "a list of strings" if expected is tuple else f"of type {expected.__name__}"
            problems.append(Problem(f"{path} {name}", f"must be {type_text}", value))
    raise_if_any(problems)
    return Profile(**values)
