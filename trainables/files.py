"""Files that are whole or absent, whatever kills their writer; storage that fails for a while is waited for."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

_Result = TypeVar("_Result")

PATIENCE = 600.0
"""Seconds that storage may fail before whoever writes gives up."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN}
)
"""A full disk, one mounted read-only after an error, a server of files that is away: what people and machines mend."""


def _say(text: str) -> None:
    with suppress(OSError):  # it may lie on the same full disk
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def patiently(
    write: Callable[[], _Result],
    place: Path | str,
    say: Callable[[str], None] = _say,
    meanwhile: Callable[[], None] = lambda: None,
) -> _Result:
    """What `write` returns, tried again for as long as the storage at a place fails in a way that passes; said once.

    Raises OSError when it still fails after `PATIENCE` seconds, and at once when waiting cannot help; KeyboardInterrupt when
    Ctrl-C is pressed meanwhile. `meanwhile` is called before each further try.
    """
    began = time.monotonic()
    try:
        return write()
    except OSError as error:
        if error.errno not in _PASSING:
            raise
        say(f"{place}: {error.strerror}; waiting up to {PATIENCE / 60:.0f} minutes for it to pass")
    with _heeding_ctrl_c():
        result = _tried_again(write, began, meanwhile)
    say(f"{place}: can be written again after {time.monotonic() - began:.0f} s")
    return result


def _tried_again(write: Callable[[], _Result], began: float, meanwhile: Callable[[], None]) -> _Result:
    """What it returns, after longer and longer pauses; raises OSError where patience ends."""
    pause = _FIRST_PAUSE
    while True:
        time.sleep(pause)
        meanwhile()
        pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            return write()
        except OSError as error:
            if error.errno not in _PASSING or time.monotonic() - began > PATIENCE:
                raise


@contextmanager
def _heeding_ctrl_c() -> Iterator[None]:
    """Meanwhile Ctrl-C interrupts at once: a loop that only takes note of it, as Tune's does, would not come round to that."""
    before = signal.getsignal(signal.SIGINT)
    ours = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or before in {None, signal.SIG_IGN, ours}:
        yield
        return
    signal.signal(signal.SIGINT, ours)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) == ours:
            signal.signal(signal.SIGINT, before)


def expanded(path: Path | str) -> Path:
    """A path with `~` and `~user` put in full, as a shell does: where nobody knows of that home the words stay as they are."""
    return Path(os.path.expanduser(path))


def existing(folder: Path) -> Path:
    """The folder; raises OSError (ESTALE) when it is not there: its file system is gone, and must not be begun anew below it."""
    if not folder.is_dir():
        raise gone(folder)
    return folder


def gone(folder: Path) -> OSError:
    """What `patiently` waits for: a folder that was there is not any more."""
    return OSError(errno.ESTALE, "the folder is gone, as of a file system that is no longer mounted", str(folder))


def write_whole(path: Path, content: bytes | str | Callable[[BinaryIO], object], *, private: bool = False) -> None:
    """Replace a file by bytes, text (UTF-8), or what a function writes; a reader sees the old file or the new one.

    Of a path whose bytes are no text, text has the numbers of those bytes.

    The folder is made if missing; the content is on disk before the name changes. A private file is its owner's to read alone.
    Raises OSError, which names the file, where it cannot be written; nothing of it stays then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)  # before there is anything to read
            if callable(content):
                content(file)
            else:
                file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):  # a full disk has no room for halves
            temporary.unlink()
        error.filename = error.filename or str(path)
        raise
    temporary.replace(path)
