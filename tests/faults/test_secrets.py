"""Secrets in the environment and in addresses reach no file of a sweep, no screen and no upload."""

import sqlite3
import subprocess
from pathlib import Path

import pytest
from helpers.sweeps import SweepProcess, sweep_file

PLANTED = {
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-7c41",
    "MLFLOW_TRACKING_TOKEN": "planted-bearer-19ab",
    "AWS_ACCESS_KEY_ID": "planted-aws-name-77d2",
    "AWS_SECRET_ACCESS_KEY": "planted-aws-50fe",
    "AWS_SESSION_TOKEN": "planted-session-c03a",
    "HF_TOKEN": "planted-hf-88d0",
    "PGPASSWORD": "planted-pg-31c7",
}
IN_ADDRESS = "planted-url-6e02"


def holding(folder):
    """Return files that contain a planted secret; databases are read as bytes, unused pages included."""
    words = [word.encode() for word in (*PLANTED.values(), IN_ADDRESS)]
    return [
        path for path in Path(folder).rglob("*") if path.is_file() and any(word in path.read_bytes() for word in words)
    ]


@pytest.mark.slow
def test_no_file_of_a_sweep_has_a_secret(tmp_path, monkeypatch, cache_dir, store):
    """Secrets: a token in the remote's address, a password in an uncommitted change, credentials of a bucket."""
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    for words in (
        ["init", "-q"],
        ["remote", "add", "origin", f"https://user:{IN_ADDRESS}@example.org/project.git"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(["git", *words], check=True)
    Path("settings.py").write_text("x = 1\n")
    subprocess.run(["git", "add", "settings.py"], check=True)
    Path("settings.py").write_text(f'password = "{PLANTED["PGPASSWORD"]}"\n')
    words = ["sweep", sweep_file((0.1, 0.5), steps=10, every=10), "--name", "toy", "--cache-dir", cache_dir]
    run = SweepProcess([*words, "--trial-files", store.address], place / "sweeps" / "toy", PLANTED)
    assert run.end() == 0, run.read_output()
    assert any("checkpoint.pt" in name for _, name, _ in store.requests)
    assert (place / "sweeps" / "toy" / "report" / "report.html").exists()
    assert sqlite3.connect(place / "mlflow.db").execute("select count(*) from runs").fetchone()[0] > 1
    planted_by_us = {place / "settings.py", place / ".git" / "config"}
    assert set(holding(tmp_path)) - planted_by_us == set()
    assert holding(cache_dir) == []

    for address in (f"s3://user:{IN_ADDRESS}@bucket/x", f"s3://bucket/x?secret_key={IN_ADDRESS}"):
        refused = SweepProcess(
            [*words[:2], "--name", "refused", "--trial-files", address], place / "sweeps" / "refused", PLANTED
        )
        assert refused.end() == 1
        assert "--trial-files" in refused.read_output()
        assert IN_ADDRESS not in refused.read_output()
    away = ["sweep", "toy.yaml", "--name", "away", "--tracking-uri", f"http://user:{IN_ADDRESS}@127.0.0.1:9/"]
    refused = SweepProcess([*away, "--cache-dir", cache_dir], place / "sweeps" / "away", PLANTED)
    refused.end()
    assert IN_ADDRESS not in refused.read_output()
    assert set(holding(tmp_path)) - planted_by_us == set()
