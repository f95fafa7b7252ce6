"""A plan: cells that hold their configuration, seeds that share it, and a file that reads back as it was."""

import json
from dataclasses import asdict, replace

import pytest
from helpers import toys

from trainables.errors import ConfigError
from tune_dml.planning.plan import Plan
from tune_dml.planning.study import Search
from tune_dml.space import Baseline, Citation, Grid, Knob, LogRange, Protocol, Published, Range, Space, Tie

SPACE = Space(
    name="small",
    title="a small space",
    question="does it matter?",
    citation=Citation("A. Author", "A title", "ICML", 2020, "Table 1"),
    scientific=(Knob("regularizer.rho", Grid((0.1, 1, 0.5), "log"), symbol="rho"),),
    nuisance=(Knob("batch.batch_size", Grid((6, 12))),),
    ties=(Tie("optim.backbone_lr_multiplier", "batch.batch_size", 2),),
    fixed={"regularizer.name": "sec", "regularizer.eta": 0.5, "training.steps": 4, "training.eval_every": 2},
    baseline=Baseline("no SEC", {"regularizer.name": "none"}),
    protocols=(Protocol("p", "digits", {"evaluation.ks": [1, 2]}, sources={"evaluation.ks": "paper: Table 1"}),),
    published=(Published("paper", "T1", "digits", ("SEC",), "rho", where={"epochs": 100}),),
    margin=2,
)


def plan_of(space=SPACE, **options):
    return toys.plan_of(space=space, **options)


def test_a_cell_holds_its_configuration_and_a_trial_is_that_with_its_seed():
    plan = plan_of(seeds=[3, 8])
    for trial in plan.trials():
        assert trial.config.seed == trial.seed
        assert trial.config.digest() == trial.cell.digest == trial.cell.config.digest()
        assert trial.config.settings() == {**trial.cell.settings, "seed": trial.seed}
        assert trial.config.loss is trial.cell.config.loss  # shared, not resolved again
    assert all(
        cell.config.optim.backbone_lr_multiplier == 2 * cell.knobs["batch.batch_size"] for cell in plan.cells[1:]
    )


def test_a_plan_reads_back_as_it_was_written(tmp_path):
    plan = plan_of()
    plan.save(tmp_path / "plan.json")
    body = json.loads(json.dumps(asdict(plan)))
    for arm in body["arms"]:  # as their space declares them
        del arm["knobs"], arm["ties"]
    assert json.loads((tmp_path / "plan.json").read_text()) == body
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.identity() == plan.identity()
    assert [cell.config for cell in again.cells] == [cell.config for cell in plan.cells]
    for mine, other in zip(again.space.knobs, plan.space.knobs, strict=True):
        assert repr(mine) == repr(other)  # 1 and 1.0 are equal, but written differently


@pytest.mark.parametrize("domain", [Range(1, 8, integer=True), Range(0, 1.5), LogRange(1e-3, 1)])
def test_a_range_keeps_its_very_numbers_and_with_them_the_plans_identity(tmp_path, domain):
    space = replace(SPACE, scientific=(Knob("optim.lr", LogRange(1e-3, 1)),), nuisance=(), ties=())
    plan = plan_of(space, search=Search("tpe", 5))
    plan = replace(plan, space=replace(space, scientific=(Knob("optim.lr", domain),)))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").identity() == plan.identity()


def test_a_plan_of_methods_that_are_gone_can_still_be_looked_at(tmp_path):
    plan = plan_of()
    plan.save(tmp_path / "plan.json")
    body = json.loads((tmp_path / "plan.json").read_text())
    for cell in body["cells"]:
        cell["settings"]["loss.name"] = "forgotten"
    body["space"]["identities"], body["a field of another version"] = ["rho = 1 is SEC"], 1
    (tmp_path / "plan.json").write_text(json.dumps(body))
    loaded = Plan.load(tmp_path / "plan.json")
    assert [cell.digest for cell in loaded.cells] == [cell.digest for cell in plan.cells]
    with pytest.raises(ConfigError, match=r"loss\.name.*forgotten"):
        _ = loaded.cells[0].config


def test_a_searched_setting_goes_by_its_shortest_name():
    knob = Knob("model.backbone.width", Grid((8, 16)))
    with pytest.raises(ConfigError, match=r"small\.model\.backbone\.width: .*shortest"):
        plan_of(replace(SPACE, scientific=(knob,)))
    assert (
        plan_of(replace(SPACE, scientific=(replace(knob, path="model.width"),)))
        .cells[-1]
        .config.model.knobs("backbone")
    )


def test_problems_of_every_cell_are_reported_once():
    with pytest.raises(ConfigError) as error:
        plan_of(replace(SPACE, nuisance=(Knob("batch.batch_size", Grid((6, 7, 8))),)))
    assert [problem.value for problem in error.value.problems] == [7, 8]


@pytest.mark.parametrize("path", ["regularizer.rho", "regularizer.name.rho", "optim.backbone_lr_multiplier"])
def test_what_is_searched_or_tied_cannot_be_set_by_any_of_its_names(path):
    with pytest.raises(ConfigError, match="cannot be set"):
        plan_of(overrides={path: 0.5})
    assert plan_of(overrides={"regularizer.eta": 0.25}).cells[-1].settings["regularizer.eta"] == 0.25


def test_the_identity_of_a_trial_needs_config_seed_and_data():
    keys = [trial.key for trial in plan_of().trials()]
    assert len(set(keys)) == 14
    assert set(keys).isdisjoint(trial.key for trial in plan_of(data_digest="other").trials())
    assert [trial.key for trial in plan_of(name="renamed").trials()] == keys


def test_cells_that_resolve_to_the_same_settings_are_one():
    space = replace(SPACE, scientific=(Knob("regularizer.rho", Grid((1, 1.0)), "rho"),), nuisance=(), ties=())
    assert [cell.label for cell in plan_of(space).cells] == ["no SEC", "rho=1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overrides": {"regularizer.rho": 0.5}}, "is the knob that small searches"),
        ({"overrides": {"seed": 1}}, "Use seeds=3"),
        ({"seeds": 0}, "at least one seed"),
        ({"seeds": (1, 1)}, "must differ"),
        ({"overrides": {"batch.instances_per_class": 4}}, "Try"),
        ({"space": replace(SPACE, scientific=(Knob("regularizer.rho", Grid((0.5, 1.5))),))}, "regularizer.rho"),
    ],
)
def test_wrong_requests_are_refused(options, words):
    with pytest.raises(ConfigError) as error:
        plan_of(**options)
    assert words in str(error.value)


def test_an_override_that_is_a_list_is_stored_and_read_back(tmp_path):
    plan = replace(plan_of(), settings={"task.distractors": [50]})
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").settings == {"task.distractors": [50]}
