"""Real sweeps on digits that stop cells early or race, interrupted and resumed; and inputs refused before their start."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from helpers.stored_runs import StoredRuns

import tune_dml
from tune_dml.record.ledger import read_events
from tune_dml.record.state import read_state
from tune_dml.report import summary
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="rates",
    title="own",
    question="",
    citation=None,
    scientific=(Knob("optim.lr", Grid((1e-6, 1e-5, 1e-4, 3e-3, 1e-2), "log"), "lr"),),
    fixed={"training.steps": 36, "training.eval_every": 4, "loss.name": "semihard_triplet", "optim.name": "sgd"},
    baseline=Baseline("none", {"optim.lr": 2e-5}),
    default_dataset="digits",
)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [False, True], ids=["files in a folder", "files in a bucket"])
def test_cells_that_fall_behind_stop_and_stay_stopped(tmp_path, ray_session, cache_dir, command_line, store, bucket):
    here = {"storage": tmp_path / "sweeps", "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "cache_dir": cache_dir}
    place = {"trial_files": store.address} if bucket else {}
    cut = tune_dml.run_sweep(SPACE, seeds=2, stopping="asha", time_budget=2, **place, **here)
    assert cut.exit_code == 130
    assert any("compared at steps 4 and 12 of 36 the best third continues" in note for note in cut.results.notes)
    done = tune_dml.resume_sweep("rates", **here)
    assert done.exit_code == 0
    ends = {(trial.cell.label, trial.seed): (trial.status, trial.step) for trial in done.results.trials}
    by_cell = Counter(ends[label, 0] for label, seed in ends if seed == 0)
    assert by_cell == {("stopped", 4): 3, ("stopped", 12): 1, ("finished", 36): 2}  # of five, two continue; of two, one
    assert all(ends[label, 0] == ends[label, 1] for label, _ in ends)
    assert ends["none", 0] == ("finished", 36)
    stopped = next(trial for trial in done.results.trials if trial.status == "stopped")
    assert stopped.reason.startswith("at step ")
    assert not stopped.metrics
    assert stopped.attempts == 1
    assert stopped.seconds > 0
    assert [row["step"] for row in done.results.history(stopped.key)][-1] == stopped.step
    assert not list(done.folder.glob("trials/*/checkpoint*"))
    assert [name for name, size in store.objects().items() if size] == []
    left = {path.parent.name for path in done.folder.glob("trials/*/sealed.json")}
    assert left == {trial.key for trial in done.results.trials if trial.status == "finished"}
    if bucket:
        kinds = Counter(event.kind for event in read_events(done.folder))
        assert kinds["fetched"] == kinds["ended"] == 12

    runs = StoredRuns(here["tracking_uri"], "rates").children
    said = Counter((run.info.status, run.data.tags["tune_dml.status"]) for run in runs)
    assert said == {("FINISHED", "finished"): 4, ("FINISHED", "stopped"): 8}

    before = (done.folder / "ledger.jsonl").read_text()
    again = tune_dml.resume_sweep("rates", **here)
    gained = (done.folder / "ledger.jsonl").read_text()[len(before) :].splitlines()
    assert {json.loads(line)["kind"] for line in gained} <= {"session", "note"}
    assert [trial.status for trial in again.results.trials] == [trial.status for trial in done.results.trials]

    assert "stopped early" in " ".join(summary(done.results).answer.sentences)
    code, out, _ = command_line("status", "rates")
    assert code == 0
    assert "8 stopped early" in out
    assert "behind at 4" in out
    code, out, err = command_line("extend", "rates", "--seeds", "3")
    assert code == 1
    assert "--stopping: compares the cells that a sweep began with" in " ".join((out + err).split())


RACE = replace(
    SPACE,
    scientific=(Knob("optim.lr", Grid((1e-6, 3e-3, 1e-2), "log"), "lr"),),
    fixed={**SPACE.fixed, "training.steps": 20, "training.eval_every": 20},
    baseline=Baseline("none", {"optim.lr": 1e-5}),
    margin=8.0,
)


@pytest.mark.slow
def test_a_race_on_digits_stops_cells_and_resumes(tmp_path, ray_session, cache_dir, capsys):
    here = {"storage": tmp_path / "sweeps", "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "cache_dir": cache_dir}
    limits = {"until_decided": True, "max_seeds": 6}
    cut = tune_dml.run_sweep(RACE, seeds=3, time_budget=2, **limits, **here)
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
    levels = Counter(run.data.tags["level"] for run in StoredRuns(here["tracking_uri"], "rates").runs)
    assert levels == {"sweep": 1, "cell": len(counts), "trial": len(done.results.trials)}

    before = (done.folder / "ledger.jsonl").read_text()
    again = tune_dml.run_sweep(RACE, seeds=3, **limits, **here)
    gained = (done.folder / "ledger.jsonl").read_text()[len(before) :].splitlines()
    assert {json.loads(line)["kind"] for line in gained} <= {"session", "note"}
    assert len(again.results.trials) == len(done.results.trials)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--stopping", "asha"],
            "training.eval_every: must be at most 4: trials are first compared at a ninth of their 40 steps, but got",
        ),
        (["--stopping", "asha", "--set", "training.eval_every=4", "--until-decided"], "--until-decided: a race"),
        (["--stopping", "asha", "--set", "training.epochs=2"], "--stopping: compares cells at the same steps"),
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
