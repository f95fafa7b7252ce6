"""Plans: cells with their configuration, shared seeds, and a file that reads back unchanged."""

import json
from dataclasses import asdict, replace

import pytest
from helpers import toys

from trainables.errors import ConfigError
from tune_dml.catalogue import protocols
from tune_dml.planning.plan import Plan, make_plan, name_problems
from tune_dml.planning.request import Request
from tune_dml.planning.study import Search, study_of
from tune_dml.space import Baseline, Citation, CurveReference, Grid, Knob, LogRange, Protocol, Range, Space, Tie

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
    published=(
        CurveReference("SEC-supplement", "7", "CIFAR-10", ("NT-Xent+SEC",), "eta", "top1", where={"epochs": 100}),
    ),
    margin=2,
)


def plan_of(space=SPACE, **options):
    return toys.plan_of(space=space, **options)


def test_a_cell_has_a_configuration_and_a_trial_also_a_seed():
    plan = plan_of(seeds=[3, 8])
    for trial in plan.trials():
        assert trial.config.seed == trial.seed
        assert trial.config.digest() == trial.cell.digest == trial.cell.config.digest()
        assert trial.config.settings() == {**trial.cell.settings, "seed": trial.seed}
        assert trial.config.loss is trial.cell.config.loss  # shared, not resolved again
    for cell in plan.cells[1:]:
        assert cell.config.optim.backbone_lr_multiplier == 2 * cell.knobs["batch.batch_size"]


def test_a_plan_reads_back_as_it_was_written(tmp_path):
    plan = replace(plan_of(), settings={"task.distractors": [50]})
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
def test_a_range_keeps_its_exact_numbers_and_the_plans_identity(tmp_path, domain):
    space = replace(SPACE, scientific=(Knob("optim.lr", LogRange(1e-3, 1)),), nuisance=(), ties=())
    plan = plan_of(space, search=Search("tpe", 5))
    plan = replace(plan, space=replace(space, scientific=(Knob("optim.lr", domain),)))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").identity() == plan.identity()


def test_a_plan_of_removed_methods_can_be_read(tmp_path):
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


def test_a_searched_setting_is_labelled_by_its_shortest_name():
    knob = Knob("model.backbone.width", Grid((8, 16)))
    with pytest.raises(ConfigError, match=r"small\.model\.backbone\.width: .*shortest"):
        plan_of(replace(SPACE, scientific=(knob,)))
    shortest = plan_of(replace(SPACE, scientific=(replace(knob, path="model.width"),)))
    assert shortest.cells[-1].config.model.knobs("backbone")


def test_labels_of_cells_write_values_as_the_report_does():
    knobs = (Knob("loss.drop_zeros", Grid((True, False))), Knob("loss.samples", Grid((None, 9))))
    space = Space("s", "S", "?", scientific=knobs, fixed={"loss.name": "dro_kl", "loss.gamma": 1.0})
    assert {cell.label for cell in plan_of(space).cells} == {
        f"loss.drop_zeros={drops}, loss.samples={samples}" for drops in ("yes", "no") for samples in ("none", "9")
    }


def test_problems_of_every_cell_are_reported_once():
    with pytest.raises(ConfigError) as error:
        plan_of(replace(SPACE, nuisance=(Knob("batch.batch_size", Grid((6, 7, 8))),)))
    assert [problem.value for problem in error.value.problems] == [7, 8]


@pytest.mark.parametrize("path", ["regularizer.rho", "regularizer.name.rho", "optim.backbone_lr_multiplier"])
def test_searched_and_tied_settings_cannot_be_set(path):
    with pytest.raises(ConfigError, match="cannot be set"):
        plan_of(overrides={path: 0.5})
    assert plan_of(overrides={"regularizer.eta": 0.25}).cells[-1].settings["regularizer.eta"] == 0.25


def test_the_identity_of_a_trial_needs_config_seed_and_data():
    keys = [trial.key for trial in plan_of().trials()]
    assert len(set(keys)) == 14
    assert set(keys).isdisjoint(trial.key for trial in plan_of(data_digest="other").trials())
    assert [trial.key for trial in plan_of(name="renamed").trials()] == keys


def test_a_name_of_another_plan_is_refused_with_the_differences(tmp_path):
    for name in ("toy", "toy-2"):
        (tmp_path / name).mkdir()
    alone = replace(SPACE, baseline=None)
    plan_of(alone).save(tmp_path / "toy" / "plan.json")
    assert name_problems(tmp_path / "toy", plan_of(alone)) == name_problems(tmp_path / "new", plan_of()) == []
    other = plan_of(seeds=3, margin=0.5, overrides={"regularizer.eta": 0.25})
    assert str(*name_problems(tmp_path / "toy", other)).startswith(
        "name: the sweep toy exists already, with seeds 0,1 (asked for: 0,1,2), margin 2 (asked for: 0.5), "
        'arms none (asked for: no SEC), regularizer.eta 0.5 (asked for: 0.25). Use name="toy-3", or'
    )
    five = plan_of(seeds=3, margin=0.5, overrides={"regularizer.eta": 0.25, "training.steps": 8})
    assert "(asked for: 0.25), and 1 more differences. Use" in str(*name_problems(tmp_path / "toy", five))


