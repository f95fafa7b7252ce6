"""The supervisor: runs a training verb in a driver process, and restarts a driver that dies.

Ray ends a process when its node dies, and the kernel ends one that uses too much memory. Such a process prints no table and
writes no report. So the supervisor, which loads neither Ray nor torch, waits for the driver. It restarts a driver that
ended without reporting an exit code. If the restarts fail too, it closes the session: it prints the table and the command
that continues, writes the report, and exits with code 130.

The driver ends when the supervisor does, even by kill -9.
"""

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
from typing import Any, NoReturn

from trainables.errors import ConfigError
from trainables.option_names import Flags, naming
from tune_dml.planning.request import Session
from tune_dml.record.origin.several_jobs import ARRAY_GROUP, BUDGET_FROM

ParsedFlags = Mapping[str, Any]  # parameter of a verb -> its parsed value
TRAINING = ("sweep", "resume", "extend", "confirm", "audit")
_ATTEMPTS = 3  # maximum number of drivers; retries of trials are counted separately
SUPERVISED = "TUNE_DML_SUPERVISED"  # environment variable of a driver: the numbers of its two pipes to the supervisor
_NODE_CHECK = 2.0  # seconds between checks of the node that the driver is attached to
_EXIT_SECONDS = 30.0  # seconds that a driver may take to exit after it has reported its exit code
_INTERRUPTED = 130
_BUG = 70
"""Code that a driver reports for an exception that it printed: an error of the program, after which it is restarted."""
_SIGNALS = {number + 128: number.name for number in signal.Signals}  # exit code -> the signal that ended a program


def attach_to_supervisor() -> Callable[[int | None], None]:
    """End this driver when the supervisor or our Ray node ends. Return a function that reports our exit code.

    The code is None if the driver ends by an exception.
    """
    alive_pipe, code_pipe = map(int, os.environ.pop(SUPERVISED).split(","))
    # We write from the background, and some terminals stop a program that does.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    for pipe in (alive_pipe, code_pipe):
        os.set_inheritable(pipe, False)  # Ray's processes may outlive us

    def watch() -> None:
        from tune_dml.running.cluster.cluster import NodeWatch

        node = NodeWatch()
        while not select.select([alive_pipe], [], [], _NODE_CHECK)[0]:
            if node.is_lost():
                os._exit(1)  # Ray would wait for ever at a regular exit
        os.kill(os.getpid(), signal.SIGKILL)  # the supervisor has died, for whatever reason

    threading.Thread(target=watch, daemon=True, name="supervisor").start()
    return lambda code: _report_exit_code(code_pipe, _BUG if code is None else code)


def _report_exit_code(pipe: int, code: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would print the traceback of an exit handler
    with contextlib.suppress(OSError):  # a closed pipe or a full disk must not prevent the report below
        sys.stdout.flush()
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, bytes([code]))


def supervise(argv: Sequence[str]) -> int:
    """Run a training verb, restart its driver if it dies, and return the exit code.

    Raises:
        ConfigError: Ray's processes ended each time before a trial started.
    """
    folder: Path | None = None
    began, typed = float(os.environ.get(BUDGET_FROM) or time.time()), argv
    reduced = _deduct_earlier_jobs(typed, began)
    if reduced is None:
        return _INTERRUPTED
    argv = reduced
    for attempt in range(1, _ATTEMPTS + 1):
        driver = _Driver(argv)
        code = driver.wait()
        if driver.has_reported and (folder is None or code in {0, 3, _INTERRUPTED}):
            return code
        if driver.has_reported:
            break  # a restarted driver failed, as when its cluster does not answer
        folder = _find_sweep_folder(argv, driver.pid) or folder
        if folder is None:
            if driver.was_signalled:
                _print_error("Interrupted before the sweep started.")
            elif code not in {1, _BUG}:  # these follow a traceback
                cause = _cause(code) if code in _SIGNALS else f"exit code {code}"
                _print_error(f"The driver ended unexpectedly ({cause}) before the sweep started.")
            return 1 if code in {0, _BUG} else code
        if driver.was_signalled:
            break  # the signal killed it before it could report
        budgets = _remaining_budgets(_parse_flags(typed), folder, began, time.time())
        is_spent = any(value <= 0 for value in budgets.values())
        closing = "its budget is spent, closing the session" if is_spent else "closing the session"
        action = "continuing where it stopped" if attempt < _ATTEMPTS and not is_spent else closing
        _print_error(f"The driver of {folder.name} ended unexpectedly ({_cause(code)}): {action}.")
        if is_spent:
            break
        argv = _with_budgets(_continuing_argv(argv, folder), budgets)
    if folder is None:
        return _INTERRUPTED
    if code in _SIGNALS or driver.was_signalled or _has_started_trials(folder):
        return _close_session(argv, folder)
    if not driver.has_reported and code != _BUG:
        _raise_lost_node(argv)
    return 1 if code == _BUG else code


def _has_started_trials(folder: Path) -> bool:
    from tune_dml.record.state import read_state

    return any(trial.attempts for trial in read_state(folder).trial_states.values())


def _raise_lost_node(argv: Sequence[str]) -> NoReturn:
    from tune_dml.running.cluster.cluster import lost_node_problem

    with naming(Flags()):
        raise ConfigError(lost_node_problem(_parse_flags(argv).get("address")))


