"""A sweep of the user's own script, from its command to its report."""

import json
import shutil
from pathlib import Path

import pytest
from helpers.stored_runs import StoredRuns

import tune_dml

pytestmark = pytest.mark.slow

SCRIPT = """
import argparse, random, tune_dml
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
parser.add_argument("--seed", type=int)
own = parser.parse_args()
if own.rate > 100:
    raise SystemExit("the rate is too large")
noise = random.Random(own.seed)
for step in (10, 20):
    value = step / 100 - abs(own.rate - 1) / 10 + noise.gauss(0, 0.01)
    tune_dml.log(step=step, **{"val/score": value, "test/score": value / 2})
"""
COMMAND = ["--command", "python train.py --rate {rate} --seed {seed}", "--param", "rate=0.1,1,1000"]
OPTIONS = ["--metric", "val/score", "--goal", "maximize", "--margin", "0.02", "--seeds", "2", "--name", "own"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory, ray_session, new_database):
    """A working directory with the finished sweep `own`, and its exit code."""
    import sys

    from tune_dml.cli import main

    place = tmp_path_factory.mktemp("program")
    new_database(place)
    (place / "train.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "argv", ["tune-dml", "sweep", *COMMAND, *OPTIONS])
        with pytest.raises(SystemExit) as end:
            main()
    return place, end.value.code


@pytest.fixture
def here(swept, tmp_path, monkeypatch):
    """A copy of that folder as the working directory."""
    place = Path(shutil.copytree(swept[0], tmp_path / "copy"))
    monkeypatch.chdir(place)
    return place


def test_trials_are_listed_by_cell_and_seed_with_failures_named(swept):
    place, code = swept
    sweep = tune_dml.load_sweep("own", storage=place / "sweeps")
    assert code == 3
    statuses = {(trial.cell.label, trial.seed): trial.status for trial in sweep.results.trials}
    good = {(f"rate={rate}", seed): "finished" for rate in (0.1, 1) for seed in (0, 1)}
    assert statuses == {**good, ("rate=1000", 0): "failed", ("rate=1000", 1): "failed"}
    reasons = {trial.reason for trial in sweep.results.trials if trial.status == "failed"}
    assert reasons == {"exit status 1: the rate is too large"}
    key = sweep.results.trials[0].key
    assert [row["step"] for row in sweep.results.history(key)] == [10, 20]


def test_page_and_mlflow_show_each_trial_and_what_is_unknown_about_a_program(swept):
    place, _ = swept
    page = (place / "sweeps/own/report/report.html").read_text()
    assert "What the seed changes" in page
    assert "train.py" in page
    verdicts = json.loads((place / "sweeps/own/report/verdicts.json").read_text())
    assert "NaN" not in json.dumps(verdicts)
    runs = StoredRuns(f"sqlite:///{place}/mlflow.db", "own").children
    assert len(runs) == 6
    assert {run.info.status for run in runs} == {"FINISHED", "FAILED"}
    assert not [name for run in runs for name in run.data.metrics if name.startswith("test/")]
    assert {run.data.params["rate"] for run in runs} == {"0.1", "1", "1000"}


def test_opening_shows_test_figures(here):
    opened = tune_dml.open_sweep("own", tracking_uri=f"sqlite:///{here}/mlflow.db")
    one = next(trial for trial in opened.results.trials if trial.status == "finished")
    assert one.metrics["test/score"] == pytest.approx(one.metrics["val/score"] / 2)


@pytest.mark.slow
def test_resume_repeats_no_trial_and_notes_a_changed_script(swept, here, ray_session):
    script = swept[0] / "train.py"
    script.write_text(SCRIPT.replace("> 100", "> 10_000"))
    try:
        again = tune_dml.resume_sweep("own", retry_failed=True, tracking_uri=f"sqlite:///{here}/mlflow.db")
    finally:
        script.write_text(SCRIPT)
    assert again.exit_code == 0
    assert {trial.attempts for trial in again.results.trials if trial.cell.label != "rate=1000"} == {1}
    assert any("train.py" in note and "changed" in note for note in again.results.notes)