def test_cells_that_resolve_to_the_same_settings_are_one():
    space = replace(SPACE, scientific=(Knob("regularizer.rho", Grid((1, "1.0")), "rho"),), nuisance=(), ties=())
    assert [cell.label for cell in plan_of(space).cells] == ["no SEC", "rho=1"]


OF_THE_METHOD = ("loss.", "regularizer.", "batch.sampler", "batch.instances_per_class", "memory.")


def planned(space, dataset, **settings):
    root = {"data.root": "/pictures"} if dataset == "image_folder" else {}
    return make_plan(study_of(Request(space, dataset, seeds=1, settings={**root, **settings})))


def test_the_weight_of_sec_follows_its_arm_and_names_its_source():
    arms = {arm.name: arm for arm in planned("sec_losses", "image_folder").arms}
    assert arms["Triplet+SEC"].base_settings["regularizer.eta"] == 0.5
    origin = arms["Triplet+SEC"].origins["regularizer.eta"]
    assert origin == "arm Triplet+SEC: paper: SEC, supplement, Table 2 (Cars196)"
    assert arms["NormalizedNPair+L2-reg"].base_settings["regularizer.eta"] == 1e-2
    assert arms["NormalizedNPair"].origins["batch.instances_per_class"].startswith("loss npair: paper: SEC")


def test_the_user_overrides_settings_of_arms():
    assert planned("sec_rho", "image_folder", **{"regularizer.eta": 0.3}).base_settings["regularizer.eta"] == 0.3
    other = planned("sec_rho", "image_folder", **{"loss.name": "npair"})
    assert other.base_settings["batch.instances_per_class"] == 2


def test_the_rate_of_proxies_does_not_depend_on_that_of_the_network():
    for dataset in ("glyphs", "image_folder", "digits"):
        for own in ({}, {"optim.lr": 3e-4}, {"optim.lr": 0.01}):  # as `tune-dml init` may choose it
            settings = planned("mpa_gamma", dataset, **own).base_settings
            assert settings["optim.lr"] * settings["optim.loss_lr_multiplier"] == pytest.approx(1e-2)
    both = planned("mpa_gamma", "glyphs", **{"optim.lr": 0.01, "optim.loss_lr_multiplier": 7.0}).base_settings
    assert both["optim.loss_lr_multiplier"] == 7


def test_our_protocols_leave_the_methods_settings_to_the_method():
    ours = [p for p in protocols().values() if p.origin == "ours" and p.dataset in {"glyphs", "image_folder"}]
    for protocol in ours:
        found = [path for path in protocol.settings if path.startswith((*OF_THE_METHOD, "optim.loss_lr"))]
        assert found == [] or "task.name" in protocol.settings, protocol.name


def pair_shares(plan):
    found = {}
    for cell in plan.cells:
        if "loss.k" in cell.settings:
            pairs = cell.settings["batch.batch_size"] * (cell.settings["batch.instances_per_class"] - 1) / 2
            found.setdefault(cell.arm, []).append(round(cell.settings["loss.k"] / pairs, 1))
    return found


WITH_A_FIXED_K = ("dro_k", "dro_k_inshop", "dro_variants", "dro_runs", "dro_chi2", "memory_size", "label_noise")


@pytest.mark.parametrize("space", WITH_A_FIXED_K)
def test_k_is_the_same_share_of_a_batchs_positive_pairs_on_a_folder(space):
    assert pair_shares(planned(space, "image_folder")) == pair_shares(planned(space, "glyphs"))


def test_k_is_scaled_once_with_a_note():
    asked = Request("dro_k", "image_folder", seeds=1, settings={"data.root": "/pictures"}, arms=["mean of all pairs"])
    study = study_of(asked)
    assert study.notes[-1] == (
        "K counts pairs: 160, 200, 240, 280, for 160 positive pairs in the paper's batches, become "
        "120, 150, 180, 210 for the 120 in these batches"
    )
    grown = make_plan(study).extend(arms=["DRO-TopK_M"])
    assert [cell.settings["loss.k"] for cell in grown.cells[1:]] == [120, 150, 180, 210]
    kept = study_of(Request("dro_k", "cub200", seeds=1))
    assert not [note for note in kept.notes if "K counts pairs" in note]


def test_values_of_k_that_a_user_gives_are_not_scaled():
    asked = Request("dro_k", "image_folder", seeds=1, settings={"data.root": "/pictures"}, tune={"loss.k": (10, 20)})
    plan = make_plan(study_of(replace(asked, arms=["mean of all pairs"])))
    grown = plan.extend(arms=["DRO-TopK_M"])
    assert [cell.settings["loss.k"] for cell in grown.cells[1:]] == [10, 20]


@pytest.mark.parametrize(("space", "longer"), [("sec_simclr_200", 2.0), ("sec_linear_head", 1.5)])
def test_studies_of_200_and_150_epochs_last_longer_than_that_of_100_on_a_folder_too(space, longer):
    for dataset in ("glyphs", "image_folder"):
        steps = [planned(name, dataset).base_settings["training.steps"] for name in (space, "sec_simclr")]
        assert steps[0] == longer * steps[1]