def _close_session(argv: Sequence[str], folder: Path) -> int:
    """Write the report, print the table and the command that continues, and return the exit code.

    If the driver ended after its last trial, the report completes the session.
    """
    from tune_dml.record.origin.commands import CONTINUE_WITH, command
    from tune_dml.record.results import results_of
    from tune_dml.sweep import Sweep

    # A report's --metric and --goal belong to results of other programs; the sweep has its own.
    flags = {name: value for name, value in _parse_flags(argv).items() if name not in {"metric", "goal"}}
    code = _Driver(["report", folder.name, *flags_of("report", flags)]).wait()
    results = results_of(folder)
    is_complete = argv[0] != "audit" and not (results.is_incomplete or results.confirmation_left)
    if is_complete and code == 0:
        return Sweep(results, confirmation=argv[0] == "confirm").exit_code
    _print_error(f"Not complete. {CONTINUE_WITH}{command(results, 'report' if is_complete else 'resume')}")
    return _INTERRUPTED


class _Driver:
    """A process that runs a verb; each signal that reaches us is forwarded to it once."""

    def __init__(self, argv: Sequence[str]):
        alive_pipe, self._alive_end = os.pipe()
        self._code_end, code_pipe = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *_module_path_flags(), "-m", "tune_dml.cli", *argv],
            env={**os.environ, SUPERVISED: f"{alive_pipe},{code_pipe}"},
            pass_fds=(alive_pipe, code_pipe),
            process_group=0,  # Ctrl-C reaches only us
        )
        os.close(alive_pipe)
        os.close(code_pipe)
        self.pid = self._process.pid
        self.has_reported = False  # whether it has reported its exit code
        self.was_signalled = False  # whether we have forwarded a signal to it

    def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""

        def forward(number: int, frame: FrameType | None) -> None:
            self.was_signalled = True
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            numbers.append(signal.SIGHUP)
        handlers = {number: signal.signal(number, forward) for number in numbers}
        try:
            report = os.read(self._code_end, 1)  # empty if it dies
            code = self._wait_for_exit(report)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        self.has_reported = bool(report) and code != _BUG
        os.close(self._code_end)
        os.close(self._alive_end)
        return code if code >= 0 else 128 - code

    def _wait_for_exit(self, report: bytes) -> int:
        """Return the reported exit code if there is one: Ray may change it, or keep the process from exiting."""
        try:
            code = self._process.wait(_EXIT_SECONDS if report else None)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return report[0] if report else code


def _module_path_flags() -> list[str]:
    """Return Python's flags with which the driver finds the same modules as we do.

    `-m` alone searches the working directory first, which `tune-dml` does not search: a user's `random.py` or `types.py`
    would replace Python's own.
    """
    is_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    return [] if is_module and not sys.flags.safe_path else ["-P"]


def _find_sweep_folder(argv: Sequence[str], pid: int) -> Path | None:
    """Return the folder of a driver's sweep: its lock contains the driver's process id."""
    storage = Path(_parse_flags(argv).get("storage") or Session.storage)
    for lock in storage.absolute().glob("*/lock"):
        with contextlib.suppress(OSError):  # another user's
            if lock.read_text(errors="replace").strip() == str(pid) and (lock.parent / "plan.json").exists():
                return lock.parent
    return None


def _continuing_argv(argv: Sequence[str], folder: Path) -> list[str]:
    """Return the command that continues: the same one if it runs only missing trials, else `resume`."""
    if argv[0] in {"sweep", "confirm", "audit"}:
        return list(argv)
    return ["resume", folder.name, *flags_of("resume", _parse_flags(argv))]


def _remaining_budgets(flags: ParsedFlags, folder: Path, began: float, now: float | None) -> dict[str, float]:
    """Return the unspent part of each given budget, by flag; all drivers of a command share it.

    `now` is None if no driver has run yet. Budgets of an array are not reduced: its session counts them itself.
    """
    from tune_dml.record.spending import hours_spent

    budgets: dict[str, float] = {}
    if ARRAY_GROUP in os.environ:
        return budgets
    if (seconds := flags.get("time_budget")) is not None:
        budgets["--time-budget"] = seconds - ((now or time.time()) - began)
    if (hours := flags.get("gpu_hours")) is not None:
        budgets["--gpu-hours"] = hours - hours_spent(folder, began, now)
    return budgets


def _with_budgets(argv: Sequence[str], budgets: Mapping[str, float]) -> list[str]:
    """Return the command with these budgets; a later flag overrides an earlier one."""
    return [*argv, *(word for flag, value in budgets.items() for word in (flag, f"{value:.6g}"))]


def _deduct_earlier_jobs(argv: Sequence[str], began: float) -> Sequence[str] | None:
    """Return a command with the budgets that its earlier jobs left; None if a budget is spent."""
    if BUDGET_FROM not in os.environ:
        return argv
    flags = _parse_flags(argv)
    name = flags.get("sweep_name") or flags.get("name")
    folder = Path(flags.get("storage") or Session.storage) / str(name)
    if not name or not (folder / "ledger.jsonl").exists():
        return argv
    budgets = _remaining_budgets(flags, folder, began, None)
    if any(value <= 0 for value in budgets.values()):
        _print_error(f"The budget of {name} is spent.")
        return None
    return _with_budgets(argv, budgets)


def _parse_flags(argv: Sequence[str]) -> ParsedFlags:
    context = _command(argv[0]).make_context(argv[0], list(argv[1:]), resilient_parsing=True)
    flags: ParsedFlags = context.params
    return flags


def flags_of(verb: str, given: ParsedFlags) -> list[str]:
    """Return those of the given flags that `verb` also has, with their values."""
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

    return typer.main.get_command(application(verb)).commands[verb]  # type: ignore[attr-defined]


def _cause(code: int) -> str:
    if code in _SIGNALS:
        from tune_dml.running.cluster.start_checks import low_limits

        return ", ".join([f"signal {_SIGNALS[code]}", *low_limits()])
    return "an error of the program, printed above" if code == _BUG else f"exit code {code}: its Ray node is gone"


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal or a full disk
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
