"""The command line as a program: `tune-dml`, or `python -m tune_dml.cli` where no script is installed."""

import contextlib
import gc
import os
import sys
import threading
import time

from trainables.errors import ConfigError
from tune_dml.cli import main, print_problems
from tune_dml.cli._command import normalize_flags
from tune_dml.cli._supervisor import SUPERVISED, TRAINING, attach_to_supervisor, supervise
from tune_dml.cli._without_torch import without_torch
from tune_dml.running.process import RELAXED_THRESHOLD

_LAST_STREAM = 2
_EXIT_SECONDS = 10.0  # seconds that threads of a user's method may still run when a verb has ended
_RAY = {"ray", "grpc"}
"""Packages whose exceptions tell that the driver's Ray node is lost, and not of an error of the program."""


def program() -> None:
    """Run a verb; a training verb runs in its own process."""
    gc.set_threshold(RELAXED_THRESHOLD)
    occupy_standard_streams()
    words = sys.argv[1:] = normalize_flags(sys.argv[1:])
    if SUPERVISED not in os.environ and words[:1] and words[0] in TRAINING and not {"-h", "--help"} & set(words):
        try:
            sys.exit(supervise(words))
        except ConfigError as error:
            print_problems(error, words)
            sys.exit(1)
    end_with_code = attach_to_supervisor() if SUPERVISED in os.environ else _end_within_seconds
    try:
        with without_torch(words):
            main()
    except SystemExit as end:
        end_with_code(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _RAY:
            end_with_code(None)
        raise
    finally:
        gc.freeze()  # collecting garbage at exit would take two seconds
    end_with_code(0)


def _end_within_seconds(code: int | None) -> None:
    """End the program soon with this code, or 1 for None, if a thread is left that Python would wait for at exit.

    Such a thread may belong to a user's method, and may never end.
    """

    def end() -> None:
        time.sleep(_EXIT_SECONDS)
        names = ", ".join(thread.name for thread in _remaining_threads())
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.write(f"Ended without waiting for threads that still run: {names}\n")
            sys.stderr.flush()
        os._exit(1 if code is None else code)

    if _remaining_threads():
        threading.Thread(target=end, daemon=True).start()


def _remaining_threads() -> list[threading.Thread]:
    every = threading.enumerate()
    return [thread for thread in every if not thread.daemon and thread is not threading.main_thread()]


def occupy_standard_streams() -> None:
    """Open the null device for standard streams that are closed (`>&-`).

    Otherwise the next pipe or file would get their number, and with it the printed text.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        os.set_inheritable(number, True)
    os.close(number)


if __name__ == "__main__":
    program()
