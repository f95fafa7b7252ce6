"""Classify what stopped a trial, and decide whether it is retried.

Classes are matched by module and name: neither Ray nor torch is imported, and text serves as well as an exception.
"""

from __future__ import annotations

import builtins
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tune_dml.record.origin.provenance import mask
from tune_dml.text import one_line, shortened

FailureKind = Literal[
    "out_of_memory", "diverged", "data", "config", "infrastructure", "node", "preempted", "stalled", "bug"
]

TRIAL_RETRIES = 2
"""Retries of a trial whose process was lost; it continues from its checkpoint. Preempted nodes do not count."""

WORKER_RETRIES = 3  # retries of lost Ray Train workers within one attempt of a trial

UNLIKE_DRIVER = "does not have what the driver has"
"""Part of the message of a trial's process on a node that lacks a package or file of the driver."""

_TITLES = {"out_of_memory": "out of memory", "config": "configuration", "bug": "error"}
_REASON_LIMIT = 240
_TEXT_LIMIT = 50_000  # characters at each end of a message, which may hold a whole tensor

# (root module, class) -> kind. The root tells classes of the same name apart: torch raises OutOfMemoryError if the
# model does not fit, Ray if it killed a worker to free memory. "" matches text without a module name.
_CLASSES: dict[tuple[str, str], FailureKind] = {
    **{(root, "DataError"): "data" for root in ("trainables", "")},
    **{(root, "ConfigError"): "config" for root in ("trainables", "")},
    **{(root, "Diverged"): "diverged" for root in ("trainables", "")},
    **{(root, "OutOfMemoryError"): "out_of_memory" for root in ("torch", "cupy", "")},
    ("builtins", "MemoryError"): "out_of_memory",
    **{(root, "PreemptionError"): "preempted" for root in ("ray", "")},
}
_LOST = frozenset(  # a process or node was lost
    {
        *("RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "NodeDiedError"),
        *("LocalRayletDiedError", "OwnerDiedError", "ObjectLostError", "ObjectReconstructionFailedError"),
        *("OutOfMemoryError", "OutOfDiskError", "ObjectStoreFullError", "TaskPlacementGroupRemoved"),
        *("ActorPlacementGroupRemoved", "RaySystemError", "RpcError", "WorkerHealthCheckTimeoutError"),
        *("WorkerHealthCheckFailedError", "WorkerGroupStartupTimeoutError", "WorkerGroupStartupFailedError"),
        *("NCCLHangError", "GetTimeoutError", "RuntimeEnvSetupError"),
    }
)
_CONNECTION = frozenset(  # may follow from another rank's failure
    {
        *("ConnectionError", "TimeoutError", "TimeoutExpired"),
        *("DistBackendError", "DistNetworkError", "DistStoreError"),
    }
)
_MEMORY_TEXT = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|STATUS_ALLOC_FAILED", re.IGNORECASE
)
_NODE_MEMORY_TEXT = re.compile(r"node running low on memory|killed due to .*memory pressure", re.IGNORECASE)
_CONNECTION_TEXT = re.compile(
    r"connection (was )?(reset|refused|closed|aborted)|socket closed|broken pipe|unhandled system error"
    r"|remote process exited|watchdog .*timeout|collective operation timeout|uncorrectable ECC|fallen off the bus"
    r"|no space left on device|disk quota exceeded|read-only file system|stale file handle|no longer mounted"
    r"|input/output error|host is down|killed by signal",
    re.IGNORECASE,
)
_LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"
"""Named in the messages of GPU errors, which are raised long after the call that caused them."""
_EXIT_DETAIL = re.compile(r"Worker exit detail: (?P<detail>[^\n]+)")
_FEWER_AT_ONCE = "`--max-concurrent` runs fewer trials at once"
_SILENT_EXIT = (
    f"its process ended without a message: it was killed, for example for lack of memory ({_FEWER_AT_ONCE}), "
    "crashed in compiled code, or was ended by a method"
)
# Ray's message if a process cannot load its function, because its node lacks a package or has a broken one.
_IMPORT_FAILURE = re.compile(
    r"failed to import on the worker.*?^[\w.]*(?:Error|Exception): (?P<why>[^\n]+)", re.DOTALL | re.MULTILINE
)
_ADDRESS = re.compile(r"\bip(?:: |=)(?P<ip>[\w.:]+)")
_PREEMPTED_TEXT = re.compile(r"preempt|spot instance|node .*(drained|draining|terminated expectedly)", re.IGNORECASE)
# If several workers failed, the error that comes first in this order is the cause, and the others follow from it.
_ORDER = ("config", "data", "diverged", "out_of_memory", "node", "preempted", "lost", "bug", "connection")


