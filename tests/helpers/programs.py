"""Run a trial of a user's program in this process."""

import json
import sys

from tune_dml.programs.command import Program
from tune_dml.running.trials.messages import Messages
from tune_dml.running.trials.program import ProgramTrial

METRIC = "val/accuracy"


class ProgramRun:
    """A trial of a user's program that ran in this process."""

    def __init__(self, folder, script, metric=METRIC, settings=None, **options):
        (folder / "own.py").write_text(script)
        command = options.pop("command", (sys.executable, "own.py", "${args}"))
        program = Program(tuple(command), str(folder), **options)
        given = {"optim.lr": 0.1, "flag": True} if settings is None else settings
        settings = {**given, "program": program.text}
        request = {"key": "k1", "label": "lr=0.1", "seed": 7, "settings": json.dumps(settings), "until": None}
        self.sent, self.folder = [], folder / "trials" / "k1"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trial = ProgramTrial(program, request, metric, self.folder)
        with Messages(self.sent.append, None) as messages:
            self.end = self.trial.run(messages)

    @property
    def rows(self):
        return [row for message in self.sent for row in message.get("rows", [])]

    @property
    def notes(self):
        return [message["note"] for message in self.sent if "note" in message]

    @property
    def output(self):
        return self.trial.output.read_bytes()
