"""Two methods with different knobs, from one command to the report: interrupted, then extended by arms and values."""

import json

import pytest
from helpers.stored_runs import StoredRuns
from helpers.toys import METRIC, Driver

import tune_dml
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import Request
from tune_dml.record.results import load_results
from tune_dml.space import Arm, Grid, Knob, Space, Tie

SHORT = {"training.steps": 4, "training.eval_every": 2, "batch.instances_per_class": 3, "batch.batch_size": 9}
SPACE = Space(
    name="two",
    title="two methods",
    question="Which is better?",
    citation=None,
    scientific=(Knob("optim.lr", Grid((1e-3, 1e-2), "log"), symbol="lr"),),
    fixed=SHORT,
    arms=(
        Arm("triplet", {"loss.name": "triplet"}, knobs=(), own_knobs=(Knob("loss.margin", Grid((0.1, 0.5)), "m"),)),
        Arm("topk", {"loss.name": "dro_topk"}, ties=(Tie("loss.k", "optim.lr", 1000),)),
        Arm("plain", {"loss.name": "margin_all"}, knobs=()),
        Arm("wild", {"loss.name": "margin_all", "optim.name": "sgd", "optim.lr": 1e18}, knobs=()),
    ),
    baseline="plain",
    metric="val/map_at_r",
)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_an_interrupted_sweep_is_extended_and_shows_diverged_trials(tmp_path, cache_dir, new_database):
    plan = prepare(Request(SPACE, dataset="digits", seeds=2, arms=["triplet", "topk"]), cache_dir=cache_dir).plan
    driver = Driver(tmp_path / "sweeps" / plan.name, plan)
    driver.session()
    driver.run(driver.trials[0])
    here = {"storage": tmp_path / "sweeps", "tracking_uri": new_database(tmp_path), "cache_dir": cache_dir}
    more = {"arms": ["plain", "wild"], "values": {"loss.margin": [0.9]}}
    grown = tune_dml.extend_sweep("two-digits", max_concurrent=1, **more, **here)
    assert grown.exit_code == 3
    assert not grown.interrupted
    table = grown.table()
    ends = {("plain", "finished"): 2, ("topk", "finished"): 4, ("triplet", "finished"): 6, ("wild", "diverged"): 2}
    assert table.groupby(["arm", "status"]).size().to_dict() == ends
    assert table.loc[table["arm"] == "triplet", "optim.lr"].isna().all()
    assert {trial.attempts for trial in grown.results.trials} == {1}
    assert grown.results.trials[0].metrics == {METRIC: 52.0}  # what was there is not run again
    assert all("step" in trial.reason for trial in grown.results.trials if trial.status == "diverged")
    states = {
        (run.data.tags["arm"], run.info.status) for run in StoredRuns(here["tracking_uri"], "two-digits").children
    }
    assert states == {("plain", "FINISHED"), ("topk", "FINISHED"), ("triplet", "FINISHED"), ("wild", "FAILED")}
    assert load_results(tmp_path / "sweeps", "two-digits").cells == grown.results.cells
    assert [cell.arm for cell in Plan.load(grown.folder / "plan.json").cells if cell.baseline] == ["plain"]
    files = tune_dml.write_report(grown, tmp_path / "report")
    verdicts = json.loads(files.verdicts.read_text())
    assert [(knob["arm"], knob["path"]) for knob in verdicts["knobs"]] == [
        ("triplet", "loss.margin"),
        ("topk", "optim.lr"),
    ]
    assert {row["arm"] for row in verdicts["arms"]["rows"]} == {
        "triplet",
        "topk",
        "plain",
    }  # what diverged is not compared
