"""`tune-dml compare` of MLflow experiments: on one data set and within seeds, or refused."""

import json

import pytest
from helpers.toys import METRIC, bare_sweep, plan_of, write_results

from tune_dml.record.state import SweepState
from tune_dml.space import Grid, Knob
from tune_dml.tracking.client import log_data_set
from tune_dml.tracking.tracker import Tracker

READ = ("--metric", "acc", "--margin", "0.01")
CUB, CARS = ("cub", "c0ffee"), ("cars", "decade")


@pytest.fixture
def experiment(tmp_path, new_database):
    """Return a function that writes an experiment of six trainings, with `lr` as text, and returns its address."""
    from mlflow.tracking import MlflowClient

    def written(name, *, gain=0.0, data=None, seeds=(0, 1, 2), store="one", lrs=("0.1", "0.2"), **params):
        folder = tmp_path / store
        if not folder.exists():
            folder.mkdir()
            new_database(folder)
        uri = f"sqlite:///{folder}/mlflow.db"
        client = MlflowClient(uri)
        made = client.create_experiment(name, (folder / "files").as_uri())
        for seed in seeds:
            for index, lr in enumerate(lrs):
                run = client.create_run(made).info.run_id
                for key, value in {"lr": lr, "seed": seed, **params}.items():
                    client.log_param(run, key, value)
                noise = 0.001 * ((7 * seed + 3 * index) % 5) * (1 + gain)
                client.log_metric(run, "acc", 0.5 + 0.1 * index + 0.02 * seed + gain + noise)
                client.set_terminated(run)
                if data:
                    log_data_set(client, run, *data)
        return f"{uri}#{name}"

    return written


@pytest.mark.slow
def test_experiments_of_two_stores_are_paired_within_seeds(experiment, output_of, tmp_path):
    ours = experiment("ours", data=CUB, net="r50")
    theirs = experiment("theirs", data=CUB, net="r18", gain=0.05, store="two", lrs=("1e-1", "0.20"))
    compared = json.loads(output_of("compare", ours, theirs, *READ, "--json", "-o", tmp_path / "out"))
    assert compared["sweeps"] == ["ours", "theirs"]
    assert compared["differences"] == {"net": ["r50", "r18"]}
    found = [(row["point"], row["seeds"], row["verdict"]) for row in compared["paired"]]
    assert found == [("lr = 0.1", 3, "better"), ("lr = 0.2", 3, "better")]
    assert [row["difference"] for row in compared["paired"]] == pytest.approx([0.05, 0.05], abs=1e-3)
    assert "How far apart" in (tmp_path / "out" / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"data": CARS}, "other data set: cars, not cub"),
        ({"data": ("cub", "facade")}, "other data: the digest of cub is facade, not c0ffee"),
        ({"data": CUB, "seeds": (7, 8)}, "they share fewer than two seeds"),
        ({"data": CUB, "lrs": ("1", "2")}, "no cell of one sweep has the knob values of a cell of the other"),
        ({}, "the training data of b is unknown: log it with mlflow.log_input, or pass --same-data"),
    ],
)
def test_sweeps_that_do_not_compare_are_refused_with_the_reason(experiment, output_of, other, reason):
    words = (experiment("a", data=CUB), experiment("b", **other))
    compared = json.loads(output_of("compare", *words, *READ, "--json", code=1))
    assert reason in compared["refused"]["b"][0]
    assert not compared["paired"]


@pytest.mark.parametrize("known", [None, CUB])
def test_unlogged_data_count_as_equal_with_same_data(experiment, output_of, known):
    words = (experiment("a", data=known), experiment("b", gain=0.05))
    compared = json.loads(output_of("compare", *words, *READ, "--json", "--same-data"))
    assert {row["verdict"] for row in compared["paired"]} == {"better"}


def test_equal_settings_of_another_program_may_be_other_code(experiment, output_of):
    words = (experiment("a", data=CUB), experiment("a", data=CUB, gain=0.05, store="two"))
    compared = json.loads(output_of("compare", *words, *READ, "--json"))
    assert (compared["sweeps"], len(compared["paired"])) == ([*words], 2)


def test_a_sweep_and_an_experiment_may_follow_different_rules(experiment, output_of, tmp_path):
    bare_sweep(tmp_path / "sweeps" / "toy", dataset="glyphs")
    theirs = experiment("theirs", data=("glyphs", "c0ffee"))
    out = output_of("compare", "toy", theirs, "--storage", tmp_path / "sweeps", *READ, code=1)
    assert "whose training rules are unknown" in " ".join(out.split())


def test_a_logged_sweep_is_read_trial_by_trial(output_of, tmp_path, new_database):
    words = []
    for name, shift in (("low", 0.0), ("high", 5.0)):
        plan = plan_of(Knob("loss.margin", Grid((0.1, 1.0)), "m"))

        def number(trial, shift=shift):
            return 50.0 + shift + trial.seed + 0.1 * ((2 * trial.cell.index + trial.seed) % 3) * (1 + shift)

        stored = write_results(tmp_path / name / "sweeps" / "toy", plan, number)
        uri = new_database(tmp_path / name)
        assert Tracker(SweepState(stored.folder, plan), uri, "toys").stop().error is None
        words.append(f"{uri}#toys")
    compared = json.loads(output_of("compare", *words, "--metric", METRIC, "--margin", "1", "--json"))
    assert [row["seeds"] for row in compared["paired"]] == [2, 2]
    assert [budget["trials"] for budget in compared["budgets"]] == [4, 4]


def test_problems_name_the_word_of_the_command_line(experiment, output_of, tmp_path):
    word = experiment("mine")
    said = output_of("compare", word.replace("#mine", "#mien"), *READ, code=1)
    assert "#mien: must be an experiment of sqlite:" in said
    assert "mine" in said.partition("Did you mean")[2]
    assert "the database must exist" in output_of("compare", f"sqlite:///{tmp_path}/none.db#x", *READ, code=1)
    assert "--margin" in output_of("compare", word, "--metric", "acc", code=1)
    said = output_of("compare", "toy", "--same-data", "--metric", "acc", code=1)
    assert said.count("a sweep has its own") == 2
