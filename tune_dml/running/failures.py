"""Classify what stopped a trial, and decide whether it is retried.

    failure = classify(error)             # an exception, its repr, or traceback text that came back from a worker
    failure.kind, failure.reason          # "out_of_memory", "out of memory: CUDA out of memory. Tried to allocate ..."
    failure.may_pass                      # retry failures of the machine, never deterministic ones

Classes are matched by module and name: neither Ray nor torch is imported, and text serves as well as an exception.
"""

from __future__ import annotations

import builtins
import re
import traceback
from collections.abc import Iterator
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

WORKER_RETRIES = 3
"""Retries of lost Ray Train workers within one attempt of a trial."""

UNLIKE_DRIVER = "does not have what the driver has"
"""The message of a trial's process on a node without this project."""

_TITLES: dict[FailureKind, str] = {
    "out_of_memory": "out of memory",
    "diverged": "diverged",
    "data": "data",
    "config": "configuration",
    "infrastructure": "infrastructure",
    "node": "node",
    "preempted": "preempted",
    "stalled": "stalled",
    "bug": "error",
}
_REASON_LIMIT = 240

# (root module, class) -> kind. The root decides between namesakes: torch's OutOfMemoryError means that the model does not
# fit, Ray's that the node was short and a worker was sacrificed. "" matches text that names no module.
_CLASSES: dict[tuple[str, str], FailureKind] = {
    **{(root, "DataError"): "data" for root in ("trainables", "")},
    **{(root, "ConfigError"): "config" for root in ("trainables", "")},
    **{(root, "Diverged"): "diverged" for root in ("trainables", "")},
    **{(root, "OutOfMemoryError"): "out_of_memory" for root in ("torch", "cupy", "")},
    ("builtins", "MemoryError"): "out_of_memory",
    **{(root, "PreemptionError"): "preempted" for root in ("ray", "")},
}
_LOST = frozenset(  # a process or node is gone
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
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_NODE_MEMORY_TEXT = re.compile(r"node running low on memory|killed due to .*memory pressure", re.IGNORECASE)
_CONNECTION_TEXT = re.compile(
    r"connection (was )?(reset|refused|closed|aborted)|socket closed|broken pipe|unhandled system error"
    r"|remote process exited|watchdog .*timeout|collective operation timeout|uncorrectable ECC|fallen off the bus"
    r"|no space left on device|stale file handle|input/output error|killed by signal",
    re.IGNORECASE,
)
_LATE = "CUDA_LAUNCH_BLOCKING"
"""Errors of a GPU name it: they are raised long after the call that caused them."""
_EXIT = re.compile(r"Worker exit detail: (?P<detail>[^\n]+)")
_FEWER = "`--max-concurrent` runs fewer trials at once"
_SILENT = (
    f"its process ended without a word: it was killed, as for want of memory ({_FEWER}), "
    "crashed in compiled code, or was ended by a method"
)
# Ray's message about a process that could not load its function: its node lacks a package, or has a broken one.
_NOT_LOADED = re.compile(
    r"failed to import on the worker.*?^[\w.]*(?:Error|Exception): (?P<why>[^\n]+)", re.DOTALL | re.MULTILINE
)
_ADDRESS = re.compile(r"\bip(?:: |=)(?P<ip>[\w.:]+)")
_PREEMPTED_TEXT = re.compile(r"preempt|spot instance|node .*(drained|draining|terminated expectedly)", re.IGNORECASE)
# Of several ranks' errors the first in this order is the cause, the others its echoes.
_ORDER = ("config", "data", "diverged", "out_of_memory", "node", "preempted", "lost", "bug", "connection")


@dataclass(frozen=True)
class Failure:
    """A classified failure."""

    kind: FailureKind
    reason: str
    """One line for people, without control characters and secrets."""

    @property
    def may_pass(self) -> bool:
        """Whether a retry may succeed."""
        return self.kind in {"infrastructure", "node", "preempted", "stalled"}


def stalled(seconds: float, *, before_first: bool = False) -> Failure:
    """Return the failure of a trial that made no step for `seconds`."""
    return Failure("stalled", f"stalled: no {'first ' if before_first else ''}step for {seconds:g} s")


@dataclass(frozen=True)
class _Seen:
    """An error, from an exception or from text."""

    classes: tuple[tuple[str, str], ...]
    """(root module, class) along the method resolution order."""
    message: str
    location: str = ""
    """`file:line` of its origin."""
    inner: tuple[_Seen, ...] = ()
    """The errors that caused this one, or that it wraps."""
    group: bool = False
    """Whether it only stands for its inner errors."""
    step: int | None = None


def classify(error: BaseException | str) -> Failure:
    """Return the kind of a failure and its reason, from an exception or from text about one."""
    if lacking := _not_loaded(_ANSI.sub("", str(error))):
        return Failure("node", shortened(one_line(mask(lacking)), _REASON_LIMIT))
    rank, cause = _cause(_from_text(error) if isinstance(error, str) else _from_exception(error))
    kind: FailureKind = "infrastructure" if rank in {"lost", "connection"} else rank  # type: ignore[assignment]
    return Failure(kind, _reason(kind, cause))


def _not_loaded(text: str) -> str:
    """Return which node lacks what, if a process could not load its function; otherwise an empty text."""
    if not (found := _NOT_LOADED.search(text)):
        return ""
    before = [address["ip"] for address in _ADDRESS.finditer(text, 0, found.start())]  # the last is the closest
    node = f"node {before[-1]}" if before else "a node"
    return f"{node} {UNLIKE_DRIVER}: {found['why'].rstrip('.')}. Install it there."


def _cause(seen: _Seen) -> tuple[str, _Seen]:
    """Return the rank (a word of _ORDER) of an error, and the error that decides it."""
    own = None if seen.group else _rank(seen)
    if own is not None:
        return own, seen
    inner = [_cause(each) for each in seen.inner]
    if not seen.group:  # raised `from` a known error: that one is the cause
        inner = [each for each in inner if each[0] != "bug"]
    return min(inner, key=lambda each: _ORDER.index(each[0]), default=("bug", seen))


def _rank(seen: _Seen) -> str | None:
    """Return an error's rank by its class or, for generic classes, by its message; None if unknown."""
    by_class = next(filter(None, (_rank_of_class(root, name, seen.message) for root, name in seen.classes)), None)
    if by_class is not None:
        return by_class
    if UNLIKE_DRIVER in seen.message:
        return "node"
    vague = not seen.classes or {"RuntimeError", "OSError"} & {name for _, name in seen.classes}
    if vague and _MEMORY_TEXT.search(seen.message):
        return "out_of_memory"
    if vague and _CONNECTION_TEXT.search(seen.message):
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


def _from_exception(error: BaseException, depth: int = 8) -> _Seen:
    inner = tuple(_from_exception(each, depth - 1) for each in _inside(error)) if depth else ()
    names = tuple((cls.__module__.partition(".")[0], cls.__qualname__) for cls in type(error).__mro__)
    root, name = names[0]
    if getattr(error, "actor_init_failed", False) and "Error" in str(error):
        inner, group = (_from_text(str(error)),), True  # the constructor raised; its traceback is in the text
    else:
        group = bool(inner) and name not in _LOST and (root == "ray" or isinstance(error, BaseExceptionGroup))
    if name.startswith("RayTaskError"):  # chains (`raise ... from`) travel as text alone
        chained = _from_text(str(error)).inner
        inner = tuple(replace(each, inner=each.inner + chained) for each in inner)
    preempted = " (preempted)" if getattr(error, "preempted", False) else ""
    frames = traceback.extract_tb(error.__traceback__)
    location = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    step = getattr(error, "step", None)
    return _Seen(names, str(error) + preempted, location, inner, group, step if isinstance(step, int) else None)


def _inside(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that another one carries: its cause, or those of its ranks."""
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
_NAMED = re.compile(
    r"^(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w*)(?:\((?P<task>\w+)\))?(?:: (?P<message>.*))?$",
    re.MULTILINE | re.DOTALL,
)
_TASK_REPR = re.compile(r"^(?:ray\.exceptions\.)?RayTaskError\(\w+\)\((?P<cause>.*)\)$", re.DOTALL)
_REPR = re.compile(r"^(?P<module>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w*)\((?P<message>.*)\)$", re.DOTALL)


def _from_text(text: str) -> _Seen:
    """Parse traceback text, or the `str` or `repr` of an exception."""
    text = _ANSI.sub("", text).strip()
    if task := _TASK_REPR.match(text):
        text = task["cause"]
    parts = _CHAIN.split(text)
    seen = _one_from_text(parts[0])
    for link, part in zip(parts[1::2], parts[2::2], strict=True):
        inner = (seen,) if link.startswith("The above") else ()
        seen = replace(_one_from_text(part), inner=inner)
    return seen


def _one_from_text(text: str) -> _Seen:
    """Parse one link of a chain: the first class after the last frame, with a message of several lines."""
    location, start = "", 0
    for frame in _FRAME.finditer(text):
        location, start = f"{Path(frame['file']).name}:{frame['line']}", frame.end()
    named = _REPR.match(text) or _NAMED.search(text, start)
    if named is None:
        return _Seen((), text, location)
    root, name = named["module"].partition(".")[0], named["name"]
    if task := named.groupdict().get("task"):  # RayTaskError(ValueError): the class that it wraps
        root, name = "", task
    builtin = getattr(builtins, name, None) if not root else None
    classes: tuple[tuple[str, str], ...] = ((root, name),)
    if isinstance(builtin, type):
        classes = tuple(("builtins", cls.__name__) for cls in builtin.__mro__)
    elif root == "torch":
        classes = (*classes, ("builtins", "RuntimeError"))
    return _Seen(classes, (named["message"] or "").strip("'\""), location)


def _reason(kind: FailureKind, seen: _Seen) -> str:
    lines = [line.strip() for line in _ANSI.sub("", seen.message).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if exited := _EXIT.search(seen.message):
        text = _SILENT if "End of file" in exited["detail"] else exited["detail"]
    elif kind == "infrastructure" and _NODE_MEMORY_TEXT.search(seen.message):
        text = f"its node ran short of memory: {_FEWER} ({text})"
    if kind in {"config", "data"} and len(lines) > 1:
        text += f" (and {len(lines) - 1} more)"
    elif kind == "diverged" and seen.step is not None:
        text += f" (step {seen.step})"
    elif kind == "node":  # begins with its name
        return shortened(one_line(mask(text)), _REASON_LIMIT)
    elif kind == "bug":
        name = seen.classes[0][1] if seen.classes else ""
        place = seen.location
        if place and _LATE in seen.message:
            place = f"noticed at {place}; {_LATE}=1 shows where it arose"
        text = ": ".join(part for part in (name, text) if part) + (f" ({place})" if place else "")
    return shortened(one_line(mask(f"{_TITLES[kind]}: {text}")), _REASON_LIMIT)
