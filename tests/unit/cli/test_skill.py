"""The skill's worked loop is made of commands that the command line takes."""

import shlex

import pytest
import typer

from tune_dml.cli import application
from tune_dml.cli.skill import LOOP

LINES = [shlex.split(line, comments=True) for line in LOOP.splitlines()]


@pytest.mark.parametrize("words", LINES, ids=lambda words: words[1])
def test_each_line_of_the_loop_is_a_command_with_json(words):
    program, verb, *rest = words
    context = typer.main.get_command(application()).commands[verb].make_context(verb, rest)
    assert program == "tune-dml"
    assert context.params["as_json"] is not False


def test_a_line_with_an_unknown_flag_would_be_noticed():
    with pytest.raises(Exception, match="no-such-flag"):
        typer.main.get_command(application()).commands["plan"].make_context("plan", ["sec_rho", "--no-such-flag"])
