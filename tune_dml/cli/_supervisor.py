"""The supervisor: runs a training verb in a driver process, and restarts a driver that dies.

Ray ends a process when its node dies, and the kernel ends one that uses too much memory. Such a process prints no table and
writes no report. So this process, which loads neither Ray nor torch, waits for the driver. It restarts a driver that ended
without reporting an exit code. If that fails too, it closes the session as any other: table, report, the command that
continues, exit code 130.

The driver ends when this process does, even by kill -9.
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
from typing import Any

from trainables.errors import ConfigError, Problem
from tune_dml.planning.request import Session
from tune_dml.record.origin.several_jobs import ARRAY_GROUP, BUDGET_FROM

ParsedFlags = Mapping[str, Any]
"""Parameter of a verb -> its parsed value."""
TRAINING = ("sweep", "resume", "extend", "confirm", "audit")
_ATTEMPTS = 3
"""Maximum number of drivers; retries of trials are counted separately."""
SUPERVISED = "TUNE_DML_SUPERVISED"
_NODE_CHECK = 2.0
"""Seconds between checks of the node that the driver is attached to."""
_PARTING = 30.0
"""Seconds that a driver may take to exit after it has reported its exit code."""
_INTERRUPTED = 130
_SIGNALS = {number + 128: number.name for number in signal.Signals}
"""Exit code -> the signal that ended a program."""


def attend() -> Callable[[int], None]:
    """In the driver: end when the supervisor or our Ray node does. Return a function that reports our exit code."""
    lines = os.environ.pop(SUPERVISED, None)
    if lines is None:
        return lambda code: None
    life, word = map(int, lines.split(","))
    # We write from the background, and some terminals stop a program that does.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    for line in (life, word):
        os.set_inheritable(line, False)  # Ray's processes may outlive us

    def watch() -> None:
        from tune_dml.running.cluster.cluster import NodeWatch

        node = NodeWatch()
        while not select.select([life], [], [], _NODE_CHECK)[0]:
            if node.is_lost():
                os._exit(1)  # Ray would wait for ever at a regular exit
        os.kill(os.getpid(), signal.SIGKILL)  # the supervisor has died, for whatever reason

    threading.Thread(target=watch, daemon=True, name="supervisor").start()
    return lambda code: _speak(word, code)


def _speak(word: int, code: int) -> None:
    with contextlib.suppress(OSError):  # a closed pipe or a full disk must not prevent the report below
        sys.stdout.flush()
    with contextlib.suppress(BrokenPipeError):
        os.write(word, bytes([code]))


def supervise(words: Sequence[str]) -> int:
    """Run a training verb, restart its driver if it dies, and return the exit code.

    Raises:
        ConfigError: Ray's processes ended each time before a trial began.
    """
    folder: Path | None = None
    began, asked = float(os.environ.get(BUDGET_FROM) or time.time()), words
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
            break  # a restarted driver failed, as when its cluster does not answer
        folder = _folder_of(words, driver.pid) or folder
        if folder is None:
            if driver.was_told:
                _say("Interrupted before it had begun.")
            elif code in _SIGNALS:
                _say(f"The driver ended unexpectedly ({_cause(code)}) before it had begun.")
            return code or 1
        if driver.was_told:
            break  # a signal ended it, though not in order
        budgets = _budgets_left(
            _given(asked), folder, began, time.time()
        )  # `words` may state what an earlier driver left
        spent = any(left <= 0 for left in budgets.values())
        closing = "its budget is spent, closing the session" if spent else "closing the session"
        then = "continuing where it stopped" if attempt < _ATTEMPTS and not spent else closing
        _say(f"The driver of {folder.name} ended unexpectedly ({_cause(code)}): {then}.")
        if spent:
            break
        again = _again(words, folder)
        words = [*again, *(word for flag, left in budgets.items() for word in (flag, f"{left:.6g}"))]
    if folder is None:
        return _INTERRUPTED
    if code not in _SIGNALS and not driver.was_told and not _has_begun(folder):
        return _lost_node(words, None if not driver.has_spoken else code)
    return _close(words, folder)


def _has_begun(folder: Path) -> bool:
    """Return whether a trial of the sweep has begun."""
    from tune_dml.record.state import read_state

    return any(trial.attempts for trial in read_state(folder).trial_states.values())


def _lost_node(words: Sequence[str], code: int | None) -> int:
    """Return the code of a driver that has reported why; raise ConfigError for one that has not."""
    from trainables.option_names import Flags, naming
    from tune_dml.running.cluster.cluster import lost_node_problem

    if code is None:
        with naming(Flags()):
            raise ConfigError(lost_node_problem(_given(words).get("address")))
    return code


def _close(words: Sequence[str], folder: Path) -> int:
    """Print the table and the command that continues; write the report."""
    from tune_dml.record.origin.commands import command
    from tune_dml.record.results import results_of

    # A report's --metric and --goal belong to results of other programs; the sweep has its own.
    given = {name: value for name, value in _given(words).items() if name not in {"metric", "goal"}}
    _Driver(["report", folder.name, *flags_of("report", given)]).wait()
    _say(f"Not complete. Continue with: {command(results_of(folder), 'resume')}")
    return _INTERRUPTED


class _Driver:
    """A process that runs a verb; each signal that reaches us is forwarded to it once."""

    def __init__(self, words: Sequence[str]):
        life, self._hold = os.pipe()
        self._word, word = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *_where_modules_are(), "-m", "tune_dml.cli", *words],
            env={**os.environ, SUPERVISED: f"{life},{word}"},
            pass_fds=(life, word),
            process_group=0,  # Ctrl-C reaches only us
        )
        os.close(life)
        os.close(word)
        self.pid = self._process.pid
        self.has_spoken = False
        """Whether it has reported its exit code."""
        self.was_told = False
        """Whether we have forwarded a signal to it."""

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""

        def hand_on(number: int, frame: FrameType | None) -> None:
            self.was_told = True
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            numbers.append(signal.SIGHUP)
        known = {number: signal.signal(number, hand_on) for number in numbers}
        try:
            said = os.read(self._word, 1)  # empty if it dies
            code = self._leave(said)
        finally:
            for number, handler in known.items():
                signal.signal(number, handler)
        self.has_spoken = bool(said)
        os.close(self._word)
        os.close(self._hold)
        return code if code >= 0 else 128 - code

    def _leave(self, said: bytes) -> int:
        """Return its exit code: the reported one, because Ray may change it or keep the process from exiting."""
        try:
            code = self._process.wait(_PARTING if said else None)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return said[0] if said else code


def _where_modules_are() -> list[str]:
    """Return Python's switch with which the driver finds the same modules as we do.

    `-m` alone searches the working directory first, which `tune-dml` does not search: a user's `random.py` or `types.py`
    would replace Python's own.
    """
    began_by_name = getattr(sys.modules["__main__"], "__spec__", None) is not None
    return [] if began_by_name and not sys.flags.safe_path else ["-P"]


def _folder_of(words: Sequence[str], pid: int) -> Path | None:
    """Return the folder of a driver's sweep: its lock contains the driver's process id."""
    storage = Path(_given(words).get("storage") or Session.storage)
    for lock in storage.absolute().glob("*/lock"):
        if lock.read_text(errors="replace").strip() == str(pid) and (lock.parent / "plan.json").exists():
            return lock.parent
    return None


def _again(words: Sequence[str], folder: Path) -> list[str]:
    """Return the command that continues: the same one if it runs only missing trials, else `resume`."""
    if words[0] in {"sweep", "confirm", "audit"}:
        return list(words)
    return ["resume", folder.name, *flags_of("resume", _given(words))]


def _budgets_left(given: ParsedFlags, folder: Path, began: float, now: float | None) -> dict[str, float]:
    """Return the rest of each given budget, by flag; all drivers of a command share it.

    `now` is None if no driver ran until now. An array's budgets are left whole: its session counts them itself.
    """
    from tune_dml.record.spending import hours_spent

    left: dict[str, float] = {}
    if ARRAY_GROUP in os.environ:
        return left
    if (seconds := given.get("time_budget")) is not None:
        left["--time-budget"] = seconds - ((now or time.time()) - began)
    if (hours := given.get("gpu_hours")) is not None:
        left["--gpu-hours"] = hours - hours_spent(folder, began, now)
    return left


def _of_earlier_jobs(words: Sequence[str], began: float) -> Sequence[str] | None:
    """Return a command with the budgets that its earlier jobs left; None if one is spent."""
    given = _given(words)
    name = given.get("sweep_name") or given.get("name")
    folder = Path(given.get("storage") or Session.storage) / str(name)
    if not name or not (folder / "ledger.jsonl").exists():
        return words
    left = _budgets_left(given, folder, began, None)
    if any(value <= 0 for value in left.values()):
        _say(f"The budget of {name} is spent.")
        return None
    return [*words, *(word for flag, value in left.items() for word in (flag, f"{value:.6g}"))]


def _given(words: Sequence[str]) -> ParsedFlags:
    context = _command(words[0]).make_context(words[0], list(words[1:]), resilient_parsing=True)
    given: ParsedFlags = context.params
    return given


def flags_of(verb: str, given: ParsedFlags) -> list[str]:
    """Return the given flags that another verb has too, with their values."""
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

    known = typer.main.get_command(application(verb)).commands  # type: ignore[attr-defined]
    if verb not in known:
        rule = "the program's modules are gone while it runs"
        raise ConfigError(Problem("tune-dml", rule, None, "Install it again; then run `tune-dml resume SWEEP`."))
    return known[verb]


def _cause(code: int) -> str:
    if code in _SIGNALS:
        from tune_dml.running.cluster.start_checks import low_limits

        return ", ".join([f"signal {_SIGNALS[code]}", *low_limits()])
    return f"exit code {code}: its Ray node is gone"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal or a full disk
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
