"""JSON of the command line: strict (no NaN), with a schema for each verb, and errors as objects."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainables.errors import Problem
from tune_dml.text import json_value

_SCHEMAS = Path(__file__).with_name("json_schemas.json")
_COMMAND = re.compile(r"`(tune-dml [^`]+)`")
_MEANT = re.compile(r"Did you mean '([^']+)'\?")
_FLAG = re.compile(r"(?:Use|Add|Pass) (--[a-z-]+)(?: ([^\s,.]+(?:\.\d+)?))?")
_IN_CAPITALS = re.compile(r"\b[A-Z]{2,}\b|\.\.\.")
"""Placeholders that a reader must fill in."""


def as_json(value: Any) -> str:
    """Return strict JSON: numbers that are not finite are null."""
    return json.dumps(json_value(value), indent=1, default=str, allow_nan=False)


def schemas() -> dict[str, dict[str, object]]:
    """Return the JSON schema of each verb's `--json`; `error` is that of exit codes 1 and 2."""
    read: dict[str, dict[str, object]] = json.loads(_SCHEMAS.read_text(encoding="utf-8"))
    return read


def error_json(problems: Sequence[Problem], words: Sequence[str]) -> str:
    """Return problems as JSON, each with a command that avoids it where one is known; `words`: the command line."""
    keys = ("rule", "place", "value", "remedy")
    shown = [{**{k: getattr(problem, k) for k in keys}, "fix": _fix_of(problem, words)} for problem in problems]
    return as_json({"error": shown})


def _fix_of(problem: Problem, words: Sequence[str]) -> str | None:
    """Return the command that the remedy means: one that it names, or this one with a word replaced or added."""
    if named := _COMMAND.search(problem.remedy):
        return None if _IN_CAPITALS.search(named[1]) else named[1]
    if meant := _MEANT.search(problem.remedy):
        given = str(problem.value if problem.value is not None else problem.place.partition(" ")[0])
        fixed = _with_meant(words, given, meant[1])
        return _line(fixed) if fixed != list(words) else None
    if (flag := _FLAG.search(problem.remedy)) and not _IN_CAPITALS.search(flag[2] or ""):
        return _line(_with_flag(words, flag[1], flag[2]))
    return None


def _with_meant(words: Sequence[str], given: str, meant: str) -> list[str]:
    """Return the words with `meant` for `given`; `--set optim.lr=X` for `--lr` keeps its value, other phrases change none."""
    flag, blank, setting = meant.partition(" ")
    if not blank:
        return [_replaced(word, given, meant) for word in words]
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == given), len(words))
    _, equals, value = " ".join(words[at : at + 1]).partition("=")
    after = at + (1 if equals else 2)
    if flag != "--set" or after > len(words):
        return list(words)
    return [*words[:at], flag, f"{setting.partition('=')[0]}={value if equals else words[after - 1]}", *words[after:]]


def _replaced(word: str, given: str, meant: str) -> str:
    """Replace a whole argument, the value of `--flag=value`, or the key of `key=value`."""
    if word == given:
        return meant
    before, equals, after = word.partition("=")
    if equals and after == given:
        return f"{before}={meant}"
    return f"{meant}={after}" if equals and before == given else word


def _with_flag(words: Sequence[str], flag: str, value: str | None) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == flag:
            skip = value is not None
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return [*kept, flag, *([] if value is None else [value])]


def _line(words: Sequence[str]) -> str:
    return shlex.join(["tune-dml", *words])
