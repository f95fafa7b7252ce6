"""Trials of the user's own program: its reports, and how bad programs end."""

import errno
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.programs import METRIC, ProgramRun

import tune_dml
from trainables import files
from trainables.context import SEALED
from trainables.files import write_whole
from tune_dml.programs import client
from tune_dml.programs.command import Program
from tune_dml.record.contradictions import _current_digest
from tune_dml.running.failures import classify
from tune_dml.running.trials import program
from tune_dml.running.trials.messages import Messages
from tune_dml.running.trials.program import ProgramTrial

LOGS = """
import sys, tune_dml
trial = tune_dml.trial()
assert trial.knobs == {"optim.lr": 0.1, "flag": True, "seed": 7} and trial.seed == 7
(trial.checkpoints / "weights").write_text("1")
print(sys.argv[1:])
for step in (10, 20):
    tune_dml.log(step=step, **{"train/loss": 1 / step})
    tune_dml.log({"val/accuracy": step / 100, "test/accuracy": 0.123}, step=step)
"""


class TestItsReports:
    @pytest.fixture(scope="class")
    def ran(self, tmp_path_factory):
        return ProgramRun(tmp_path_factory.mktemp("logs"), LOGS)

    def test_a_program_gets_flags_json_seed_and_folder(self, ran):
        assert ran.end.status == "finished", ran.end
        assert b"['--optim.lr=0.1', '--flag=True', '--seed=7']" in ran.output

    def test_calls_of_one_step_are_one_row(self, ran):
        last = {"train/loss": 0.05, "val/accuracy": 0.2}
        assert ran.rows == [{"step": 10, "train/loss": 0.1, "val/accuracy": 0.1}, {"step": 20, **last}]
        assert ran.end.metrics == last
        assert ran.end.step == 20

    def test_test_figures_are_in_the_sealed_file_alone(self, ran):
        assert json.loads((ran.folder / SEALED).read_text()) == {"test/accuracy": 0.123}
        assert (ran.folder / SEALED).stat().st_mode & 0o077 == 0
        others = [path for path in ran.folder.rglob("*") if path.is_file() and path.name != SEALED]
        assert not [path for path in others if b"0.123" in path.read_bytes()]
        assert "0.123" not in json.dumps(ran.sent)

    def test_a_script_is_identified_by_its_content(self, ran):
        ((script, digest),) = ran.end.code.items()
        assert Path(script).name == "own.py"
        assert _current_digest(script) == digest

    def test_nested_objects_of_a_results_file_are_names_with_slashes(self, tmp_path):
        results = {"val": {"accuracy": 0.5, "by": {"class": 0.25}}, "test": {"accuracy": 0.123}, "val/accuracy": 0.75}
        ran = ProgramRun(tmp_path, f"import json, os; json.dump({results}, open(os.environ['TUNE_DML_RESULTS'], 'w'))")
        assert ran.end.metrics == {"val/accuracy": 0.75, "val/by/class": 0.25}  # a name in full has precedence
        assert ran.rows == [{"step": 1, **ran.end.metrics}]
        assert json.loads((ran.folder / SEALED).read_text()) == {"test/accuracy": 0.123}
        assert ran.notes == []

    @pytest.mark.parametrize("end", ["\\n", ""])
    def test_lines_of_json_need_no_package_and_no_last_line_end(self, tmp_path, end):
        script = f"import os; open(os.environ['TUNE_DML_LOG'], 'a').write('{{\"val/accuracy\": 0.25}}{end}')"
        assert ProgramRun(tmp_path, script).end.metrics == {"val/accuracy": 0.25}

    @pytest.mark.slow
    def test_the_client_of_mlflow_logs_to_the_given_run(self, tmp_path):
        script = (
            "import mlflow\nwith mlflow.start_run():\n mlflow.log_params({'a': 1})\n mlflow.set_tag('b', 'c')\n"
            " for step in (1, 2): mlflow.log_metric('val/accuracy', step / 10, step=step)\n"
            " mlflow.log_metrics({'train/loss': 0.5, 'test/accuracy': 0.123}, step=2)\n"
            " mlflow.log_text('hello', 'note.txt')\n"
        )
        ran = ProgramRun(tmp_path, script)
        assert ran.end.status == "finished", ran.end
        assert ran.end.metrics == {"val/accuracy": 0.2, "train/loss": 0.5}
        assert [row["step"] for row in ran.rows] == [1, 2]
        assert json.loads((ran.folder / SEALED).read_text()) == {"test/accuracy": 0.123}
        assert (ran.folder / "program/artifacts/note.txt").read_text() == "hello"

    @pytest.mark.slow
    def test_login_and_proxy_of_another_mlflow_server_are_ignored(self, tmp_path, monkeypatch):
        for name, value in {"USERNAME": "me", "PASSWORD": "secret", "TOKEN": "other"}.items():
            monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        script = "import mlflow\nwith mlflow.start_run(): mlflow.log_metric('val/accuracy', 0.5)"
        assert ProgramRun(tmp_path, script).end.metrics == {"val/accuracy": 0.5}

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("calls", "rows"),
        [
            ("for e in range(3): mlflow.log_metrics({'val/accuracy': e, 'loss': 9 - e}, step=e)", [0, 1, 2]),
            ("for e in range(3): mlflow.log_metric('val/accuracy', e)", [0, 1, 2]),
            ("for e in range(3): mlflow.log_metric('loss', 1, step=10 * e + 5); mlflow.log_metric('val/accuracy', e, step=e)",
             [5, 15, 25]),
        ],
        ids=["from step 0", "without steps", "epochs beside batches"],
    )  # fmt: skip
    def test_the_last_value_logged_by_mlflow_counts(self, calls, rows, tmp_path):
        ran = ProgramRun(tmp_path, f"import mlflow\nwith mlflow.start_run():\n {calls}\n")
        assert ran.end.metrics["val/accuracy"] == 2, ran.end
        assert [row["step"] for row in ran.rows] == rows
        assert ran.notes == []

    def test_figures_may_count_their_own_steps(self, tmp_path):
        script = (
            "import tune_dml\nfor epoch in (1, 2, 3):\n tune_dml.log(step=100 * epoch, loss=1 / epoch)\n"
            " tune_dml.log(step=epoch, **{'val/accuracy': epoch / 10})\n"
        )
        ran = ProgramRun(tmp_path, script)
        assert ran.end.metrics == {"loss": 1 / 3, "val/accuracy": 0.3}
        assert [(row["step"], row["val/accuracy"]) for row in ran.rows] == [(100, 0.1), (200, 0.2), (300, 0.3)]
        assert ran.notes == []

    @pytest.mark.parametrize(
        ("steps", "rows", "note"),
        [
            ((0.5, 0.75, 2.0), [0, 2], "step 0.5 is no whole number; such steps are rounded down"),
            ((3, 10**30), [3], f"step {10**30} is no whole number from 0 to 2^53; such rows are left out"),
        ],
    )
    def test_a_step_that_no_store_can_keep_is_named(self, steps, rows, note, tmp_path):
        script = f"import tune_dml\nfor step in {steps}: tune_dml.log(step=step, **{{'val/accuracy': 1}})"
        ran = ProgramRun(tmp_path, script)
        assert [row["step"] for row in ran.rows] == rows
        assert ran.notes == [note]

    def test_outside_a_sweep_the_client_prints(self, capsys, monkeypatch):
        monkeypatch.delenv("TUNE_DML_LOG", raising=False)
        tune_dml.log(step=3, loss=0.5)
        assert json.loads(capsys.readouterr().out) == {"step": 3, "loss": 0.5}
        with pytest.raises(TypeError, match="loss must be a number, but got 'high'"):
            tune_dml.log(loss="high")
        for step in ("a", float("nan")):
            with pytest.raises(TypeError, match=f"step must be a finite number, but got {step!r}"):
                tune_dml.log(step=step, loss=0.5)


