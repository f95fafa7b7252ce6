"""The command line, built once, because Typer needs longer for it than most verbs need to run."""

from functools import cache

from typer.main import get_command

from tune_dml.cli import application


@cache
def whole_command():
    return get_command(application())
