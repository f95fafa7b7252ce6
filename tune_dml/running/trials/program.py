"""Run the user's own program as a trial: a process that gets knobs and a seed, and reports figures.

It reports in one of three ways: lines of JSON in the file `$TUNE_DML_LOG` (`tune_dml.log`), MLflow's client with the
run in its environment, or a JSON file `$TUNE_DML_RESULTS` at its end. Test figures go into the trial's sealed file.
"""

import itertools
import json
import os
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.context import SEALED
from trainables.errors import nearest
from trainables.files import require_folder, retry_storage, write_whole
from trainables.registries import source_digest
from tune_dml.programs import client
from tune_dml.programs.command import SETTING, Program, variable_of
from tune_dml.record.events import TrialEnd
from tune_dml.record.origin.provenance import mask
from tune_dml.running.trials.messages import Messages, TrialRequest
from tune_dml.running.trials.mlflow_run import ProgramRunServer
from tune_dml.running.trials.process_group import Output, ProgramProcess
from tune_dml.running.trials.program_log import ProgramLog
from tune_dml.text import one_line, shortened

_CHECK_INTERVAL = 0.2  # seconds between two checks of a program
_TAIL, _REASON = 4000, 240
_EXTERNAL_SIGNALS = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP}
"""Signals that other processes send; after one the trial is retried."""
_ATTEMPT = "TUNE_DML_ATTEMPT"
_SILENT = "It reported nothing: call tune_dml.log, or write to $TUNE_DML_LOG."
_TRACEBACK = "Traceback (most recent call last):"
_UNKNOWN_ARGUMENT = "unrecognized arguments: "


