"""A terminal that a shell shares out: nothing is drawn over what it says."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tune_dml.running.terminal import is_ours

STOPPED = """
import signal, time
from tune_dml.running.terminal import told_of_ctrl_z
with told_of_ctrl_z(lambda: print("taken away", flush=True), lambda: print("drawn again", flush=True)):
    print("drawn", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("front", "ours"), [(os.getpgrp(), True), (os.getpgid(os.getppid()), True), (-1, True), (1, False)]
)
def test_a_picture_is_for_the_foreground(monkeypatch, front, ours):
    """The group of a job is that of who began it, where the driver has one of its own."""
    monkeypatch.setattr(os, "tcgetpgrp", lambda number: front)
    assert is_ours(SimpleNamespace(fileno=lambda: 1)) is ours


def test_what_is_no_terminal_is_nobody_elses(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert is_ours(file)


@pytest.mark.parametrize("by_a_shell", [True, False])
def test_ctrl_z_takes_the_picture_away_first(by_a_shell):
    """In a session of its own nobody could set it going again, and the kernel lets no Ctrl-Z stop it."""
    where = {"process_group": 0} if by_a_shell else {"start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True, **where) as process:
        assert process.stdout.readline() == "drawn\n"
        process.send_signal(signal.SIGTSTP)
        if by_a_shell:
            assert process.stdout.readline() == "taken away\n"
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "drawn again\n"
        process.kill()
        assert process.stdout.read() == ""
