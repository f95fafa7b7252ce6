"""A verb that trains runs in a process of its own, and this one, which holds neither Ray nor torch, sees how it ends.

Ray ends the process that is attached to a node when that node dies, and the kernel ends one that eats the memory: no Python
runs any more then, no table is printed and no report written. So whoever typed the command waits here. A driver that ended
without a word is begun again, where it stopped; when that does not help, the session is closed as any other: table, report,
the command to go on with, exit code 130.

The two die together: the driver ends when this process does, even by kill -9.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from trainables.errors import ConfigError, Problem
from tune_dml.planning.request import Session
from tune_dml.record.ledger import read_events
from tune_dml.record.origin.several_jobs import BUDGET_FROM

if TYPE_CHECKING:
    from tune_dml.record.events import Event

TRAINING = ("sweep", "resume", "extend", "confirm", "audit")
_ATTEMPTS = 3
"""Drivers in all; trials keep their own count of retries."""
SUPERVISED = "TUNE_DML_SUPERVISED"
_NODE_CHECK = 2.0
"""Seconds between looks at the node that the driver is attached to."""
_PARTING = 30.0
"""Seconds that a driver may take to leave after its last word."""
_INTERRUPTED = 130
_SIGNALS = {number + 128: number.name for number in signal.Signals}
"""Exit code -> the signal that ended a program."""


def attend() -> Callable[[int], None]:
    """In the driver: end when the supervisor or our Ray node does. What is handed back says how our own end is."""
    lines = os.environ.pop(SUPERVISED, None)
    if lines is None:
        return lambda code: None
    life, word = map(int, lines.split(","))
    # We write from the background, for which some terminals stop a program.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    for line in (life, word):
        os.set_inheritable(line, False)  # Ray's processes outlive us otherwise

    def watch() -> None:
        from tune_dml.running.cluster.cluster import NodeWatch

        node = NodeWatch()
        while not select.select([life], [], [], _NODE_CHECK)[0]:
            if node.is_lost():
                os._exit(1)  # Ray waits for ever, and what it holds cannot be ended otherwise
        os.kill(os.getpid(), signal.SIGKILL)  # the other end is closed, by whatever death

    threading.Thread(target=watch, daemon=True, name="supervisor").start()
    return lambda code: _speak(word, code)


def _speak(word: int, code: int) -> None:
    with contextlib.suppress(OSError):  # a pipe that nobody reads, a full disk: what we have to say here is heard
        sys.stdout.flush()
    with contextlib.suppress(BrokenPipeError):
        os.write(word, bytes([code]))


def supervise(words: Sequence[str]) -> int:
    """Run a verb that trains to an end that was said; its exit code."""
    folder: Path | None = None
    began = float(os.environ.get(BUDGET_FROM) or time.time())
    if BUDGET_FROM in os.environ:
        rest = _of_earlier_jobs(words, began)
        if rest is None:
            return _INTERRUPTED
        words = rest
    for attempt in range(1, _ATTEMPTS + 1):
        driver = _Driver(words)
        code = driver.wait()
        if driver.has_spoken and (folder is None or code in {0, 3, _INTERRUPTED}):
            return code
        if driver.has_spoken:
            break  # what it was begun again on is gone: a cluster that does not answer
        folder = _folder_of(words, driver.pid) or folder
        if folder is None:
            if driver.was_told:
                _say("Interrupted before it had begun.")
            elif code in _SIGNALS:
                _say(f"The driver ended without a word ({_cause(code)}) before it had begun.")
            return code or 1
        if driver.was_told:
            break  # to end, and it did, if not in order
        budgets = _budgets_left(_given(words), folder, began)
        spent = any(left <= 0 for left in budgets.values())
        closing = "its budget is spent, closing the session" if spent else "closing the session"
        then = "going on from where it stopped" if attempt < _ATTEMPTS and not spent else closing
        _say(f"The driver of {folder.name} ended without a word ({_cause(code)}): {then}.")
        if spent:
            break
        again = _again(words, folder)
        words = [*again, *(word for flag, left in budgets.items() for word in (flag, f"{left:.6g}"))]
    return _close(words, folder) if folder else _INTERRUPTED


def _close(words: Sequence[str], folder: Path) -> int:
    """Table, report, and the command to go on with."""
    from tune_dml.record.origin.commands import command
    from tune_dml.record.results import results_of

    _Driver(["report", folder.name, *flags_of("report", _given(words))]).wait()
    _say(f"Not complete. Continue with: {command(results_of(folder), 'resume')}")
    return _INTERRUPTED


class _Driver:
    """A process that runs a verb; signals that reach us are handed on to it, once each."""

    def __init__(self, words: Sequence[str]):
        life, self._hold = os.pipe()
        self._word, word = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *_where_modules_are(), "-m", "tune_dml.cli", *words],
            env={**os.environ, SUPERVISED: f"{life},{word}"},
            pass_fds=(life, word),
            process_group=0,  # Ctrl-C reaches us alone
        )
        os.close(life)
        os.close(word)
        self.pid = self._process.pid
        self.has_spoken = False
        """Whether it came to its own end, good or bad."""
        self.was_told = False
        """Whether we have handed a signal on to it."""

    def wait(self) -> int:
        """Its exit code."""

        def hand_on(number: int, frame: FrameType | None) -> None:
            self.was_told = True
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as below nohup
            numbers.append(signal.SIGHUP)
        known = {number: signal.signal(number, hand_on) for number in numbers}
        try:
            said = os.read(self._word, 1)  # nothing where it dies
            code = self._leave(said)
        finally:
            for number, handler in known.items():
                signal.signal(number, handler)
        self.has_spoken = bool(said)
        os.close(self._word)
        os.close(self._hold)
        return code if code >= 0 else 128 - code

    def _leave(self, said: bytes) -> int:
        """Its exit code: the one it said, where Ray, cut off from its own, changes that or does not let it go."""
        try:
            code = self._process.wait(_PARTING if said else None)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return said[0] if said else code


def _where_modules_are() -> list[str]:
    """Python's switch that has the driver look for modules where we do.

    `-m` alone looks into the working directory first, where `tune-dml` does not look: a `random.py` or `types.py` of the user's
    would stand in for Python's own.
    """
    began_by_name = getattr(sys.modules["__main__"], "__spec__", None) is not None
    return [] if began_by_name and not sys.flags.safe_path else ["-P"]


def _folder_of(words: Sequence[str], pid: int) -> Path | None:
    """The sweep that a driver held: it wrote its number into the lock."""
    storage = Path(_given(words).get("storage") or Session.storage)
    for lock in storage.absolute().glob("*/lock"):
        if lock.read_text(errors="replace").strip() == str(pid) and (lock.parent / "plan.json").exists():
            return lock.parent
    return None


def _again(words: Sequence[str], folder: Path) -> list[str]:
    """The verb that goes on: the same one, which runs only what is missing; what was added is in the plan by now."""
    if words[0] in {"sweep", "confirm", "audit"}:
        return list(words)
    return ["resume", folder.name, *flags_of("resume", _given(words))]


def _budgets_left(given: Mapping[str, Any], folder: Path, began: float) -> dict[str, float]:
    """Flag -> what is left of each budget that was given: it is one for all drivers of a command."""
    left: dict[str, float] = {}
    if (seconds := given.get("time_budget")) is not None:
        left["--time-budget"] = seconds - (time.time() - began)
    if (hours := given.get("gpu_hours")) is not None:
        left["--gpu-hours"] = hours - _hours_spent(read_events(folder), began, time.time())
    return left


def _hours_spent(events: Sequence[Event], began: float, now: float) -> float:
    """GPU-hours, or worker-hours without GPUs, of the trials since then; one whose driver died counts until its next sign."""
    from tune_dml.record.events import SessionStarted, TrialEnded, TrialStarted

    share, seconds = 1.0, 0.0
    since: dict[str, float] = {}
    for event in events:
        if event.time < began:
            continue
        if isinstance(event, SessionStarted):
            share = event.resources.workers * (event.resources.gpus_per_worker or 1)
        elif isinstance(event, TrialStarted):
            since.setdefault(event.key, event.time)
        elif isinstance(event, TrialEnded) and event.key in since:
            seconds += max(event.time - since.pop(event.key), 0.0)
    return share / 3600 * (seconds + sum(max(now - start, 0.0) for start in since.values()))


def _of_earlier_jobs(words: Sequence[str], began: float) -> Sequence[str] | None:
    """Return a command with what earlier jobs of it left of its budgets; None where one is spent."""
    given = _given(words)
    name = given.get("sweep_name") or given.get("name")
    folder = Path(given.get("storage") or Session.storage) / str(name)
    if not name or not (folder / "ledger.jsonl").exists():
        return words
    left = _budgets_left(given, folder, began)
    if any(value <= 0 for value in left.values()):
        _say(f"The budget of {name} is spent.")
        return None
    return [*words, *(word for flag, value in left.items() for word in (flag, f"{value:.6g}"))]


def _given(words: Sequence[str]) -> Mapping[str, Any]:
    context = _command(words[0]).make_context(words[0], list(words[1:]), resilient_parsing=True)
    given: Mapping[str, Any] = context.params
    return given


def flags_of(verb: str, given: Mapping[str, Any]) -> list[str]:
    """Those of the flags that were given which another verb has too."""
    flags: list[str] = []
    for option in _command(verb).params:
        value = given.get(option.name)
        if option.param_type_name != "option" or option.name == "retry_failed" or value in (None, False):
            continue
        flags += [option.opts[-1]] if value is True else [option.opts[-1], str(value)]
    return flags


def _command(verb: str) -> Any:
    import typer

    from tune_dml.cli import application

    known = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    if verb not in known:
        rule = "the program's modules are gone while it runs"
        raise ConfigError(Problem("tune-dml", rule, None, "Install it again; then `tune-dml resume SWEEP` goes on."))
    return known[verb]


def _cause(code: int) -> str:
    if code in _SIGNALS:
        from tune_dml.running.cluster.start_checks import tight_limits

        return ", ".join([f"signal {_SIGNALS[code]}", *tight_limits()])
    return f"exit code {code}: its Ray node is gone"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed, a full disk
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
