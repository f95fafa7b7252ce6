"""The command line: a module of this package that has an `ORDER`, its place in the help, is a verb of its own name.

Its `EXAMPLES`, where it has some, end its help; with `BARE_SHOWS_HELP` the verb without a word more shows its help. The
function (or Typer application) that bears the module's name says what the verb does and takes. Heavy packages are imported
inside it: `tune-dml --help` loads neither torch nor Ray.

Exit codes: 0 done, 1 the input is wrong, 2 usage, 3 finished with failed cells, 130 interrupted and resumable.
"""

from __future__ import annotations

import errno
import inspect
import io
import logging
import os
import re
import sys
import textwrap
import warnings
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer

from tune_dml.cli._command import Command, epilog

__all__ = ["main"]

# Of errors that name no file: what they are about.
_NAMELESS = {errno.ENOENT: "working directory", errno.ENOSPC: "standard output"}
_SHORT = 62  # characters of a verb's line in the help of all


def main() -> None:
    """Run the command line; known errors are one message on standard error and exit code 1."""
    from trainables.errors import ConfigError

    if not sys.warnoptions:  # what a library warns its callers of is nothing that a user can mend
        warnings.simplefilter("ignore")
        logging.getLogger("optuna").setLevel(logging.ERROR)
    _open_output()
    try:
        application()(prog_name="tune-dml")
    except ConfigError as error:
        from tune_dml.record.commands import as_typed_here

        many = len(error.problems) > 1
        sys.stderr.write((f"{len(error.problems)} problems:\n" if many else "") + as_typed_here(f"{error}\n"))
        sys.exit(1)
    except OSError as error:
        place = error.filename or _NAMELESS.get(error.errno or 0)
        if place is None:
            raise
        sys.stderr.write(f"{place}: {error.strerror}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _open_output() -> None:
    """Output goes nowhere where it is closed; letters that its encoding lacks are replaced."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if name == "stderr" else "replace")


def application() -> typer.Typer:
    """The command line with every verb that is there."""
    app = typer.Typer(
        name="tune-dml",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__) if info.name[0] != "_"]
    verbs = [module for module in modules if hasattr(module, "ORDER")]
    for module in sorted(verbs, key=lambda module: int(module.ORDER)):
        name = module.__name__.rpartition(".")[2]
        verb = getattr(module, name)
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name)
        else:
            examples, bare = getattr(module, "EXAMPLES", ""), getattr(module, "BARE_SHOWS_HELP", False)
            short = textwrap.shorten(re.split("[:;.]", inspect.getdoc(verb) or "")[0], _SHORT, placeholder=" ...")
            app.command(name, cls=Command, short_help=short, epilog=epilog(examples), no_args_is_help=bare)(verb)
    app.callback(invoke_without_command=True)(_whole)
    return app


def _whole(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the installed version.")] = False,
) -> None:
    """Does the knob of a metric learning loss matter on your data? Sweep it, and read a tested answer."""
    if version:
        from tune_dml import __version__

        typer.echo(__version__)
        raise typer.Exit
