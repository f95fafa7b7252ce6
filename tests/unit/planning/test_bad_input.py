"""What cannot be compared, judged or written is said before any trial starts, all of it at once; nothing is stored."""

from __future__ import annotations

import json

import pytest
from helpers.toys import plan_of, space_of, write_sweep
from typer.testing import CliRunner

from trainables.errors import ConfigError
from tune_dml.cli import application
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.files.sweep_file import read_sweep_file
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import Request, Session
from tune_dml.space import Grid, Knob

RHO = Knob("loss.margin", Grid((0.1, 0.2)))
ONE = Knob("loss.margin", Grid((0.1,)))
QUICK = ("--dataset", "digits", "--set", "training.steps=4", "--set", "training.eval_every=2")


def cli(*words):
    return CliRunner().invoke(application(), words)


def message(result):
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def test_everything_is_said_at_once_and_nothing_is_stored(tmp_path):
    (tmp_path / "taken").write_text("")
    storage, output = str(tmp_path / "taken" / "sweeps"), str(tmp_path / "taken")
    asked = ("--margin", "-1", "--storage", storage, "-o", output)
    said = message(cli("sweep", "sec_rho", *QUICK, *asked))
    assert "--margin: the smallest difference that matters must be greater than 0" in said
    assert f"--storage: must be a folder, but {tmp_path / 'taken'} is a file" in said
    assert f"-o: must be a folder, but {tmp_path / 'taken'} is a file" in said
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_storage_that_is_a_link_to_a_disk_that_is_not_mounted_is_named(tmp_path):
    (tmp_path / "sweeps").symlink_to(tmp_path / "disk" / "sweeps")
    said = message(cli("sweep", "sec_rho", *QUICK, "--storage", str(tmp_path / "sweeps")))
    assert f"{tmp_path / 'sweeps'} is a link to {tmp_path / 'disk' / 'sweeps'}, which does not exist" in said
    assert "Mount it" in said


@pytest.mark.parametrize("margin", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("verb", ["plan", "sweep"])
def test_a_margin_must_be_positive(tmp_path, verb, margin):
    said = message(cli(verb, "sec_rho", *QUICK, "--margin", margin, "--storage", str(tmp_path / "sweeps")))
    assert "the smallest difference that matters must be greater than 0" in said
    assert "Example: --margin 1.0" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["resume", "extend --seeds 5", "report"])
def test_a_stored_sweep_is_not_touched_where_its_report_could_not_be_written(tmp_path, verb):
    write_sweep(tmp_path / "toy")
    (tmp_path / "taken").write_text("")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    name, *rest = verb.split()
    said = message(cli(name, "toy", *rest, "--storage", str(tmp_path), "--margin", "-1", "-o", str(tmp_path / "taken")))
    assert "--margin: the smallest difference that matters must be greater than 0" in said
    assert "-o: must be a folder" in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("margin", [0, -2.0, float("inf")])
def test_a_declared_margin_must_be_positive(margin):
    problems = space_of(RHO, margin=margin).problems()
    assert [problem.place for problem in problems] == ["toy.margin"]


def test_a_storage_that_cannot_be_written(tmp_path):
    assert Session(tmp_path / "new" / "sweeps").problems() == []
    assert not list(tmp_path.iterdir())
    (problem,) = Session("/proc/tune_dml").problems()
    assert (problem.place, problem.rule.partition(":")[0]) == ("storage", "must be a folder that can be written")


def test_one_value_without_a_baseline_is_refused(cache_dir):
    with pytest.raises(ConfigError, match="with one value and no baseline nothing can be compared"):
        prepare(Request(space_of(ONE), "digits"), cache_dir=cache_dir)


def test_one_value_of_several_knobs_and_one_seed_are_notes(cache_dir):
    space = space_of(ONE, Knob("optim.lr", Grid((1e-3, 1e-2))))
    notes = prepare(Request(space, "digits", seeds=1), cache_dir=cache_dir).notes
    assert "loss.margin has one value: nothing can be compared along it" in notes
    assert any("no verdict is possible" in note for note in notes)
    notes = prepare(Request(space_of(RHO), "digits", seeds=2), cache_dir=cache_dir).notes
    assert not [note for note in notes if "one value" in note or "one seed" in note]


def test_a_margin_that_is_given_belongs_to_the_plans_identity(tmp_path, cache_dir):
    plain, stated, same = (
        prepare(Request(space_of(RHO), "digits", margin=margin), cache_dir=cache_dir).plan
        for margin in (None, 2.0, 1.0)
    )
    assert (plain.margin, stated.margin, same.margin) == (1.0, 2.0, 1.0)
    assert len({plain.identity(), stated.identity(), same.identity()}) == 3
    stated.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == stated
    assert stated.extended(seeds=(7,)).margin == 2.0


def test_a_plan_stored_without_a_margin_of_its_own_keeps_its_identity(tmp_path):
    plan = plan_of(RHO)
    path = tmp_path / "plan.json"
    plan.save(path)
    old = json.loads(path.read_text())
    del old["stated_margin"]
    path.write_text(json.dumps(old))
    assert Plan.load(path).identity() == plan.identity()
    assert Plan.load(path).margin == plan.space.margin


def test_what_a_search_might_propose_and_cannot_train_is_said_before(cache_dir, tmp_path):
    """Every listed value and both ends of a range, not those alone that it would begin with."""
    (tmp_path / "mine.yaml").write_text(
        "method: random\nrun_cap: 4\ndataset: digits\nfixed: {regularizer.name: sec, regularizer.eta: 0.5}\n"
        "parameters:\n  regularizer.rho: {min: 0.5, max: 3.5}\n  loss.margin: {values: [0.1, -3]}\n"
    )
    with pytest.raises(ConfigError) as wrong:
        prepare(read_sweep_file(tmp_path / "mine.yaml"), cache_dir=cache_dir)
    assert [problem.value for problem in wrong.value.problems] == [3.5, -3]
    text = (tmp_path / "mine.yaml").read_text().replace("3.5", "1").replace("[0.1, -3]", "[0.1, 0.2]")
    (tmp_path / "mine.yaml").write_text(text + "  batch.batch_size: {values: [9, 300]}\n")
    with pytest.raises(ConfigError, match="100 classes of 3 need as many training classes"):
        prepare(read_sweep_file(tmp_path / "mine.yaml"), cache_dir=cache_dir)