@dataclass(frozen=True)
class ProgramTrial:
    """One trial that runs the user's program."""

    program: Program
    request: TrialRequest
    metric: str
    folder: Path
    cpus: int = 1
    gpus: float = 0.0

    @property
    def program_folder(self) -> Path:
        """Folder of the program's files."""
        return self.folder / "program"

    @property
    def output(self) -> Path:
        """File of the program's output."""
        return self.program_folder / "output.txt"

    def run(self, messages: Messages) -> TrialEnd:
        """Run the program to its end or its time limit. Raise OSError, for a retry, if another process killed it."""
        settings = json.loads(self.request["settings"])
        values = {name: value for name, value in settings.items() if name not in {SETTING, "seed"}}
        retry_storage(lambda: self._prepare(values), self.folder, messages.note, messages.at_work)
        words = self.program.words(values, self.request["seed"], str(self._knobs))
        log = ProgramLog(self._log, self.metric, messages.row, messages.note)
        start_time = time.monotonic()
        code = {str(path): source_digest(str(path)) for path in self.program.scripts}
        with ProgramRunServer(self._log, self.program_folder / "artifacts") as run:
            environment = self._environment(values, run.environment())
            output = retry_storage(lambda: Output(self.output), self.folder, messages.note, messages.at_work)
            try:
                # On a node of the cluster, the working directory is a copy of the program's folder.
                folder = self.program.folder if Path(self.program.folder).is_dir() else os.getcwd()
                process = ProgramProcess(words, folder, environment, output, _ATTEMPT)
            except OSError as error:
                return TrialEnd("failed", f"{words[0]} cannot be started: {error.strerror}", kind="config")
            with process:
                status = self._watch(process, log, messages, start_time)
        log.finish(self._results)
        if process.left_running:
            messages.note(f"it left processes running, which were ended: {process.left_running}")
        end = self._end(status, log, process.output)
        retry_storage(lambda: self._seal(end, log), self.folder, messages.note, messages.at_work)
        seconds = time.monotonic() - start_time
        return TrialEnd(end.status, end.reason, end.metrics, log.step, seconds, end.kind, end.traceback, code)

    def _prepare(self, values: Mapping[str, Any]) -> None:
        require_folder(self.folder.parent)  # missing storage must not be created below its mount point
        (self.program_folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._results.unlink(missing_ok=True)  # of an earlier attempt
        write_whole(self._knobs, json.dumps({**values, "seed": self.request["seed"]}, indent=1) + "\n")

    @property
    def _log(self) -> Path:
        return self.program_folder / "log.jsonl"

    @property
    def _knobs(self) -> Path:
        return self.program_folder / "knobs.json"

    @property
    def _results(self) -> Path:
        return self.program_folder / "results.json"

    def _environment(self, values: Mapping[str, Any], mlflow: Mapping[str, str]) -> dict[str, str]:
        variables = {
            client.LOG: self._log,
            client.KNOBS: self._knobs,
            client.SEED: self.request["seed"],
            client.CHECKPOINTS: self.program_folder / "checkpoints",
            "TUNE_DML_RESULTS": self._results,
            "TUNE_DML_TRIAL": self.request["key"],
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": self.cpus,
            _ATTEMPT: uuid.uuid4().hex,
            **{variable_of(name): value for name, value in values.items()},
            **({} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            **mlflow,
        }
        return {**os.environ, **{name: str(value) for name, value in variables.items()}}

    def _watch(self, process: ProgramProcess, log: ProgramLog, messages: Messages, start_time: float) -> int | None:
        """Return the exit status; None if the program must be ended, at its time limit or because it diverged."""
        printed = 0
        while (status := process.wait(_CHECK_INTERVAL)) is None:
            if log.read() or process.output.size > printed or not messages.is_watched:
                printed = process.output.size
                messages.at_work()
            if log.divergence or (self.program.timeout and time.monotonic() - start_time > self.program.timeout):
                return None
        return status

    def _end(self, status: int | None, log: ProgramLog, output: Output) -> TrialEnd:
        """Return the trial's end; raise OSError if another process killed the program."""

        def failed(reason: str) -> TrialEnd:
            return TrialEnd("failed", reason, kind="bug", traceback=shortened(mask(output.tail(_TAIL)), _TAIL))

        if log.divergence:
            return TrialEnd("diverged", log.divergence)
        if status is None:
            return failed(f"timeout: it ran longer than {self.program.timeout:g} s")
        if status < 0 and -status in _EXTERNAL_SIGNALS:
            raise OSError(f"the program was killed by signal {-status}")
        if status:
            status_text = f"signal {-status}" if status < 0 else f"exit status {status}"
            return failed(self._reason(status_text, output))
        if self.metric not in log.last:
            known = sorted(name for name in log.last if not name.startswith("test/"))
            hint = nearest(self.metric, known, what="figure") if known else _SILENT
            return failed(f"it ended without reporting {self.metric}. {log.metric_error or hint}")
        return TrialEnd("finished", metrics={n: v for n, v in log.last.items() if not n.startswith("test/")})

    def _reason(self, status_text: str, output: Output) -> str:
        lines = [line for line in output.tail(_TAIL).splitlines() if line.strip()]
        last = _error_of_traceback(lines) or (lines[-1].strip() if lines else "it printed nothing")
        flag = self.program.seed_flag
        if flag and f"{_UNKNOWN_ARGUMENT}{flag}" in last:
            last += ". Write `seed_flag: null` if the script takes no seed, or name its flag"
        return shortened(one_line(mask(f"{status_text}: {last}")), _REASON)

    def _seal(self, end: TrialEnd, log: ProgramLog) -> None:
        figures = {name: value for name, value in log.last.items() if name.startswith("test/")}
        if end.status == "finished" and figures:
            write_whole(self.folder / SEALED, json.dumps(figures) + "\n", private=True)
        for path in (self._log, self._results):
            path.unlink(missing_ok=True)


def _error_of_traceback(lines: Sequence[str]) -> str:
    """Return the error behind Python's last traceback, whose message may have several lines; empty without one."""
    starts = [index for index, line in enumerate(lines) if line.strip() == _TRACEBACK]
    after = lines[starts[-1] + 1 :] if starts else []
    return " ".join(itertools.dropwhile(lambda line: line.startswith(" "), after))
