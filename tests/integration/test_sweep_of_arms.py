"""Two methods with different knobs, from one command to the report: cut short, grown by a third arm."""

import json

import pytest
from helpers.toys import Driver

import tune_dml
from tune_dml.planning.checks import prepare
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import Request
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
    ),
    baseline="plain",
    metric="val/map_at_r",
)


@pytest.fixture
def session(tmp_path, cache_dir, ray_session, new_database):
    return {
        "storage": tmp_path / "sweeps",
        "tracking_uri": new_database(tmp_path),
        "cache_dir": cache_dir,
        "max_concurrent": 1,
    }


def test_a_third_arm_joins_two_that_were_cut_short(session, tmp_path, cache_dir):
    plan = prepare(Request(SPACE, dataset="digits", seeds=2, arms=["triplet", "topk"]), cache_dir=cache_dir).plan
    Driver(tmp_path / "sweeps" / plan.name, plan).session()  # cut short before its first trial
    grown = tune_dml.extend_sweep("two-digits", arms=["plain"], **session)
    assert grown.exit_code == 0
    table = grown.table()
    assert set(table["status"]) == {"finished"}
    assert table.loc[table["arm"] == "triplet", "optim.lr"].isna().all()
    assert list(table.groupby("arm").size().items()) == [("plain", 2), ("topk", 4), ("triplet", 4)]
    assert [cell.arm for cell in Plan.load(grown.folder / "plan.json").cells if cell.baseline] == ["plain"]
    files = tune_dml.write_report(grown, tmp_path / "report")
    verdicts = json.loads(files.verdicts.read_text())
    assert [(knob["arm"], knob["path"]) for knob in verdicts["knobs"]] == [
        ("triplet", "loss.margin"),
        ("topk", "optim.lr"),
    ]
    assert {row["arm"] for row in verdicts["arms"]["rows"]} == {"triplet", "topk", "plain"}
