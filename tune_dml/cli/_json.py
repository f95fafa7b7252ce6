"""JSON of the command line: strict (no NaN), with a schema for each verb, and errors as objects."""

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
_SUGGESTION = re.compile(r"Did you mean '([^']+)'\?")
_FLAG = re.compile(r"(?:Use|Add|Pass) (--[a-z-]+)(?: ((?:[^\s,.]|\.(?=\w))+))?")
_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\.\.\.")  # placeholders that a reader must fill in


def as_json(value: Any) -> str:
    """Return strict JSON: numbers that are not finite are null."""
    return json.dumps(json_value(value), indent=1, default=str, allow_nan=False)


def schemas() -> dict[str, dict[str, object]]:
    """Return the JSON schema of each verb's `--json`; `error` has the schema of exit codes 1 and 2."""
    by_verb: dict[str, dict[str, object]] = json.loads(_SCHEMAS.read_text(encoding="utf-8"))
    return by_verb


def error_json(problems: Sequence[Problem], words: Sequence[str]) -> str:
    """Return problems as JSON, each with a command that avoids it if known; `words` is the command line."""
    keys = ("rule", "place", "value", "remedy")
    objects = [{**{k: getattr(problem, k) for k in keys}, "fix": _fix_of(problem, words)} for problem in problems]
    return as_json({"error": objects})


def _fix_of(problem: Problem, words: Sequence[str]) -> str | None:
    """Return the command of a remedy: the one it names, or `words` with an argument replaced or added."""
    if named := _COMMAND.search(problem.remedy):
        return None if _PLACEHOLDER.search(named[1]) else named[1]
    if suggestion := _SUGGESTION.search(problem.remedy):
        given = str(problem.value if problem.value is not None else problem.place.partition(" ")[0])
        fixed = _with_suggestion(words, given, suggestion[1])
        return _command_line(fixed) if fixed != list(words) else None
    if (flag := _FLAG.search(problem.remedy)) and not _PLACEHOLDER.search(flag[2] or ""):
        return _command_line(_with_flag(words, flag[1], flag[2]))
    return None


def _with_suggestion(words: Sequence[str], given: str, suggestion: str) -> list[str]:
    """Return `words` with `suggestion` for `given`; `--set optim.lr=X` for `--lr` keeps the typed value."""
    flag, space, setting = suggestion.partition(" ")
    if not space:
        return [_replace_word(word, given, suggestion) for word in words]
    start = next((i for i, word in enumerate(words) if word.partition("=")[0] == given), len(words))
    _, equals, value = " ".join(words[start : start + 1]).partition("=")
    end = start + (1 if equals else 2)
    if flag != "--set" or end > len(words):
        return list(words)
    return [*words[:start], flag, f"{setting.partition('=')[0]}={value if equals else words[end - 1]}", *words[end:]]


def _replace_word(word: str, given: str, suggestion: str) -> str:
    """Replace a whole argument, the value of `--flag=value`, or the key of `key=value`."""
    if word == given:
        return suggestion
    key, equals, value = word.partition("=")
    if equals and value == given:
        return f"{key}={suggestion}"
    return f"{suggestion}={value}" if equals and key == given else word


def _with_flag(words: Sequence[str], flag: str, value: str | None) -> list[str]:
    """Return `words` with a flag in place of the given one; `--set KEY=VALUE` replaces only the value of that key."""
    key, is_setting, _ = (value or "").partition("=")
    replaced: set[int] = set()
    for index, word in enumerate(words):
        name, equals, given = word.partition("=")
        given = given if equals else "".join(words[index + 1 : index + 2])
        if name == flag and (not is_setting or given.partition("=")[0] == key):
            replaced |= {index} if equals or value is None else {index, index + 1}
    return [*(word for index, word in enumerate(words) if index not in replaced), flag, *([value] if value else [])]


def _command_line(words: Sequence[str]) -> str:
    return shlex.join(["tune-dml", *words])