NONE = "it ended without reporting val/accuracy."
BAD = {
    "no metric": ("import tune_dml; tune_dml.log(accuracy=1)", f"{NONE} Did you mean 'accuracy'?"),
    "silent": ("", f"{NONE} It reported nothing: call tune_dml.log, or write to $TUNE_DML_LOG."),
    "nan": (
        "import tune_dml, time; nan = float('nan')\n"
        "tune_dml.log({'val/accuracy': 1}, step=1); tune_dml.log({'test/accuracy': nan, 'val/accuracy': nan}, step=4)\n"
        "tune_dml.log({'val/accuracy': 1}, step=5); tune_dml.log({'val/accuracy': 1}, step=6); time.sleep(60)",
        "val/accuracy is nan at step 4",
    ),
    "huge": ("import tune_dml; tune_dml.log(**{'val/accuracy': -1e200})", "val/accuracy is -1e+200 at step 1"),
    "exit": ("import sys; print('a'); sys.exit('\\x1b[31mno file x.npz\\x1b[0m')", "exit status 1: no file x.npz"),
    "raised": (
        "try: [][0]\nexcept IndexError: raise ValueError('sizes differ:\\n  3 and 4\\nsee the page')",
        "exit status 1: ValueError: sizes differ: 3 and 4 see the page",
    ),
    "segfault": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11: it printed nothing"),
    "seed": (
        "import argparse; p = argparse.ArgumentParser(prog='own.py'); p.add_argument('--optim.lr')\n"
        "p.add_argument('--flag'); p.parse_args()",
        "exit status 2: own.py: error: unrecognized arguments: --seed=7. Write `seed_flag: null` if the script takes "
        "no seed, or name its flag",
    ),
}


