"""A real race on digits with tiny trials, interrupted and resumed; and inputs refused before its start."""

import json
from collections import Counter

import pytest
from mlflow.tracking import MlflowClient

import tune_dml
from tune_dml.record.state import read_state
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="rates",
    title="own",
    question="",
    citation=None,
    scientific=(Knob("optim.lr", Grid((1e-6, 3e-3, 1e-2), "log"), "lr"),),
    fixed={"training.steps": 20, "training.eval_every": 20, "loss.name": "semihard_triplet", "optim.name": "sgd"},
    baseline=Baseline("none", {"optim.lr": 1e-5}),
    default_dataset="digits",
    margin=8.0,
)


@pytest.mark.slow
def test_a_race_on_digits_stops_cells_and_resumes(tmp_path, ray_session, cache_dir, capsys):
    here = {"storage": tmp_path / "sweeps", "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "cache_dir": cache_dir}
    race = {"until_decided": True, "max_seeds": 6}
    cut = tune_dml.run_sweep(SPACE, seeds=3, time_budget=2, **race, **here)
    assert cut.exit_code == 130
    done = tune_dml.resume_sweep("rates", **here)
    state = read_state(done.folder)
    assert done.exit_code == 0
    assert state.race.over in {"decided", "max_seeds"}
    counts = Counter(trial.cell.label for trial in done.results.trials)
    assert min(counts.values()) < max(counts.values()) or len(state.plan.seeds) == 3
    assert all(trial.status == "finished" for trial in done.results.trials)
    assert {settled.seeds for settled in state.race.settled.values()} <= {3, 4, 5, 6}
    assert [look.by for look in done.results.looks][-1] in {"race", "resume"}
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()], "tags.sweep = 'rates'")
    levels = Counter(run.data.tags["level"] for run in runs)
    assert levels == {"sweep": 1, "cell": len(counts), "trial": len(done.results.trials)}

    before = (done.folder / "ledger.jsonl").read_text()
    again = tune_dml.run_sweep(SPACE, seeds=3, **race, **here)
    gained = (done.folder / "ledger.jsonl").read_text()[len(before) :].splitlines()
    assert {json.loads(line)["kind"] for line in gained} <= {"session", "note"}
    assert len(again.results.trials) == len(done.results.trials)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--until-decided", "--seeds", "5", "--max-seeds", "4"],
            "--max-seeds: must not be below the present number of seeds",
        ),
        (
            ["--until-decided", "--search", "random", "--num-samples", "3"],
            "--until-decided: a race stops cells of a grid",
        ),
    ],
)
def test_bad_input_is_one_message_and_stores_nothing(refused, words, message):
    refused(words, message)
