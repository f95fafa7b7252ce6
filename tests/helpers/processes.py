"""Python in a process of its own, for what depends on imports, on variables of the shell or on its end."""

import os
import subprocess
import sys


def printed_by(code, *arguments, **options):
    """Return the standard output of a process that runs `code`, which must succeed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def die(*_):
    """End this process as if killed for lack of memory; here, a new process imports nothing else to find it."""
    os._exit(9)
