"""The verbs of the command line. Heavy packages are imported inside them: `tune-dml --help` loads neither torch nor Ray.

Exit codes: 0 done, 1 the input is wrong, 2 usage, 3 finished with failed cells, 130 interrupted and resumable.
"""

from __future__ import annotations

import sys

import typer

from tune_dml.cli import data, look, work

__all__ = ["app", "main"]

app = typer.Typer(
    name="tune-dml",
    help="Does the knob of a metric learning loss matter on your data? Sweep it, and read a tested answer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    look.spaces,
    look.methods,
    look.plan,
    work.sweep,
    work.resume,
    work.extend,
    look.status,
    look.compare,
    look.report,
    work.train,
    look.doctor,
    look.version,
):
    app.command()(verb)
app.add_typer(data.datasets, name="datasets")


def main() -> None:
    """Run the command line; known errors are one message on standard error and exit code 1."""
    from trainables.errors import ConfigError

    try:
        app()
    except ConfigError as error:
        many = len(error.problems) > 1
        sys.stderr.write((f"{len(error.problems)} problems:\n" if many else "") + f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
