"""Download files once per node: resumable, checked and atomic.

target             the file, renamed into place when it is complete and has its digest
target.part        received bytes; a later call resumes from there
target.part.json   version of the file: URL and validator (ETag or Last-Modified)
target.lock        held by the downloading process; other processes wait for it
"""

from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from trainables.errors import DataError, Problem
from trainables.files import sha256_of

log = logging.getLogger(__name__)

_TRIES = 4  # connections in a row without data
_TIMEOUT_S = 30.0
_CHUNK = 1 << 20
_REFUSALS = {400, 401, 403, 404, 405, 410, 451}  # retrying does not help
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_PAGE = re.compile(rb"\s*<(!doctype|html|head|body|\?xml)", re.IGNORECASE)


def download(url: str, target: Path, *, digests: Sequence[str] = (), pause_s: float = 1.0) -> Path:
    """Download `url` (http or https) to `target`, unless it exists with the right digest.

    `digests` are beginnings of its SHA-256, in hexadecimal; `pause_s` are the seconds before the first retry, doubled
    each time. Raises DataError: no connection, a refusal, a truncated file, a web page, a wrong digest or a full disk.
    """
    if target.exists() and wrong_digest(target, digests) is None:
        return target  # without a lock: the folder may be read-only
    with _translate_os_errors(url, target), FileLock(target.with_name(target.name + ".lock")):
        if target.exists():
            if not (problem := wrong_digest(target, digests)):
                return target
            log.warning("%s was damaged (%s) and is downloaded again", target, problem.rule)
            target.unlink()
        part = _PartialFile(target, url, has_digest=bool(digests))
        resumed, problem = _receive_checked(part, digests, pause_s)
        if problem and resumed:  # perhaps a mixture of two versions, so restart once
            _, problem = _receive_checked(part, digests, pause_s)
        if problem:
            remedy = "Check the URL and the digest. The downloaded file has been removed."
            raise DataError(Problem(url, problem.rule, problem.value, remedy))
        part.finish()
    return target


def wrong_digest(path: Path, digests: Sequence[str]) -> Problem | None:
    """Return a problem if a file's SHA-256 does not begin with each of the digests."""
    if not digests:
        return None
    actual = sha256_of(path)
    missed = next((digest for digest in digests if not actual.startswith(digest)), None)
    if missed is None:
        return None
    remedy = "Download the file again, or rename it if the digits in its name are not its digest."
    return Problem(str(path), f"the SHA-256 must start with {missed}", actual, remedy)


def _receive_checked(part: _PartialFile, digests: Sequence[str], pause_s: float) -> tuple[bool, Problem | None]:
    """Receive and check a file; return whether it was resumed and its problem, removing a bad file."""
    resumed = _receive(part, pause_s=pause_s)
    problem = wrong_digest(part.file, digests) or _web_page_problem(part.file)
    if problem:
        part.remove()
    return resumed, problem


def _web_page_problem(path: Path) -> Problem | None:
    """Return a problem if a server sent a web page instead of the file."""
    with path.open("rb") as file:
        start = file.read(200)
    if not _PAGE.match(start):
        return None
    return Problem(str(path), "must be a file, not a web page", start[:60].decode(errors="replace").strip())


@dataclass
class _PartialFile:
    """A partially received file."""

    target: Path
    url: str
    has_digest: bool  # whether a digest will verify the joined pieces
    validator: str = ""  # ETag or Last-Modified of the version; empty if the server sends none

    def __post_init__(self) -> None:
        self.file = self.target.with_name(self.target.name + ".part")
        self.about = self.target.with_name(self.target.name + ".part.json")
        try:
            stored = json.loads(self.about.read_text())
        except (OSError, ValueError):
            stored = {}
        if stored.get("url") == self.url:
            self.validator = str(stored.get("validator", ""))
        else:
            self.remove()

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def restart(self, validator: str) -> None:
        """Start a version from its first byte."""
        self.file.unlink(missing_ok=True)
        self.validator = validator
        self.about.write_text(json.dumps({"url": self.url, "validator": validator}))

    def finish(self) -> None:
        """Rename the complete file to its target."""
        with self.file.open("rb+") as file:
            os.fsync(file.fileno())
        self.file.replace(self.target)
        self.about.unlink(missing_ok=True)

    def remove(self) -> None:
        self.validator = ""
        self.file.unlink(missing_ok=True)
        self.about.unlink(missing_ok=True)


