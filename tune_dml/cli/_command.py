"""A command for Click: the help ends with examples, and flags of other tools suggest ours."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
import typer.core

from trainables.errors import Problem
from tune_dml.cli._json import error_json

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # Click's UsageError; Typer may bundle Click
_UNDERSCORED = re.compile(r"\A--[a-z]+(_[a-z]+)+(?==|$)")

_OF_OTHERS = {
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
_KINDS = {
    "a valid integer": "must be one whole number, such as 5",
    "a valid number": "must be one number, such as 0.5",
}
"""Types in pydantic's messages -> our rules."""
_OTHER_VERBS = {"--dry-run": "tune-dml plan", "--resume": "tune-dml resume"}

_BEHIND_DASHES = "; put the command for the cluster after `--`: tune-dml submit cluster.yaml -- sweep ..."


def dashed(words: Sequence[str]) -> list[str]:
    """Return the arguments with `--data_root` as `--data-root`; values stay unchanged."""
    return [_UNDERSCORED.sub(lambda flag: flag[0].replace("_", "-"), word, count=1) for word in words]


class Command(typer.core.TyperCommand):
    """A command of the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Click does; suggest `--gpus-per-worker` for `--gpus` and `--num-samples` for `--n-trials`."""
        typed = list(args)  # the parser takes the words out of `args`
        try:
            return list(super().parse_args(ctx, args))
        except USAGE_ERROR as raised:
            error: Any = raised
            error.message = _plain(error.message)
            if (wrong := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
                flags = [flag for option in self.params for flag in option.opts]
                longer = {flag for flag in flags if flag.startswith(f"{wrong}-")}
                ours = _OF_OTHERS.get(wrong, "")
                if self.name == "submit" and "--" not in typed:
                    error.message += _BEHIND_DASHES
                meant = ours if ours.partition(" ")[0] in flags else _OTHER_VERBS.get(wrong)
                error.possibilities = [meant] if meant else sorted({*longer, *(error.possibilities or [])})
            if "--json" in typed:
                place = getattr(error, "option_name", None) or _name_of(getattr(error, "param", None)) or "usage"
                remedy = f"Did you mean '{error.possibilities[0]}'?" if getattr(error, "possibilities", None) else ""
                problem = Problem(place, error.message or error.format_message(), None, remedy)
                typer.echo(error_json([problem], sys.argv[1:]))
            raise


def _name_of(param: Any) -> str:
    """Return an option's flag, or how an argument is called; empty for None."""
    if param is None:
        return ""
    flags = [flag for flag in param.opts if flag.startswith("--")]
    return str(flags[0] if flags else param.metavar or param.name)


def _plain(message: str) -> str:
    """Return a message of pydantic as one of ours: `must be one whole number, such as 5`."""
    message = message.removeprefix("Value error, ")
    kind = next((ours for theirs, ours in _KINDS.items() if message.startswith(f"Input should be {theirs}")), None)
    return kind or message.replace("Input should be", "must be")


def epilog(examples: str) -> str:
    """Format examples for the end of the help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()) if examples else ""
