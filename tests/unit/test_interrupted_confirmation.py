"""A confirmation whose driver was killed: status and report say so, and resume goes on with it."""

import pytest
from helpers.toys import write_sweep

from tune_dml import operations
from tune_dml.cli._sweep_status_text import state_of
from tune_dml.planning.request import Session
from tune_dml.record.results import load_results
from tune_dml.record.state import read_state
from tune_dml.report import summary


@pytest.fixture
def interrupted(tmp_path):
    whole = write_sweep(tmp_path / "toy", confirmed={1000: 0.1, 1001: 0.2}, histories=False, evidence=False)
    lost, path = whole.confirmed[-1].key, tmp_path / "toy" / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not (lost in line and '"ended"' in line)))
    read_state(tmp_path / "toy").record_look("sweep")
    return load_results(tmp_path, "toy")


def test_status_and_report_say_that_it_was_interrupted_and_how_to_go_on(interrupted, command_line):
    assert state_of(interrupted) == "confirmation interrupted 3/4"
    assert summary(interrupted).answer.step.command.startswith("tune-dml resume toy")
    _, out, _ = command_line("status", "toy", "--storage", interrupted.folder.parent)
    assert "1 trial of the confirmation to go: tune-dml resume toy" in " ".join(out.split())
    assert "Complete" not in out


def test_resume_goes_on_with_it(interrupted, monkeypatch):
    intents = []
    monkeypatch.setattr(
        operations, "_execute", lambda state, resources, session, console, intent: intents.append(intent)
    )
    monkeypatch.setattr(operations, "_session_to_go_on", lambda state, session, *rest: session)
    operations.resume("toy", Session(interrupted.folder.parent))
    (intent,) = intents
    assert intent.verb == "confirm"
    assert {trial.key for trial in intent.confirmation.trials()} == {trial.key for trial in interrupted.confirmed}
