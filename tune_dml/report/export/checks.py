"""Conditions on the verdicts, for a pipeline: `sensitive(regularizer.rho) and not at_edge`.

    condition   term { "and" term }
    term        [ "not" ] word [ "(" argument ")" ]

`_WORDS` lists the words. An argument is a knob (path, last name or symbol) or, for `better` and `worse`, a cell. A word
without an argument holds if it holds for any knob or cell. Conditions are evaluated on verdicts.json alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainables.errors import Problem, nearest

Verdicts = Mapping[str, Any]

_ARGUMENT = r"(?P<argument>(?:[^()]|\([^()]*\))*?)"  # labels may contain parentheses: `SoftTriple (our)`
_TERM = re.compile(rf"\s*(?P<negated>not\s+)?(?P<word>[a-z_]+)\s*(?:\(\s*{_ARGUMENT}\s*\))?\s*")


@dataclass(frozen=True)
class _Term:
    """One term of a condition."""

    text: str
    word: str
    argument: str
    negated: bool


def _knob_test(part: str, verdict: str) -> Callable[[Verdicts, str], bool]:
    """Return a test whether a knob has a verdict in one part of its verdicts, such as `sensitivity`."""

    def holds(verdicts: Verdicts, argument: str) -> bool:
        knobs = [knob for knob in verdicts["knobs"] if not argument or _is_named(knob, argument)]
        return any(knob[part] is not None and knob[part]["verdict"] == verdict for knob in knobs)

    return holds


def _baseline_test(verdict: str) -> Callable[[Verdicts, str], bool]:
    """Return a test whether a cell has a verdict against the baseline."""

    def holds(verdicts: Verdicts, argument: str) -> bool:
        rows = (verdicts["baseline"] or {"rows": ()})["rows"]
        return any(row["verdict"] == verdict for row in rows if not argument or row["label"] == argument)

    return holds


def _is_named(knob: Verdicts, argument: str) -> bool:
    return argument in {knob["path"], knob["path"].rpartition(".")[2], knob.get("symbol")}


_WORDS: dict[str, tuple[Callable[[Verdicts, str], bool], str]] = {
    "sensitive": (_knob_test("sensitivity", "sensitive"), "knob"),
    "insensitive": (_knob_test("sensitivity", "insensitive"), "knob"),
    "undecided": (_knob_test("sensitivity", "undecided"), "knob"),
    "at_edge": (_knob_test("optimum", "edge"), "knob"),
    "interior": (_knob_test("optimum", "interior"), "knob"),
    "better": (_baseline_test("better"), "cell"),
    "worse": (_baseline_test("worse"), "cell"),
    "still_gaining": (
        lambda verdicts, name: any(
            knob["still_gaining"] for knob in verdicts["knobs"] if not name or _is_named(knob, name)
        ),
        "knob",
    ),
    "failed": (lambda verdicts, _: bool(verdicts["failures"]), ""),
    "complete": (lambda verdicts, _: not {"running", "missing"} & set(verdicts["counts"]), ""),
    "confirmed": (lambda verdicts, _: (verdicts["confirmation"] or {}).get("verdict") == "holds", ""),
}
"""Test of each word on the verdicts, and the kind of its argument: `knob`, `cell`, or empty for none."""


def condition_problems(conditions: Sequence[str]) -> list[Problem]:
    """Return the problems of conditions that cannot be parsed."""
    return [problem for text in conditions for term in _split(text) for problem in _term_problems(term)]


def argument_problems(conditions: Sequence[str], verdicts: Verdicts) -> list[Problem]:
    """Return the problems of arguments that name no knob or cell of the sweep."""
    names = {
        "knob": [knob["path"] for knob in verdicts["knobs"]],
        "cell": [cell["label"] for cell in verdicts["cells"]],
    }
    problems = []
    for term in (term for text in conditions for term in _terms(text)):
        kind, argument = _WORDS[term.word][1], term.argument
        allowed = names.get(kind, [])
        is_knob = kind == "knob" and any(_is_named(knob, argument) for knob in verdicts["knobs"])
        if argument and not is_knob and argument not in allowed:
            rule = f"{term.word}(...) takes a {kind} of the sweep"
            problems.append(Problem("--check", rule, argument, nearest(argument, allowed, what=kind)))
    return problems


def unmet(conditions: Sequence[str], verdicts: Verdicts) -> list[str]:
    """Return the terms that do not hold, as written."""
    return [
        term.text
        for text in conditions
        for term in _terms(text)
        if _WORDS[term.word][0](verdicts, term.argument) == term.negated
    ]


def _split(text: str) -> list[str]:
    """Split a condition into terms; an `and` in parentheses is part of a name."""
    terms, depth, begin = [], 0, 0
    for match in re.finditer(r"[()]|\band\b", text):
        if match[0] != "and":
            depth += 1 if match[0] == "(" else -1
        elif depth == 0:
            terms.append(text[begin : match.start()])
            begin = match.end()
    return [*terms, text[begin:]]


def _terms(text: str) -> list[_Term]:
    parts = [(part.strip(), _TERM.fullmatch(part)) for part in _split(text)]
    return [
        _Term(part, match["word"], match["argument"] or "", bool(match["negated"])) for part, match in parts if match
    ]


def _term_problems(text: str) -> list[Problem]:
    match = _TERM.fullmatch(text)
    example = "Example: --check 'sensitive(regularizer.rho) and not at_edge'."
    if match is None:
        return [
            Problem("--check", "a condition is [not] word or word(argument), joined by `and`", text.strip(), example)
        ]
    word = match["word"]
    if word not in _WORDS:
        return [Problem("--check", "the word must be known", word, nearest(word, list(_WORDS), what="word"))]
    if match["argument"] and not _WORDS[word][1]:
        return [Problem("--check", f"{word} takes no argument", match["argument"], f"Write {word}.")]
    return []
