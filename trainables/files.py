"""Write files atomically, retry while storage fails temporarily, and measure its free space."""

import errno
import hashlib
import os
import shutil
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
"""Seconds of failing storage after which a writer gives up."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_TEMPORARY = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN}
)
"""Errors that people or machines can fix: a full or read-only disk, an unreachable file server."""


def _say(text: str) -> None:
    with suppress(OSError):  # stderr may be on the full disk
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def retry_storage(
    act: Callable[[], _Result],
    place: Path | str,
    say: Callable[[str], None] = _say,
    meanwhile: Callable[[], None] = lambda: None,
) -> _Result:
    """Call `act` and return its result, retrying while the storage at `place` fails temporarily.

    Args:
        act: writes or reads a file.
        place: path or address, for messages.
        say: called once when waiting begins and once when it ends.
        meanwhile: called before each retry.

    Raises:
        OSError: the error is permanent, or lasts longer than `PATIENCE` seconds.
        KeyboardInterrupt: Ctrl-C while waiting.
    """
    began = time.monotonic()
    try:
        return act()
    except OSError as error:
        if error.errno not in _TEMPORARY:
            raise
        say(f"{place}: {error.strerror}; waiting up to {PATIENCE / 60:.0f} minutes for it to pass")
    with _interrupt_on_ctrl_c():
        result = _retry(act, began, meanwhile)
    say(f"{place}: works again after {time.monotonic() - began:.0f} s")
    return result


def _retry(act: Callable[[], _Result], began: float, meanwhile: Callable[[], None]) -> _Result:
    pause = _FIRST_PAUSE
    while True:
        time.sleep(pause)
        meanwhile()
        pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            return act()
        except OSError as error:
            if error.errno not in _TEMPORARY or time.monotonic() - began > PATIENCE:
                raise


@contextmanager
def _interrupt_on_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C interrupt at once. A handler like Tune's only sets a flag, which is not read while waiting."""
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


def expand_home(path: Path | str) -> Path:
    """Expand `~` and `~user` as a shell does; leave an unknown home as it is."""
    return Path(os.path.expanduser(path))


def require_folder(folder: Path) -> Path:
    """Return the folder. Raise OSError (ESTALE) if it is gone, so that nothing recreates it locally."""
    if not folder.is_dir():
        raise missing_folder_error(folder)
    return folder


def missing_folder_error(folder: Path) -> OSError:
    """Return the temporary error for a folder that has vanished."""
    return OSError(errno.ESTALE, "the folder is gone, as of a file system that is no longer mounted", str(folder))


def write_whole(path: Path, content: bytes | str | Callable[[BinaryIO], object], *, private: bool = False) -> None:
    """Replace a file atomically by bytes, text (UTF-8), or the output of a function.

    Create the folder if needed. The content is on disk before the file gets its name. Undecodable bytes of paths are
    escaped. A `private` file is readable by its owner only. If an OSError is raised, it names the file, and no partial
    file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)  # before it has content
            if callable(content):
                content(file)
            else:
                file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):  # frees space on a full disk
            temporary.unlink()
        error.filename = error.filename or str(path)
        raise
    temporary.replace(path)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(folder: Path) -> int:
    """Return the free space of the disk that holds a folder, or will hold it."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free
