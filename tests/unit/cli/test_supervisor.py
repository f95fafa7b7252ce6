"""The supervisor without Ray: a program of a few lines replaces the driver."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.toys import event_of, plan_of
from ray.exceptions import ActorDiedError

from trainables.errors import ConfigError
from tune_dml.cli import __main__ as cli_program
from tune_dml.cli import _supervisor
from tune_dml.record.ledger import Ledger
from tune_dml.running.cluster import start_checks
from tune_dml.space import Grid, Knob

WORDS = ["sweep", "toy.yaml", "--name", "toy", "--max-concurrent", "1"]


@pytest.fixture
def drivers(tmp_path, monkeypatch):
    """Run a command with fake drivers: (exit code, whether it is reported, whether the driver holds the sweep)."""
    folder = tmp_path / "sweeps" / "toy"
    folder.mkdir(parents=True)
    plan_of(Knob("loss.margin", Grid((0.1, 0.2)))).save(folder / "plan.json")
    seen = []

    class Driver:
        ends = ()

        def __init__(self, words):
            seen.append(list(words))
            self.code, self.has_reported, holds, *told = Driver.ends.pop(0)
            self.was_signalled = bool(told)
            self.pid = 40_000 + len(seen)
            if holds:
                (folder / "lock").write_text(str(self.pid))

        def wait(self):
            return self.code

    monkeypatch.setattr(_supervisor, "_Driver", Driver)

    def run(*ends, words=WORDS):
        Driver.ends = [*ends, (0, True, False)]
        return _supervisor.supervise(words), seen

    return run


SPOKEN, LOST = (0, True, True), (137, False, True)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130])
def test_a_reported_exit_code_is_returned(drivers, code):
    assert drivers((code, True, False)) == (code, [WORDS])


def test_a_driver_interrupted_before_its_sweep_is_reported(drivers, capfd):
    assert drivers((143, False, False, True))[0] == 143
    assert capfd.readouterr().err == "Interrupted before the sweep started.\n"


def test_a_lost_driver_is_restarted_although_other_sweeps_cannot_be_read(drivers, tmp_path, capfd):
    for name in "abcdefgh":
        (tmp_path / "sweeps" / name / "lock").mkdir(parents=True)  # raises an OSError, as another user's file does
    code, seen = drivers(LOST, LOST, SPOKEN)
    assert (code, seen) == (0, [WORDS, WORDS, WORDS])
    assert capfd.readouterr().err.count("continuing where it stopped") == 2


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (137, "signal SIGKILL"),
        (255, "exit code 255"),
        (1, "exit code 1: its Ray node"),
        (70, "an error of the program, printed above)"),
    ],
)
def test_the_cause_of_a_lost_driver_is_printed(drivers, capfd, code, cause):
    assert drivers((code, False, True), SPOKEN)[0] == 0
    assert f"ended unexpectedly ({cause}" in capfd.readouterr().err


def test_after_three_drivers_the_session_is_closed(drivers, tmp_path, capfd):
    argv = ["/venv/bin/tune-dml", *WORDS, "--tracking-uri", "http://here:5000"]
    with Ledger(tmp_path / "sweeps" / "toy") as ledger:
        ledger.write(event_of("session", provenance={"argv": argv}))
    code, seen = drivers(LOST, LOST, LOST)
    assert code == 130
    assert seen[-1][:2] == ["report", "toy"]
    said = capfd.readouterr().err
    assert "Continue with: tune-dml resume toy --tracking-uri http://here:5000 --max-concurrent 1\n" in said


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 3)])
def test_a_driver_lost_after_the_last_trial_leaves_a_complete_sweep(drivers, tmp_path, capfd, status, code):
    plan = plan_of(Knob("loss.margin", Grid((0.1, 0.2))))
    with Ledger(tmp_path / "sweeps" / "toy") as ledger:
        for trial in plan.trials():
            ledger.write(event_of("started", trial.key, host="here"))
            ledger.write(event_of("ended", trial.key, status=status, metrics={plan.metric: 70.0}))
    assert drivers((143, False, True, "SIGTERM"))[0] == code
    assert capfd.readouterr().err == ""
    assert drivers((143, False, True, "SIGTERM"), (130, True, False))[0] == 130
    assert "Not complete. Continue with: tune-dml report toy" in capfd.readouterr().err


def test_all_drivers_share_a_budget(drivers, tmp_path, monkeypatch, capfd):
    """One trial used 1.5 of 2 worker-hours, and 5,400 of 100,000 seconds passed: the next driver gets the rest."""
    monkeypatch.setattr(_supervisor.time, "time", iter([1000.0, 6400.0, *[99_999.0] * 9]).__next__)
    resources = {"workers": 1, "gpus_per_worker": 0.0}
    lines = [
        {"kind": "ended", "time": 10.0, "key": "before", "body": {"status": "finished"}},
        {"kind": "session", "time": 1000.0, "key": "", "body": {"resources": resources}},
        {"kind": "started", "time": 1000.0, "key": "a", "body": {}},
        {"kind": "ended", "time": 2800.0, "key": "a", "body": {"status": "finished"}},
        {"kind": "started", "time": 2800.0, "key": "b", "body": {}},
    ]
    (tmp_path / "sweeps" / "toy" / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    budgets = ["--gpu-hours", "2", "--time-budget", "100000"]
    code, seen = drivers(LOST, LOST, words=[*WORDS, *budgets])
    assert seen[1][-4:] == ["--time-budget", "94600", "--gpu-hours", "0.5"]
    assert code == 130  # the second one's are spent when it is lost: the session is closed
    assert seen[2][:2] == ["report", "toy"]
    said = capfd.readouterr().err
    assert said.count("continuing where") == said.count("its budget is spent") == 1


def test_the_time_of_earlier_drivers_is_counted_once(drivers, monkeypatch):
    monkeypatch.setattr(_supervisor.time, "time", iter([1000.0, 1030.0, *[1060.0] * 9]).__next__)
    _, seen = drivers(LOST, LOST, SPOKEN, words=[*WORDS, "--time-budget", "100"])
    assert [words[-2:] for words in seen[1:]] == [["--time-budget", "70"], ["--time-budget", "40"]]


@pytest.mark.parametrize("ends", [[(143, False, True, "SIGTERM")], [(1, False, True), (1, True, False)]])
def test_a_signalled_driver_or_one_whose_cluster_is_gone_is_not_restarted(drivers, tmp_path, ends):
    with Ledger(tmp_path / "sweeps" / "toy") as ledger:
        ledger.write(event_of("started", "a", host="here"))
    code, seen = drivers(*ends)
    assert (code, seen[-1][:2], len(seen)) == (130, ["report", "toy"], len(ends) + 1)


def test_an_error_of_the_program_before_any_trial_has_exit_code_1(drivers):
    assert drivers(*[(70, False, True)] * 3)[0] == 1
    assert drivers((70, False, False))[0] == 1


def test_a_cluster_gone_before_any_trial_is_reported_by_the_driver(drivers):
    assert drivers((1, False, True), (1, True, False)) == (1, [WORDS, WORDS])


def test_a_ray_that_ends_before_any_trial_is_a_config_error(drivers):
    with pytest.raises(ConfigError, match=r"must start .its processes ended before a trial had begun.*logs are in"):
        drivers(*[(1, False, True)] * 3)
    with pytest.raises(ConfigError, match=r"--address: .* must be reachable .*, but got 'away:6379'"):
        drivers(*[(1, False, True)] * 3, words=[*WORDS, "--address", "away:6379"])


def test_the_closing_report_omits_metric_and_goal_of_a_program(drivers):
    words = [*WORDS, "--command", "python x.py", "--metric", "val/x", "--goal", "maximize", "--margin", "0.1"]
    _, seen = drivers(LOST, LOST, LOST, words=words)
    assert seen[-1][:2] == ["report", "toy"]
    assert "--margin" in seen[-1]
    assert not {"--metric", "--goal"} & set(seen[-1])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (134, "The driver ended unexpectedly (signal SIGABRT, `ulimit -v` is 3000 MB) before the sweep started.\n"),
        (0, "The driver ended unexpectedly (exit code 0) before the sweep started.\n"),  # `os._exit` of a method
        (1, ""),  # a traceback is there
    ],
)
def test_a_driver_lost_before_its_sweep_is_not_restarted(drivers, monkeypatch, capfd, code, said):
    monkeypatch.setattr(start_checks, "low_limits", lambda: ["`ulimit -v` is 3000 MB"])
    assert drivers((code, False, False)) == (code or 1, [WORDS])
    assert capfd.readouterr().err == said


def test_extend_and_resume_continue_as_resume_with_the_same_flags(tmp_path):
    words = ["extend", "toy", "--seeds", "5", "--max-concurrent", "2", "--gpu-hours", "3.5", "--json"]
    again = _supervisor._continuing_argv(words, tmp_path / "toy")
    assert again[:2] == ["resume", "toy"]
    assert "--seeds" not in again
    assert again[again.index("--max-concurrent") + 1] == "2"
    assert again[again.index("--gpu-hours") + 1] == "3.5"
    assert "--json" in again
    assert "--retry-failed" not in _supervisor._continuing_argv(["resume", "toy", "--retry-failed"], tmp_path / "toy")


DRIVER = """
import os, signal, sys, time
from tune_dml.cli._supervisor import attach_to_supervisor
def say(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, say)
attach_to_supervisor()
print(os.getpid(), flush=True)
for _ in range(600):  # a signal may reach another thread while this one sleeps
    time.sleep(0.1)