class TestBadPrograms:
    @pytest.mark.parametrize("kind", BAD)
    def test_each_bad_program_ends_with_one_line(self, kind, tmp_path):
        script, reason = BAD[kind]
        ran = ProgramRun(tmp_path, script)
        end = ran.end
        assert (end.status, end.reason) == ("diverged" if kind in {"nan", "huge"} else "failed", reason)
        assert not ran.notes
        assert [row["step"] for row in ran.rows if "val/accuracy" in row] == [1] * (kind == "nan")
        assert "\n" not in end.reason

    def test_a_metric_that_is_null_was_reported(self, tmp_path):
        lines = '{"step": 3, "val/accuracy": null}\n{"step": 4, "loss": "high"}\n'
        ran = ProgramRun(tmp_path, f"import os; open(os.environ['TUNE_DML_LOG'], 'a').write({lines!r})")
        assert ran.end.reason == f"{NONE} At step 3 it was null, which is no number."
        left_out = ("val/accuracy is no number (null)", 'loss is no number ("high")')
        assert ran.notes == [f"{said} and is left out" for said in left_out]

    def test_a_time_limit_ends_a_hang(self, tmp_path):
        began = time.monotonic()
        end = ProgramRun(tmp_path, "import time; print('here'); time.sleep(100)", timeout=2).end
        assert end.reason == "timeout: it ran longer than 2 s"
        assert "here" in end.traceback
        assert time.monotonic() - began < 30

    def test_of_long_output_the_start_and_the_end_are_kept(self, tmp_path):
        script = "import sys, os\nos.write(1, b'BEGIN')\nfor i in range(100): os.write(1, b'x' * 1_000_000)\nsys.exit('\\nEND')"
        ran = ProgramRun(tmp_path, script)
        assert ran.end.reason == "exit status 1: END"
        assert len(ran.output) < 1_500_000
        assert ran.output.startswith(b"BEGIN")
        assert ran.output.endswith(b"END\n")
        assert b"bytes are left out" in ran.output

    def test_output_that_cannot_be_kept_does_not_stop_the_program(self, tmp_path):
        """On a full disk the program waited for ever at a full pipe."""
        script = "import os, tune_dml\nfor i in range(50): os.write(1, b'x' * 10_000)\n"
        script += "tune_dml.log(**{'val/accuracy': 1})"
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            ran = ProgramRun(tmp_path, script, timeout=20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (ran.end.status, len(ran.output)) == ("finished", 100_000)

    def test_a_trial_waits_while_the_disk_is_full(self, tmp_path, monkeypatch):
        refused = []

        def write(path, *content, **options):
            if path.name not in refused:
                refused.append(path.name)
                raise OSError(errno.ENOSPC, "No space left on device")
            return write_whole(path, *content, **options)

        monkeypatch.setattr(program, "write_whole", write)
        monkeypatch.setattr(files, "_FIRST_PAUSE", 0.01)
        ran = ProgramRun(tmp_path, "import tune_dml; tune_dml.log(**{'val/accuracy': 1, 'test/accuracy': 2})")
        assert ran.end.status == "finished"
        assert refused == ["knobs.json", SEALED]
        assert json.loads((ran.folder / SEALED).read_text()) == {"test/accuracy": 2}
        assert ["No space left on device; waiting" in note for note in ran.notes] == [True, False] * 2

    def test_the_client_waits_while_the_disk_is_full(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setenv("TUNE_DML_LOG", str(tmp_path / "log"))
        monkeypatch.setattr(files, "_FIRST_PAUSE", 0.01)
        parts = [4, OSError(errno.ENOSPC, "No space left on device"), 100]
        write = os.write

        def full(file, content):
            part = parts.pop(0)
            if isinstance(part, OSError):
                raise part
            return write(file, content[:part])

        monkeypatch.setattr(client.os, "write", full)
        tune_dml.log(step=1, loss=0.5)
        assert json.loads((tmp_path / "log").read_text()) == {"step": 1, "loss": 0.5}
        assert "waiting up to 10 minutes" in capsys.readouterr().err

    @pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
    def test_child_processes_are_ended_even_in_a_new_session(self, tmp_path):
        script = (
            "import subprocess, sys, tune_dml\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
            "open('child', 'w').write(str(child.pid))\n"
            "tune_dml.log(**{'val/accuracy': 1})\n"
        )
        ran = ProgramRun(tmp_path, script)
        assert ran.end.status == "finished"
        assert ran.notes == ["it left processes running, which were ended: 1"]
        assert is_gone(int((tmp_path / "child").read_text()))

    def test_a_program_killed_from_outside_is_retried(self, tmp_path):
        with pytest.raises(OSError, match="killed by signal 9") as raised:
            ProgramRun(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert classify(raised.value).is_retryable

    @pytest.mark.parametrize(
        ("killed_at", "goes_on_at", "values"),
        [(3, 4, [1, 2, 3, 40]), (3, 3, [1, 2, 30, 40]), (3, 1, [10, 20, 30, 40]), (4, 5, [1, 2, 3, 4])],
        ids=["at the next step", "a step back", "from the start", "with nothing left to do"],
    )
    def test_rows_of_a_killed_attempt_stay_unless_repeated(self, killed_at, goes_on_at, values, tmp_path):
        script = (
            "import os, signal, tune_dml\nmark = tune_dml.trial().checkpoints / 'mark'\nfirst = not mark.exists()\n"
            f"mark.touch()\nfor step in range(1 if first else {goes_on_at}, 5):\n"
            f" tune_dml.log(step=step, **{{'val/accuracy': step if first else 10 * step}})\n"
            f" if first and step == {killed_at}: os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        with pytest.raises(OSError, match="killed by signal 9"):
            ProgramRun(tmp_path, script)
        ran = ProgramRun(tmp_path, script)
        assert [row["val/accuracy"] for row in ran.rows] == values
        assert ran.end.metrics == {"val/accuracy": values[-1]}
        assert (ran.notes, (ran.folder / "program/log.jsonl").exists()) == ([], False)

    def test_a_log_that_the_program_writes_anew_is_read_from_its_start(self, tmp_path):
        """The offset of the replaced lines was kept, so that a killed attempt's rows, or the first row, were the result."""
        script = (
            "import json, os, signal, time, tune_dml\nmark = tune_dml.trial().checkpoints / 'mark'\n"
            "first = not mark.exists()\nmark.touch()\nfor step in range(1, 6 if first else 4):\n"
            " with open(os.environ['TUNE_DML_LOG'], 'a' if first else 'w') as log:\n"
            "  log.write(json.dumps({'step': step, 'val/accuracy': step if first else 10 * step}) + '\\n')\n"
            " time.sleep(0 if first else 0.5)\nif first: os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        with pytest.raises(OSError, match="killed by signal 9"):
            ProgramRun(tmp_path, script)
        ran = ProgramRun(tmp_path, script)
        assert [row["val/accuracy"] for row in ran.rows] == [10, 20, 30]
        assert (ran.end.metrics, ran.notes) == ({"val/accuracy": 30}, [])

    def test_a_program_whose_output_cannot_be_kept_is_not_started(self, tmp_path):
        """It ran on without a trial, which had failed because "python cannot be started"."""
        (tmp_path / "trials/k1/program/output.txt").mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            ProgramRun(tmp_path, "open('ran', 'w').close()")
        assert not (tmp_path / "ran").exists()

    def test_unreadable_rows_are_skipped_and_reported_once(self, tmp_path):
        script = (
            "import os, tune_dml\nlog = open(os.environ['TUNE_DML_LOG'], 'a')\n"
            "log.write('no json\\n[1]\\n' * 50); log.flush()\n"
            "tune_dml.log(step=5, **{'val/accuracy': 1, 'loss': float('inf')})\n"
            "tune_dml.log(step=3, **{'val/accuracy': 2})\n"
            'log.write(\'{"step": 6, "val/accuracy": 3, "note": "text"}\\n\'); log.flush()\n'
        )
        ran = ProgramRun(tmp_path, script)
        assert ran.end.metrics == {"val/accuracy": 3}
        assert [note.split(" ", 3)[0] for note in ran.notes] == ["line", "loss", "step", "note"]

    def test_a_results_file_without_an_object_is_named(self, tmp_path):
        ran = ProgramRun(tmp_path, "import os; open(os.environ['TUNE_DML_RESULTS'], 'w').write('[1]')")
        assert ran.notes == ["its results file cannot be read (it holds no JSON object)"]

    def test_of_very_many_rows_those_with_the_metric_are_kept(self, tmp_path):
        script = (
            "import json, os\nwith open(os.environ['TUNE_DML_LOG'], 'a') as log:\n"
            " for step in range(5000): log.write(json.dumps({'step': step, 'loss': 1.0}) + '\\n')\n"
            " log.write(json.dumps({'step': 5000, 'val/accuracy': 1.0}) + '\\n')\n"
        )
        ran = ProgramRun(tmp_path, script)
        assert len(ran.rows) == 2001
        assert ran.rows[-1]["step"] == 5000
        assert len(ran.notes) == 1

    def test_when_the_trial_is_stopped_its_program_ends(self, tmp_path):
        class Stopped(BaseException):
            pass

        pid = tmp_path / "pid"
        (tmp_path / "own.py").write_text(
            "import os, time, tune_dml\nopen('pid', 'w').write(str(os.getpid()))\n"
            "tune_dml.log(**{'val/accuracy': 1}); tune_dml.log(**{'val/accuracy': 2}); time.sleep(100)"
        )
        request = {"key": "k", "label": "", "seed": 0, "settings": json.dumps({"program": ""}), "until": None}
        trial = ProgramTrial(Program((sys.executable, "own.py"), str(tmp_path)), request, METRIC, tmp_path / "trial")

        def send(message):
            if pid.exists() and pid.read_text():  # earlier messages only report progress
                raise Stopped

        with pytest.raises(Stopped), Messages(send, None, max_silence=0.1) as messages:
            trial.run(messages)
        assert is_gone(int(pid.read_text()))

    def test_a_program_does_not_outlive_a_killed_trial(self, tmp_path):
        (tmp_path / "own.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)")
        runner = (
            "import os, signal, sys\nfrom pathlib import Path\n"
            "from tune_dml.running.trials.process_group import Output, ProgramProcess\n"
            "folder, environment = Path(sys.argv[1]), {**os.environ, 'M': 'x'}\n"
            "p = ProgramProcess([sys.executable, 'own.py'], str(folder), environment, Output(folder / 'out'), 'M')\n"
            "while not p.output.size: p.wait(0.05)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", runner, str(tmp_path)], check=False)
        assert is_gone(int((tmp_path / "out").read_text()))


def is_gone(pid):
    """Return whether a process ends within seconds; a zombie counts as ended."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        threading.Event().wait(0.05)
    return False
