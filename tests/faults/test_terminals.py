"""A sweep loses its output: closed pipe, full disk of the log, closed or stopping terminal."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest
from helpers.clusters import children_of
from helpers.sweeps import COMMAND, SweepProcess, outcome, sweep_file, table

from tune_dml.record.ledger import read_events

pytestmark = pytest.mark.slow


@pytest.fixture
def words(cache_dir):
    return ["sweep", sweep_file(), "--name", "toy", "--cache-dir", str(cache_dir)]


@pytest.fixture
def assert_unaffected(undisturbed):
    """Check the table and the report of the sweep; return its folder."""

    def check():
        folder = Path("sweeps/toy").absolute()
        assert table(folder) == undisturbed
        assert (folder / "report" / "report.html").exists()
        return folder

    return check


def test_a_sweep_survives_a_closed_output_pipe(words, assert_unaffected, found):
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as sweep:
        sweep.stdout.readline()
        sweep.stdout.close()
        assert sweep.wait(timeout=200) == 0
    found("the pipe of its output is closed", {**outcome(assert_unaffected(), time.time()), "seconds": 0.0})


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_sweep_runs_with_standard_streams_closed(words, assert_unaffected, closed):
    subprocess.run(["bash", "-c", f'"$@" {closed}', "--", *COMMAND, *words], check=True, timeout=200)
    assert_unaffected()


def test_a_sweep_survives_a_full_disk_of_its_output(words, assert_unaffected, found):
    with Path("/dev/full").open("w") as full:
        sweep = subprocess.run(
            [*COMMAND, *words], check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=200
        )
    assert (sweep.returncode, sweep.stderr) == (1, "standard output: No space left on device\n")  # of the table alone
    found("the disk of its output is full", {**outcome(assert_unaffected(), time.time()), "seconds": 0.0})


def in_a_terminal(words, stops_background):
    """Start a sweep in a terminal; return it with our end of the terminal."""
    ours, theirs = pty.openpty()
    if stops_background:
        flags = termios.tcgetattr(theirs)
        flags[3] |= termios.TOSTOP
        termios.tcsetattr(theirs, termios.TCSANOW, flags)
    sweep = subprocess.Popen(
        [*COMMAND, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no thread runs here
    )
    os.close(theirs)
    return sweep, ours


def read_until(terminal, condition, seconds=200):
    """Read and discard the output, as a terminal does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                os.read(terminal, 1 << 16)
            except OSError:  # the other end is closed
                time.sleep(0.1)


def test_a_sweep_runs_in_a_terminal_with_tostop(words, assert_unaffected, found):
    """`stty tostop` affects the driver, which has another process group."""
    sweep, terminal = in_a_terminal(words, stops_background=True)
    try:
        read_until(terminal, lambda: sweep.poll() is not None)
    finally:
        for pid in [*children_of(sweep.pid), sweep.pid] if sweep.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
    assert sweep.returncode == 0
    found("a terminal with `stty tostop`", {**outcome(assert_unaffected(), time.time()), "seconds": 0.0})


def test_a_closed_terminal_ends_the_sweep_cleanly(words, undisturbed, found, cache_dir):
    folder = Path("sweeps/toy").absolute()
    sweep, terminal = in_a_terminal(words, stops_background=False)
    read_until(terminal, lambda: any(event.kind == "ended" for event in read_events(folder)))
    os.close(terminal)
    since = time.time()
    assert sweep.wait(timeout=60) > 0  # not by the signal; its messages have no reader
    again = SweepProcess(["resume", "toy", "--cache-dir", cache_dir], folder)
    found("its terminal is closed; then resume", again.finish(undisturbed, since))