@dataclass(frozen=True)
class Failure:
    """A classified failure."""

    kind: FailureKind
    reason: str  # one line of text, without control characters and secrets
    is_process_lost: bool = False  # whether the trial's process ended, and raised no error

    @property
    def is_retryable(self) -> bool:
        """Whether a retry may succeed."""
        return self.kind in {"infrastructure", "node", "preempted", "stalled"}


def stall_failure(seconds: float, *, before_first: bool = False) -> Failure:
    """Return the failure of a trial that made no step for `seconds`."""
    return Failure("stalled", f"stalled: no {'first ' if before_first else ''}step for {seconds:g} s")


@dataclass(frozen=True)
class _ErrorRecord:
    """The parts of an exception, or of text about one, by which it is classified."""

    classes: tuple[tuple[str, str], ...]  # (root module, class) along the method resolution order
    message: str
    location: str = ""  # where it was raised, as `file:line`
    inner: tuple[_ErrorRecord, ...] = ()  # the errors that caused this one, or that it wraps
    group: bool = False  # whether it only wraps its inner errors
    step: int | None = None


def classify(error: BaseException | str) -> Failure:
    """Return the kind and the reason of a failure, given as an exception or as text about one."""
    if reason := _import_failure(_ANSI.sub("", _text_of(error))):
        return Failure("node", shortened(one_line(mask(reason)), _REASON_LIMIT))
    rank, cause = _find_cause(_record_from_text(error) if isinstance(error, str) else _record_from_exception(error))
    kind: FailureKind = "infrastructure" if rank in {"lost", "connection"} else rank  # type: ignore[assignment]
    return Failure(kind, _reason(kind, cause), rank == "lost")


def _import_failure(text: str) -> str:
    if not (found := _IMPORT_FAILURE.search(text)):
        return ""
    before = [address["ip"] for address in _ADDRESS.finditer(text, 0, found.start())]  # the last is the closest
    node = f"node {before[-1]}" if before else "a node"
    return f"{node} {UNLIKE_DRIVER}: {found['why'].rstrip('.')}. Install it there."


def _find_cause(record: _ErrorRecord) -> tuple[str, _ErrorRecord]:
    """Return the rank of an error (a word of _ORDER), and the error that has this rank: itself or an inner one."""
    own = None if record.group else _rank_of_error(record)
    if own is not None:
        return own, record
    causes = [_find_cause(error) for error in record.inner]
    if not record.group:  # it was raised `from` an error of a known class, which is the cause
        causes = [cause for cause in causes if cause[0] != "bug"]
    return min(causes, key=lambda cause: _ORDER.index(cause[0]), default=("bug", record))


def _rank_of_error(record: _ErrorRecord) -> str | None:
    """Return an error's rank by its class or, for generic classes, by its message; None if unknown."""
    by_class = next(filter(None, (_rank_of_class(root, name, record.message) for root, name in record.classes)), None)
    if by_class is not None:
        return by_class
    if UNLIKE_DRIVER in record.message:
        return "node"
    is_generic = not record.classes or {"RuntimeError", "OSError"} & {name for _, name in record.classes}
    if is_generic and _MEMORY_TEXT.search(record.message):
        return "out_of_memory"
    if is_generic and _CONNECTION_TEXT.search(record.message):
        return "connection"
    return None


def _rank_of_class(root: str, name: str, message: str) -> str | None:
    if name == "OutOfMemoryError" and _NODE_MEMORY_TEXT.search(message):
        return "lost"
    if (root, name) in _CLASSES:
        return _CLASSES[root, name]
    if root in {"ray", ""} and name in _LOST:
        return "preempted" if _PREEMPTED_TEXT.search(message) else "lost"
    if name in _CONNECTION and not _MEMORY_TEXT.search(message):
        return "connection"
    return None


