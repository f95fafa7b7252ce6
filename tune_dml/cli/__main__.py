"""The command line as a program: `tune-dml`, or `python -m tune_dml.cli` where no script is installed."""

import gc
import os
import sys

from trainables.errors import ConfigError
from tune_dml.cli import main, print_problems
from tune_dml.cli._command import normalize_flags
from tune_dml.cli._supervisor import SUPERVISED, TRAINING, attach_to_supervisor, supervise
from tune_dml.cli._without_torch import without_torch
from tune_dml.running.process import RELAXED_THRESHOLD

_RAY = {"ray", "grpc"}
"""Packages whose exceptions tell that the driver's Ray node is lost, and not of an error of the program."""


def program() -> None:
    """Run a verb; a training verb runs in its own process."""
    gc.set_threshold(RELAXED_THRESHOLD)
    words = sys.argv[1:] = normalize_flags(sys.argv[1:])
    if SUPERVISED not in os.environ and words[:1] and words[0] in TRAINING and not {"-h", "--help"} & set(words):
        try:
            sys.exit(supervise(words))
        except ConfigError as error:
            print_problems(error, words)
            sys.exit(1)
    report_code = attach_to_supervisor() if SUPERVISED in os.environ else lambda code: None
    try:
        with without_torch(words):
            main()
    except SystemExit as end:
        report_code(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _RAY:
            report_code(None)
        raise
    finally:
        gc.freeze()  # collecting garbage at exit would take two seconds
    report_code(0)


if __name__ == "__main__":
    program()
