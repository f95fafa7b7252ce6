"""What a signal means to a session."""

import signal
import sys
import threading
import time

import pytest

from tune_dml.running.process import resend_dropped_interrupts


class Torn:
    """An object during whose end Ctrl-C comes."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


class Broken:
    def __del__(self):
        raise ValueError("of its own")


@pytest.fixture
def ctrl_c():
    """It interrupts, as in a command: whoever runs these tests in several processes has told them to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_that_comes_while_an_object_is_torn_down_is_neither_lost_nor_a_traceback(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: said.append(dropped.exc_type))
    before = sys.unraisablehook

    def tear_down():
        Torn()
        threading.Event().wait(30)

    since = time.monotonic()
    with pytest.raises(KeyboardInterrupt), resend_dropped_interrupts():
        tear_down()
    assert time.monotonic() - since < 20  # it is woken, and does not hear of it at the end of its waiting
    assert said == []
    with resend_dropped_interrupts():
        Broken()
    assert said == [ValueError]
    assert sys.unraisablehook is before