"""
SUPERVISOR = """
import sys
from tune_dml.cli import _supervisor
sys.executable = sys.argv[1]
_supervisor._Driver(sys.argv[2:]).wait()
"""


@pytest.fixture
def program(tmp_path):
    """A replacement for Python that runs the driver."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{DRIVER}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_driver_ends_with_its_supervisor(program):
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, program], stdout=subprocess.PIPE) as supervisor:
        driver = int(supervisor.stdout.readline())
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{driver}") and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not os.path.exists(f"/proc/{driver}")


def test_a_terminal_with_tostop_does_not_stop_the_driver(program):
    """`stty tostop`: the driver has its own process group."""
    ours, theirs = pty.openpty()
    flags = termios.tcgetattr(theirs)
    flags[3] |= termios.TOSTOP
    termios.tcsetattr(theirs, termios.TCSANOW, flags)
    code = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{SUPERVISOR}"
    with subprocess.Popen(
        [sys.executable, "-c", code, program], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as supervisor:
        os.close(theirs)
        heard = select.select([ours], [], [], 30)[0]
        supervisor.kill()
    os.close(ours)
    assert heard


@pytest.mark.parametrize("is_ignored", [False, True], ids=["terminal closed", "nohup"])
def test_a_closed_terminal_ends_the_driver_cleanly_except_under_nohup(program, is_ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, program], stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    with supervisor:
        supervisor.stdout.readline()
        supervisor.send_signal(signal.SIGHUP)
        if is_ignored:
            supervisor.send_signal(signal.SIGINT)
        assert supervisor.stdout.readline() == f"{'SIGINT' if is_ignored else 'SIGTERM'}\n"


@pytest.mark.parametrize(
    ("error", "reported"), [(SystemExit(3), [3]), (ValueError("a bug"), [None]), (ActorDiedError(), [])]
)
def test_an_error_of_the_program_is_reported_as_such(monkeypatch, error, reported):
    def fail():
        raise error

    codes = []
    monkeypatch.setattr(cli_program, "gc", SimpleNamespace(set_threshold=lambda *numbers: None, freeze=lambda: None))
    monkeypatch.setattr(cli_program, "main", fail)
    monkeypatch.setattr(cli_program, "attach_to_supervisor", lambda: codes.append)
    monkeypatch.setattr(sys, "argv", ["tune-dml", "report"])
    monkeypatch.setenv(_supervisor.SUPERVISED, "3,4")
    with pytest.raises(type(error)):
        cli_program.program()
    assert codes == reported


def test_a_thread_that_never_ends_does_not_keep_a_verb_from_ending():
    """Such as one that a user's loss starts in `train`."""
    ask = """
import sys, threading
from tune_dml.cli import __main__ as program
program._EXIT_SECONDS = 0.1
threading.Thread(target=threading.Event().wait, name="of a loss").start()
sys.argv = ["tune-dml", "--version"]
program.program()
"""
    ended = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0
    assert ended.stderr == "Ended without waiting for threads that still run: of a loss\n"


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_no_pipe_gets_the_number_of_a_closed_standard_stream(tmp_path, closed):
    """With `>&-` the pipe to the driver became its standard output, so the table and the report were lost."""
    ask = f"""
import os, sys
from pathlib import Path
from tune_dml.cli.__main__ import occupy_standard_streams
for number in {closed}:
    os.close(number)
occupy_standard_streams()
inherited = [os.get_inheritable(number) for number in {closed}]
Path(sys.argv[1]).write_text(str([min(os.pipe()) > 2, all(inherited)]))
"""
    subprocess.run([sys.executable, "-c", ask, str(tmp_path / "seen")], check=False)
    assert (tmp_path / "seen").read_text() == "[True, True]"


@pytest.mark.parametrize(
    ("command", "looks_here"), [(["begin.py"], False), (["-m", "begin"], True), (["-P", "-m", "begin"], False)]
)
def test_the_driver_has_the_module_path_of_the_command(tmp_path, command, looks_here):
    """`tune-dml` does not search the working directory, which may have a `types.py`; `python -m` does."""
    (tmp_path / "begin.py").write_text("from tune_dml.cli import _supervisor; print(_supervisor._module_path_flags())")
    modules = os.pathsep.join([str(Path(_supervisor.__file__).parents[2]), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": modules}
    said = subprocess.check_output([sys.executable, *command], cwd=tmp_path, env=environment, text=True)
    assert said.strip() == str([] if looks_here else ["-P"])
