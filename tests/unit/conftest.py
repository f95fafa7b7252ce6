"""Fixtures of several unit tests."""

import json
import os

import pytest


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's home with a token that only the user can read; returns the token."""
    token = tmp_path / "home" / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    token.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return token


@pytest.fixture
def messages_of(monkeypatch, tmp_path, cache_dir):
    """Return a function that runs a trial in this process and returns its messages to the driver."""
    from ray import tune

    from tune_dml.planning.request import Resources
    from tune_dml.running.trials.messages import parse_message
    from tune_dml.running.trials.trial import TrialRuntime, engine

    def run(settings, resources=None, key="k", **options):
        said, folder = [], tmp_path / "trials"
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(tune, "report", lambda message: said.append(parse_message(message)))
        runtime = TrialRuntime(tmp_path, folder, resources or Resources(), cache_dir, **options)
        engine(runtime)({"key": key, "settings": json.dumps(settings), "until": None})
        return said

    return run


SLURM = {
    "sbatch": 'n=$(( $(cat "$FAKE/count" 2>/dev/null || echo 100) + 1 )); echo $n > "$FAKE/count"; echo $n; '
    'echo "$@" >> "$FAKE/calls"',
    "squeue": 'cat "$FAKE/queue" 2>/dev/null || true',
    "scancel": 'echo "scancel $@" >> "$FAKE/calls"',
    "scontrol": '[ "$1" = show ] && { cat "$FAKE/job" 2>/dev/null; exit; }; '
    'echo "scontrol $@" >> "$FAKE/calls"; exit "${FAKE_REQUEUE:-0}"',
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Fake programs of SLURM that record their calls."""
    for name, body in SLURM.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def full_disk(fake):
    """A disk that becomes full when a job is submitted."""
    (fake / "eta1" / "slurm").mkdir(parents=True)
    sbatch = fake / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text() + f"ln -s /dev/full {fake}/eta1/slurm/jobs 2> /dev/null\n")
    return fake
