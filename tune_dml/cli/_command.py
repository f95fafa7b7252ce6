"""Commands for Click: the help ends with examples, flags of other tools suggest ours, usage errors have a JSON form."""

import contextlib
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
import typer.core

from trainables.errors import Problem
from tune_dml.cli._json import error_json

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # Click's UsageError; Typer may bundle Click
_CHOICE = re.compile(r"'(?P<given>.*)' is not one of (?P<known>'.*')\.")
_UNKNOWN_VERB = re.compile(r"No such command '(?P<given>.*?)'\.")
_MISSING = re.compile(r"Missing argument '(?P<name>.*?)'")
_UNDERSCORED = re.compile(r"\A--[a-z]+(_[a-z]+)+(?==|$)")

_FLAGS_OF_OTHER_TOOLS = {
    "--n-trials": "--num-samples",
    "--count": "--num-samples",
    "--sampler": "--search",
    "--pruner": "--stopping",
    "--study-name": "--name",
    "--timeout": "--time-budget",
    "--time-budget-s": "--time-budget",
    "--n-jobs": "--max-concurrent",
    "--max-concurrent-trials": "--max-concurrent",
    "--storage-path": "--storage",
    "--experiment-name": "--experiment",
    "--project": "--experiment",
    "--data-path": "--data-root",
    "--loss": "--set loss.name=NAME",
    "--arch": "--set model.backbone=NAME",
    "--backbone": "--set model.backbone=NAME",
    "--embed-dim": "--set model.embedding_dim=N",
    "--embedding-dim": "--set model.embedding_dim=N",
    "--batch-size": "--set batch.batch_size=N",
    "--samples-per-class": "--set batch.instances_per_class=M",
    "--lr": "--set optim.lr=X",
    "--steps": "--set training.steps=N",
    "--epochs": "--set training.epochs=N",
}
"""Flags of Optuna, Ray Tune, W&B, MLflow and common scripts -> ours."""
_TYPE_RULES = {
    "a valid integer": "must be one whole number, such as 5",
    "a valid number": "must be one number, such as 0.5",
}
"""Types in pydantic's messages -> our rules."""
_VERBS_INSTEAD = {"--dry-run": "tune-dml plan", "--resume": "tune-dml resume"}

_DASHES_HINT = "; put the command for the cluster after `--`: tune-dml submit cluster.yaml -- sweep ..."


def normalize_flags(words: Sequence[str]) -> list[str]:
    """Return the arguments with `--data-root` for `--data_root`; values stay unchanged."""
    return [_UNDERSCORED.sub(lambda flag: flag[0].replace("_", "-"), word, count=1) for word in words]


class Command(typer.core.TyperCommand):
    """A command of the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Click does, but refuse empty paths and suggest `--gpus-per-worker` for `--gpus`."""
        argv = list(args)  # the parser empties `args`
        try:
            words = list(super().parse_args(ctx, args))
            options: list[Any] = list(self.params)
            for option in options:
                is_empty = any(f"{flag}=" in argv or (flag, "") in pairwise(argv) for flag in option.opts)
                if is_empty and ctx.params.get(option.name) == Path():  # as if it were the current folder
                    raise typer.BadParameter("must be a path, but it is empty.", ctx=ctx, param=option)
            return words
        except USAGE_ERROR as raised:
            error: Any = raised
            error.message = _reword(error.message)
            if (unknown_flag := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
                flags = [flag for option in self.params for flag in option.opts]
                completions = [flag for flag in flags if flag.startswith(f"{unknown_flag}-")]
                ours = _FLAGS_OF_OTHER_TOOLS.get(unknown_flag, "")
                if self.name == "submit" and "--" not in argv:
                    error.message += _DASHES_HINT
                replacement = ours if ours.partition(" ")[0] in flags else _VERBS_INSTEAD.get(unknown_flag)
                similar = [*completions, *difflib.get_close_matches(unknown_flag, flags)]
                error.possibilities = [replacement] if replacement else list(dict.fromkeys(similar))
            raise


class Group(typer.core.TyperGroup):
    """The command line; with --json, it also prints a usage error as an object."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before the verb."""
        with _errors_in_json():
            return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Find the verb and run it."""
        with _errors_in_json():
            return super().invoke(ctx)


@contextlib.contextmanager
def _errors_in_json() -> Iterator[None]:
    """Print the object of a usage error if the command line has --json; Click prints the text."""
    try:
        yield
    except USAGE_ERROR as error:
        if "--json" in sys.argv:
            typer.echo(error_json([_problem_of(error)], sys.argv[1:]))
        raise


def _problem_of(error: Any) -> Problem:
    """Return a usage error as a problem; the remedy for an unknown verb or choice is the nearest known one."""
    message = error.message or error.format_message()
    place = getattr(error, "option_name", None) or _name_of(getattr(error, "param", None))
    if choice := _CHOICE.fullmatch(message):
        choices = re.findall(r"'([^']*)'", choice["known"])
        return Problem(place, "unknown choice", choice["given"], known=choices, kind="choice")
    if verb := _UNKNOWN_VERB.match(message):
        return Problem("VERB", "unknown verb", verb["given"], known=error.ctx.command.commands, kind="verb")
    missing_argument = _MISSING.match(message)
    possibilities = getattr(error, "possibilities", None)
    remedy = f"Did you mean '{possibilities[0]}'?" if possibilities else ""
    return Problem(place or (missing_argument["name"] if missing_argument else "usage"), message, None, remedy)


def _name_of(param: Any) -> str:
    """Return an option's flag or an argument's name; empty for None."""
    if param is None:
        return ""
    flags = [flag for flag in param.opts if flag.startswith("--")]
    return str(flags[0] if flags else param.metavar or param.name)


def _reword(message: str) -> str:
    """Reword a message of pydantic: `must be one whole number, such as 5`."""
    message = message.removeprefix("Value error, ")
    rule = next((ours for theirs, ours in _TYPE_RULES.items() if message.startswith(f"Input should be {theirs}")), None)
    return rule or message.replace("Input should be", "must be")


def epilog(examples: str) -> str:
    """Format examples for the end of the help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()) if examples else ""
