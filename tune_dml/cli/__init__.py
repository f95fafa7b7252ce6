"""The command line: each module with an `ORDER` (its position in the help) is a command of the same name.

The function, or Typer application, with the module's name declares the command. `EXAMPLES` end its help;
`BARE_SHOWS_HELP` shows the help when no argument is given. Heavy packages are imported inside the function:
`tune-dml --help` loads neither torch nor Ray.

Exit codes: 0 done, 1 the input is wrong or Ray cannot start, 2 wrong usage, 3 finished with failed cells, 130
interrupted and resumable.
"""

import errno
import inspect
import io
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer

from trainables.errors import ConfigError, Problem
from tune_dml import __version__
from tune_dml.cli._command import Command, Group, epilog
from tune_dml.cli._json import error_json

__all__ = ["main", "print_problems"]

# Subjects of operating system errors without a file name.
_UNNAMED_SUBJECTS = {errno.ENOENT: "working directory", errno.ENOSPC: "standard output"}
_SUMMARY_LENGTH = 62  # length of a command's summary in the help


def main() -> None:
    """Run the command line; print known errors as one message on standard error, with exit code 1."""
    if not sys.warnoptions:  # warnings of libraries do not help users
        warnings.simplefilter("ignore")
        logging.getLogger("optuna").setLevel(logging.ERROR)
    _open_output()
    words = sys.argv[1:]
    try:
        _run(words)
    except OSError as error:
        subject = error.filename or _UNNAMED_SUBJECTS.get(error.errno or 0)
        if subject is None:
            raise
        is_printable = error.filename is not None or error.errno != errno.ENOSPC
        if "--json" in words and is_printable:
            print_problems(ConfigError(Problem(str(subject), str(error.strerror).lower())), words)
        else:
            sys.stderr.write(f"{subject}: {error.strerror}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _run(words: Sequence[str]) -> None:
    try:
        application(words[0] if words else None)(prog_name="tune-dml")
    except ConfigError as error:
        print_problems(error, words)
        sys.exit(1)


def print_problems(error: ConfigError, words: Sequence[str]) -> None:
    """Print an error's problems on standard error, or as JSON on standard output with `--json`."""
    from tune_dml.record.origin.commands import with_program, with_storage

    problems = [with_storage(problem, words) for problem in error.problems]
    if "--json" in words:
        typer.echo(error_json(problems, words))
        return
    text = "".join(f"{problem}\n" for problem in problems)
    sys.stderr.write((f"{len(problems)} problems:\n" if len(problems) > 1 else "") + with_program(text))


def _open_output() -> None:
    """Replace closed standard streams; let the open ones replace characters that their encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if name == "stderr" else "replace")


def application(verb: str | None = None) -> typer.Typer:
    """Return the application with all commands, or, to start sooner, only with the command `verb` if it exists."""
    app = typer.Typer(
        name="tune-dml",
        cls=Group,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    names = [info.name for info in iter_modules(__path__) if info.name[0] != "_"]
    modules = [import_module(f"{__name__}.{name}") for name in ([verb] if verb in names else names)]
    verbs = [module for module in modules if hasattr(module, "ORDER")]
    for module in sorted(verbs, key=lambda module: int(module.ORDER)):
        name = module.__name__.rpartition(".")[2]
        command = getattr(module, name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            examples, bare_help = epilog(getattr(module, "EXAMPLES", "")), getattr(module, "BARE_SHOWS_HELP", False)
            first = re.split(r"[:;.](?=\s|$)", inspect.getdoc(command) or "")[0]
            summary = textwrap.shorten(first, _SUMMARY_LENGTH, placeholder=" ...")
            app.command(name, cls=Command, short_help=summary, epilog=examples, no_args_is_help=bare_help)(command)
    app.callback(invoke_without_command=True)(_main_options)
    return app


def _main_options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the installed version.")] = False,
) -> None:
    """Does the knob of a metric learning loss matter on your data? Sweep it, and read a tested answer."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
