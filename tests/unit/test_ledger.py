"""The ledger: whole lines or none, one writer, rows once, and a faithful fold into results."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from trainables.errors import ConfigError
from tune_dml.planning.plan import Plan, Search, make_plan
from tune_dml.record.ledger import Ledger, read_events, read_history
from tune_dml.record.results import load_results, results_of
from tune_dml.space import Baseline, Citation, Grid, Knob, Published, Range, Space

SPACE = Space(
    name="s",
    title="t",
    question="q",
    citation=None,
    scientific=(Knob("regularizer.rho", Grid((0.1, 1.0), "log"), "rho"),),
    fixed={"regularizer.name": "sec", "batch.batch_size": 9},
    baseline=Baseline("off", {"regularizer.name": "none"}),
    published=(Published("p", "4", "Cars196", ("a", "b"), "rho"),),
)


def plan_of(space=SPACE, **arguments):
    defaults = {"name": "sweep", "dataset": "digits", "seeds": 2, "data_digest": "d"}
    return make_plan(space, **{**defaults, **arguments})


def test_events_come_back_in_order(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.append("started", "k", host="here")
        ledger.append("ended", "k", status="finished", metrics={"val/recall_at_1": 1.5})
    events = read_events(tmp_path)
    assert [event.kind for event in events] == ["started", "ended"]
    assert events[1].body["metrics"] == {"val/recall_at_1": 1.5}


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_ignored_and_then_cut_off(tmp_path, cut):
    with Ledger(tmp_path) as ledger:
        for number in range(3):
            ledger.append("note", text=str(number))
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert [event.body["text"] for event in read_events(tmp_path)] == ["0", "1"]
    with Ledger(tmp_path) as ledger:
        ledger.append("note", text="again")
    assert [event.body["text"] for event in read_events(tmp_path)] == ["0", "1", "again"]


def test_a_row_reported_twice_counts_once_as_first_written(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.report("k", {"step": 10, "train/loss": 1.0})
        ledger.report("k", {"step": 5, "train/loss": 2.0})
        ledger.report("k", {"step": 10, "train/loss": 9.0})
    rows = read_history(tmp_path, "k")
    assert [(row["step"], row["train/loss"]) for row in rows] == [(5, 2.0), (10, 1.0)]


def test_not_a_number_survives(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.report("k", {"step": 1, "train/loss": float("nan")})
    assert str(read_history(tmp_path, "k")[0]["train/loss"]) == "nan"


def _try_to_write(folder, answers):
    try:
        with Ledger(folder):
            answers.put("opened")
    except ConfigError as error:
        answers.put(str(error))


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path):
    answers = multiprocessing.get_context("spawn").SimpleQueue()
    with Ledger(tmp_path):
        other = multiprocessing.get_context("spawn").Process(target=_try_to_write, args=(tmp_path, answers))
        other.start()
        other.join()
        assert f"process {os.getpid()}" in answers.get()
    _try_to_write(tmp_path, answers)
    assert answers.get() == "opened"


def test_a_plan_survives_the_disk(tmp_path):
    lr = Knob("optim.lr", Range(1e-4, 1e-2, scale="log"))
    wide = Space(**{**vars(SPACE), "nuisance": (lr,), "citation": Citation("a", "t", "v", 2020, "table 4")})
    for plan in (plan_of(), plan_of(wide, search=Search("tpe", 5))):
        plan.save(tmp_path / "plan.json")
        again = Plan.load(tmp_path / "plan.json")
        assert again == plan
        assert again.identity() == plan.identity()


def test_results_show_every_state(tmp_path):
    plan = plan_of()
    folder = tmp_path / "sweep"
    keys = [trial.key for trial in plan.trials()]
    with Ledger(folder) as ledger:
        plan.save(folder / "plan.json")
        ledger.append("session", provenance={"commit": "abc"}, resources={})
        for key in keys[:4]:
            ledger.append("started", key, host="h")
        metrics = {"val/recall_at_1": 50.0, "test/recall_at_1": 40.0}
        ledger.append("ended", keys[0], status="finished", metrics=metrics, seconds=3.0, step=40)
        ledger.append("ended", keys[1], status="diverged", reason="nan at 3", metrics={})
        ledger.append("ended", keys[2], status="failed", reason="bug", metrics={})
        ledger.append("note", text="said")
        ledger.append("note", text="said")
    results = results_of(folder)
    assert [trial.status for trial in sorted(results.trials, key=lambda t: keys.index(t.key))] == [
        "finished",
        "diverged",
        "failed",
        "running",
        "missing",
        "missing",
    ]
    assert results.notes == ("said",)
    assert results.provenance == {"commit": "abc"}
    first = next(trial for trial in results.trials if trial.key == keys[0])
    assert first.metrics == {"val/recall_at_1": 50.0}
    assert not [column for column in results.table().columns if column.startswith("test/")]


def test_a_reset_trial_is_missing_again(tmp_path):
    plan = plan_of()
    folder = tmp_path / "sweep"
    key = plan.trials()[0].key
    with Ledger(folder) as ledger:
        plan.save(folder / "plan.json")
        ledger.append("started", key)
        ledger.append("ended", key, status="failed", reason="x", metrics={})
        ledger.append("reset", key)
    assert next(trial for trial in results_of(folder).trials if trial.key == key).status == "missing"


def test_an_unknown_sweep_names_the_nearest(tmp_path):
    folder = tmp_path / "eta1"
    folder.mkdir()
    plan_of(name="eta1").save(folder / "plan.json")
    with pytest.raises(ConfigError, match="eta1"):
        load_results(tmp_path, "eta2")


def test_the_identity_of_a_trial_needs_config_seed_and_data():
    plan = plan_of()
    trials = plan.trials()
    assert len({trial.key for trial in trials}) == 6
    assert {trial.key for trial in plan_of(data_digest="other").trials()}.isdisjoint(trial.key for trial in trials)
    assert plan_of(name="renamed").trials()[0].key == trials[0].key


def test_cells_that_resolve_to_the_same_settings_are_one():
    space = Space(**{**vars(SPACE), "scientific": (Knob("regularizer.rho", Grid((1, 1.0)), "rho"),)})
    assert [cell.label for cell in plan_of(space).cells] == ["off", "rho=1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"overrides": {"regularizer.rho": 0.5}}, "is the knob that s searches"),
        ({"overrides": {"seed": 1}}, "--seeds"),
        ({"seeds": 0}, "at least one seed"),
        ({"seeds": (1, 1)}, "must differ"),
        ({"overrides": {"batch.batch_size": 10}}, "Try"),
    ],
)
def test_wrong_requests_are_refused(arguments, words):
    with pytest.raises(ConfigError) as error:
        plan_of(**arguments)
    assert words in str(error.value)


def test_a_knob_out_of_its_domain_names_the_value():
    space = Space(**{**vars(SPACE), "scientific": (Knob("regularizer.rho", Grid((0.5, 1.5)), "rho"),)})
    with pytest.raises(ConfigError, match=r"regularizer\.rho.*1\.5"):
        plan_of(space)