def _record_from_exception(error: BaseException, depth: int = 8) -> _ErrorRecord:
    inner = tuple(_record_from_exception(each, depth - 1) for each in _carried_errors(error)) if depth else ()
    names = tuple((cls.__module__.partition(".")[0], cls.__qualname__) for cls in type(error).__mro__)
    root, name = names[0]
    text = _text_of(error)
    if getattr(error, "actor_init_failed", False) and "Error" in text:
        inner, group = (_record_from_text(text),), True  # an actor's constructor raised; this is its traceback
    else:
        group = bool(inner) and name not in _LOST and (root == "ray" or isinstance(error, BaseExceptionGroup))
    if name.startswith("RayTaskError"):  # Ray sends causes (`raise ... from`) only as text
        chained = _record_from_text(text).inner
        inner = tuple(replace(each, inner=each.inner + chained) for each in inner)
    preempted = " (preempted)" if getattr(error, "preempted", False) else ""
    location = _place((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
    step = getattr(error, "step", None)
    return _ErrorRecord(names, text + preempted, location, inner, group, step if isinstance(step, int) else None)


def _place(frames: Iterable[tuple[str, object]]) -> str:
    """Return the innermost place outside torch and numpy as `file:line`: their lines do not name the wrong method."""
    places = [(Path(file), line) for file, line in frames]
    own = [(file, line) for file, line in places if not {"torch", "numpy"} & set(file.parts[:-1])]
    return "".join(f"{file.name}:{line}" for file, line in (own or places)[-1:])


def _text_of(error: BaseException | str) -> str:
    """Return the message of an error, without the middle of a huge one. A method's own error class may have none."""
    try:
        text = str(error)
    except Exception as failure:
        return f"no message: its __str__ raised {type(failure).__name__}"
    return text if len(text) <= 2 * _TEXT_LIMIT else text[:_TEXT_LIMIT] + text[-_TEXT_LIMIT:]


def _carried_errors(error: BaseException) -> Iterator[BaseException]:
    for name in ("cause", "_base_exc", "controller_failure", "__cause__"):
        carried = getattr(error, name, None)
        if isinstance(carried, BaseException):
            yield carried
            return
    failures = getattr(error, "worker_failures", None)
    if isinstance(failures, dict):
        yield from (each for each in failures.values() if isinstance(each, BaseException))
    elif isinstance(error, BaseExceptionGroup):
        yield from error.exceptions


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CHAIN = re.compile(
    r"\n+(The above exception was the direct cause of|During handling of the above exception, another)[^\n]*\n+"
)
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_CLASS_LINE = re.compile(
    r"^(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w*)(?:\((?P<task>\w+)\))?(?:: (?P<message>.*))?$",
    re.MULTILINE | re.DOTALL,
)
_TASK_REPR = re.compile(r"^(?:ray\.exceptions\.)?RayTaskError\(\w+\)\((?P<cause>.*)\)$", re.DOTALL)
_REPR = re.compile(r"^(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w*)\((?P<message>.*)\)$", re.DOTALL)


def _record_from_text(text: str) -> _ErrorRecord:
    text = _ANSI.sub("", text).strip()
    if task := _TASK_REPR.match(text):
        text = task["cause"]
    parts = _CHAIN.split(text)
    record = _record_from_link(parts[0])
    for link, part in zip(parts[1::2], parts[2::2], strict=True):
        inner = (record,) if link.startswith("The above") else ()
        record = replace(_record_from_link(part), inner=inner)
    return record


def _record_from_link(text: str) -> _ErrorRecord:
    """Parse one traceback of a chain: the first class after the last frame, and its message."""
    frames = list(_FRAME.finditer(text))
    location, start = _place((frame["file"], frame["line"]) for frame in frames), frames[-1].end() if frames else 0
    class_line = _REPR.match(text) or _CLASS_LINE.search(text, start)
    if class_line is None:
        return _ErrorRecord((), text, location)
    root, name = class_line["module"].partition(".")[0], class_line["name"]
    if task := class_line.groupdict().get("task"):  # RayTaskError(ValueError) wraps a ValueError
        root, name = "", task
    builtin = getattr(builtins, name, None) if not root else None
    classes: tuple[tuple[str, str], ...] = ((root, name),)
    if isinstance(builtin, type):
        classes = tuple(("builtins", cls.__name__) for cls in builtin.__mro__)
    elif root == "torch":
        classes = (*classes, ("builtins", "RuntimeError"))
    return _ErrorRecord(classes, (class_line["message"] or "").strip("'\""), location)


def _reason(kind: FailureKind, record: _ErrorRecord) -> str:
    lines = [line.strip() for line in _ANSI.sub("", record.message).splitlines() if line.strip()]
    text = lines[0][: 10 * _REASON_LIMIT] if lines else ""  # masking takes seconds for a million characters
    if exit_detail := _EXIT_DETAIL.search(record.message):
        text = _SILENT_EXIT if "End of file" in exit_detail["detail"] else exit_detail["detail"]
    elif kind == "infrastructure" and _NODE_MEMORY_TEXT.search(record.message):
        text = f"its node ran short of memory: {_FEWER_AT_ONCE} ({text})"
    if kind in {"config", "data"} and len(lines) > 1:
        text += f" (and {len(lines) - 1} more)"
    elif kind == "diverged" and record.step is not None:
        text += f" (step {record.step})"
    elif kind == "node":  # the text begins with the node's name
        return shortened(one_line(mask(text)), _REASON_LIMIT)
    elif kind == "bug":
        name = record.classes[0][1] if record.classes else ""
        location = record.location
        if location and _LAUNCH_BLOCKING in record.message:
            location = f"noticed at {location}; {_LAUNCH_BLOCKING}=1 shows where it arose"
        text = ": ".join(part for part in (name, text) if part) + (f" ({location})" if location else "")
    return shortened(one_line(mask(f"{_TITLES.get(kind, kind)}: {text}")), _REASON_LIMIT)
