"""The output of `tune-dml report` and `plan`, and the commands of the skill's worked loop."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.commands import whole_command
from helpers.toys import bare_sweep, write_sweep

import tune_dml
from tune_dml.cli.options import ReportOptions
from tune_dml.cli.plan import _power
from tune_dml.cli.skill import LOOP
from tune_dml.planning.request import Session
from tune_dml.record.ledger import Ledger


def test_without_a_baseline_the_table_has_no_baseline_columns(command_line, tmp_path):
    rows = ["lr,seed,accuracy", *(f"{lr},{seed},{0.5 + lr + 0.01 * seed}" for lr in (0.1, 0.2) for seed in range(3))]
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    words = ("--from-csv", tmp_path / "runs.csv", "--metric", "accuracy", "--margin", "0.01", "-o", tmp_path / "out")
    out = command_line("report", *words)[1]
    assert "comparison bar" in out
    assert "minus baseline" not in out


@pytest.mark.slow
def test_no_refused_command_is_suggested_while_a_sweep_runs(command_line, tmp_path):
    write_sweep(tmp_path / "toy", missing=[("rho=1", 2)])
    words = ("report", "toy", "--storage", tmp_path, "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db")
    with Ledger(tmp_path / "toy"):
        out = command_line(*words)[1]
    assert "The sweep is running. Follow it with: tune-dml status toy" in out
    assert "resume" not in out
    assert "Not complete. Continue with: tune-dml resume toy" in command_line(*words)[1]


def test_a_detectable_difference_above_100_points_is_reported_as_none(tmp_path: Path) -> None:
    stored = bare_sweep(tmp_path / "s", seeds=range(2), sd=2.0)
    power = _power(stored.plan, [stored])
    assert power.detectable > 100
    assert power.beyond_percent
    assert power.seeds_for_margin is not None
    assert 10 < power.seeds_for_margin < 1000


LINES = [shlex.split(line, comments=True) for line in LOOP.splitlines()]


@pytest.mark.parametrize("words", LINES, ids=lambda words: words[1])
def test_each_line_of_the_loop_is_a_command_with_json(words):
    program, verb, *rest = words
    context = whole_command().commands[verb].make_context(verb, rest)
    assert program == "tune-dml"
    assert context.params["as_json"] is not False


@pytest.mark.parametrize(("is_whole", "verb"), [(True, "report"), (False, "resume")])
def test_an_interrupt_during_the_report_prints_the_next_command(monkeypatch, tmp_path, capsys, is_whole, verb):
    from tune_dml.cli import report

    def publish(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "_publish", publish)
    write_sweep(tmp_path / "toy")
    sweep = tune_dml.load_sweep("toy", storage=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        report.close(replace(sweep, interrupted=not is_whole), Session(), ReportOptions())
    assert f"Interrupted. Continue with: tune-dml {verb} " in capsys.readouterr().err
