"""Conditions for a pipeline: what they mean, and what is said of one that cannot be read."""

import json
import re

import pytest

from tune_dml.report.export.checks import _WORDS, argument_problems, condition_problems, unmet


@pytest.fixture(scope="module")
def verdicts(steep):
    """Those of a sweep, and of one more cell, whose name is of several words."""
    found = json.loads(steep.files.verdicts.read_text())
    found["cells"].append(found["cells"][-1] | {"label": "SoftTriple (our) and more"})
    return found


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("sensitive(regularizer.rho)", True),
        ("sensitive(rho) and at_edge", True),
        ("not sensitive", False),
        ("not at_edge", False),
        ("at_edge(rho) and not interior and complete and not failed", True),
        ("better(rho=0.01) and not worse", True),
        ("insensitive or_so", None),
        ("confirmed", False),
        ("not better(SoftTriple (our) and more) and complete", True),
        ("still_gaining", True),
    ],
)
def test_a_condition_holds_or_not(verdicts, condition, holds):
    if holds is None:
        assert condition_problems([condition])
        return
    assert condition_problems([condition]) == []
    assert argument_problems([condition], verdicts) == []
    assert (unmet([condition], verdicts) == []) is holds


def test_what_does_not_hold_is_named(verdicts):
    assert unmet(["sensitive(rho) and not at_edge", "not better"], verdicts) == ["not at_edge", "not better"]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("sensitve(rho)", "Did you mean 'sensitive'"),
        ("sensitive(rho", r"\[not\] word or word\(argument\)"),
        ("", r"\[not\] word or word\(argument\)"),
        ("__import__('os')", "the word must be known"),
        ("complete(rho)", "complete takes no argument"),
        ("sensitive and ", r"\[not\] word"),
        ("sensitive(rho) or better(x)", r"\[not\] word"),
        ("sensitive) and complete", r"\[not\] word"),
    ],
)
def test_what_cannot_be_read_is_refused(condition, said):
    (problem, *_) = condition_problems([condition])
    assert re.search(said, str(problem))


def test_unknown_knobs_and_cells_are_refused(verdicts):
    problems = argument_problems(["sensitive(regularizer.roh)", "better(rho=7)"], verdicts)
    assert [str(problem).count("of the sweep") for problem in problems] == [1, 1]
    assert "regularizer.rho" in str(problems[0])


def test_every_word_can_be_judged_on_an_empty_sweep(broken):
    verdicts = json.loads(broken.files.verdicts.read_text())
    for word in _WORDS:
        assert unmet([word], verdicts) in ([], [word])