def _receive(part: _PartialFile, *, pause_s: float) -> bool:
    """Receive the rest over as many connections as needed; return whether any of them resumed."""
    resumed, failures = False, 0
    while True:
        before = part.size
        reason: object
        try:
            has_resumed, complete = _connect(part)
            resumed |= has_resumed
            if complete:
                return resumed
            reason = f"the connection ended after {part.size:,} bytes"
        except urllib.error.HTTPError as error:
            if error.code in _REFUSALS:
                rule = "the server must send the file"
                answer = f"{error.code} {error.reason}"
                raise DataError(Problem(part.url, rule, answer, "Check the URL.")) from error
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.remove()  # longer than the file: another version
            reason = f"{error.code} {error.reason}"
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or repr(error)
        failures = 0 if part.size > before else failures + 1
        if failures >= _TRIES:
            note = f" {part.size:,} bytes are kept and resumed by the next attempt." if part.size else ""
            remedy = f"Check the network, or pass the path of a copy.{note}"
            raise DataError(Problem(part.url, "the file must arrive whole", str(reason), remedy))
        if failures:
            time.sleep(pause_s * 2 ** (failures - 1))


def _connect(part: _PartialFile) -> tuple[bool, bool]:
    """Receive from the first missing byte; return (whether it resumed, whether the file is complete)."""
    request = urllib.request.Request(part.url, headers={"User-Agent": "tune_dml"})  # noqa: S310 - http(s), see weights
    start = part.size if part.validator or part.has_digest else 0
    if start:
        request.add_header("Range", f"bytes={start}-")
        if part.validator:
            request.add_header("If-Range", part.validator)  # the whole file if the version changed
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        kind = str(answer.headers.get("Content-Type", ""))
        if kind.startswith("text/html"):
            rule = "the server must send a file, not a web page"
            raise DataError(Problem(part.url, rule, kind, "Use the address of the file itself."))
        piece = _RANGE.fullmatch(str(answer.headers.get("Content-Range", "")))
        partial = bool(start) and answer.status == http.client.PARTIAL_CONTENT
        resumed = bool(partial and piece and int(piece[1]) == start)
        if partial and not resumed:
            part.remove()
            return False, False  # not the requested range
        if not resumed:
            part.restart(_validator(answer.headers))
        length = answer.headers.get("Content-Length")
        total = int(piece[2]) if resumed and piece else int(length) if length else None
        _announce(part, total, resumed)
        with part.file.open("ab") as file:
            while block := answer.read(_CHUNK):
                file.write(block)
    return resumed, total is None or part.size == total


def _validator(headers: http.client.HTTPMessage) -> str:
    """Return the version's validator; a weak ETag cannot resume."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


def _announce(part: _PartialFile, total: int | None, resumed: bool) -> None:
    """Log the download. Raise OSError if the disk is too full."""
    size = "of unknown size" if total is None else f"{total / 1e6:.1f} MB"
    verb = f"resuming at {part.size / 1e6:.1f} MB of" if resumed else "downloading"
    log.warning("%s %s (%s) to %s", verb, part.url, size, part.target)
    free = shutil.disk_usage(part.target.parent).free
    if total is not None and total - part.size > free:
        raise OSError(errno.ENOSPC, f"{(total - part.size) / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB are free")


@contextmanager
def _translate_os_errors(url: str, target: Path) -> Iterator[None]:
    """Create the folder and turn OSErrors into DataError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        rule = "there must be room for the file" if full else "the folder must be writable"
        remedy = f"The file goes to {target.parent}; set TORCH_HOME to choose another folder."
        raise DataError(Problem(url, rule, str(error), remedy)) from error
