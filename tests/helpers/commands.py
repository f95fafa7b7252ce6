"""The command line, put together once: that takes Typer longer than most verbs take."""

from functools import cache

from typer.main import get_command

from tune_dml.cli import application


@cache
def whole_command():
    return get_command(application())
