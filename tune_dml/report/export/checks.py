"""Conditions on the verdicts, for a pipeline: `sensitive(regularizer.rho) and not at_edge`.

    condition   term { "and" term }
    term        [ "not" ] word [ "(" argument ")" ]

`_WORDS` lists the words. An argument is a knob (path, last name or symbol) or, for `better` and `worse`, a cell. A word
without an argument holds if it holds for any knob or cell. Conditions are evaluated on verdicts.json alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainables.errors import Problem

Verdicts = Mapping[str, Any]

_ARGUMENT = r"(?P<argument>(?:[^()]|\([^()]*\))*?)"  # labels may contain parentheses: `SoftTriple (our)`
_TERM = re.compile(rf"\s*(?P<negated>not\s+)?(?P<word>[a-z_]+)\s*(?:\(\s*{_ARGUMENT}\s*\))?\s*")


def _knob_test(part: str, verdict: str) -> Callable[[Verdicts, str], bool]:
    """Return a test whether a knob has a verdict in one part of its verdicts, such as `sensitivity`."""
    return lambda verdicts, name: any((knob[part] or {}).get("verdict") == verdict for knob in _knobs(verdicts, name))


def _baseline_test(verdict: str) -> Callable[[Verdicts, str], bool]:
    """Return a test whether a cell has a verdict against the baseline."""
    return lambda verdicts, label: any(
        row["verdict"] == verdict
        for row in (verdicts["baseline"] or {"rows": ()})["rows"]
        if label in {"", row["label"]}
    )


def _knobs(verdicts: Verdicts, name: str) -> list[Verdicts]:
    return [knob for knob in verdicts["knobs"] if not name or _is_named(knob, name)]


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
    "still_gaining": (lambda verdicts, name: any(knob["still_gaining"] for knob in _knobs(verdicts, name)), "knob"),
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
    names = {"knob": [knob["path"] for knob in verdicts["knobs"]], "cell": [c["label"] for c in verdicts["cells"]]}
    problems = []
    for term in _terms(conditions):
        kind, argument = _WORDS[term["word"]][1], term["argument"]
        allowed = names.get(kind, [])
        is_knob = kind == "knob" and any(_is_named(knob, argument) for knob in verdicts["knobs"])
        if argument and not is_knob and argument not in allowed:
            rule = f"{term['word']}(...) takes a {kind} of the sweep"
            problems.append(Problem("--check", rule, argument, known=allowed, kind=kind))
    return problems


def unmet(conditions: Sequence[str], verdicts: Verdicts) -> list[str]:
    """Return the terms that do not hold, as written."""
    return [
        term[0].strip()
        for term in _terms(conditions)
        if _WORDS[term["word"]][0](verdicts, term["argument"] or "") == bool(term["negated"])
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


def _terms(conditions: Sequence[str]) -> list[re.Match[str]]:
    return [match for text in conditions for term in _split(text) if (match := _TERM.fullmatch(term))]


def _term_problems(text: str) -> list[Problem]:
    match = _TERM.fullmatch(text)
    if match is None:
        rule = "a condition is [not] word or word(argument), joined by `and`"
        example = "Example: --check 'sensitive(regularizer.rho) and not at_edge'."
        return [Problem("--check", rule, text.strip(), example)]
    word = match["word"]
    if word not in _WORDS:
        return [Problem("--check", "the word must be known", word, known=_WORDS, kind="word")]
    if match["argument"] and not _WORDS[word][1]:
        return [Problem("--check", f"{word} takes no argument", match["argument"], f"Write {word}.")]
    return []
