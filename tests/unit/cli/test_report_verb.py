"""What `tune-dml report` prints."""

import pytest
from helpers.toys import write_sweep

from tune_dml.record.ledger import Ledger


def test_without_a_baseline_there_are_no_columns_for_it(command_line, tmp_path):
    rows = ["lr,seed,accuracy", *(f"{lr},{seed},{0.5 + lr + 0.01 * seed}" for lr in (0.1, 0.2) for seed in range(3))]
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    words = ("--from-csv", tmp_path / "runs.csv", "--metric", "accuracy", "--margin", "0.01", "-o", tmp_path / "out")
    out = command_line("report", *words)[1]
    assert "comparison bar" in out
    assert "minus baseline" not in out


@pytest.mark.slow
def test_of_a_sweep_that_runs_no_command_is_advised_that_would_be_refused(command_line, tmp_path):
    write_sweep(tmp_path / "toy", missing=[("rho=1", 2)])
    words = ("report", "toy", "--storage", tmp_path, "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db")
    with Ledger(tmp_path / "toy"):
        out = command_line(*words)[1]
    assert "The sweep is running. Follow it with: tune-dml status toy" in out
    assert "resume" not in out
    assert "Not complete. Continue with: tune-dml resume toy" in command_line(*words)[1]
