"""Values without an effect are refused or named before training."""

import pytest
from helpers.toys import plan_of, space_of
from PIL import Image

from trainables.errors import ConfigError
from tune_dml.planning.checks.effects import (
    added_cell_problems,
    effective_settings,
    equal_trial_problems,
    idle_value_notes,
)
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request
from tune_dml.space import Arm, Grid, Knob

SHORT = {"loss.name": "triplet", "training.steps": 4, "training.eval_every": 2}
SHORT |= {"batch.batch_size": 6, "batch.instances_per_class": 3}


def plan_of_arms(*arms, **fixed):
    return plan_of(space=space_of(arms=arms, fixed=SHORT | fixed))


def refused(knob, values, fixed):
    plan = plan_of_arms(Arm("arm", {}, own_knobs=(Knob(knob, Grid(values)),)), **fixed)
    return [str(problem) for problem in equal_trial_problems(plan)]


TOPK = {"loss.name": "dro_topk", "loss.k": 4}
NONE, ETA = {"regularizer.name": "none"}, {"regularizer.eta": 1.0}
SAME = "other trains the same trial as one"


@pytest.mark.parametrize(
    ("knob", "values", "fixed", "used"),
    [
        ("loss.margin", (0.1, 0.2), {**TOPK, "loss.base": "binomial"}, {"loss.base": "margin"}),
        ("loss.beta_pos", (1.0, 2.0), TOPK, {"loss.base": "binomial"}),
        ("loss.ipv_epsilon", (0.01, 0.1), {"loss.name": "tuplet_margin", "loss.ipv_weight": 0}, {"loss.ipv_weight": 1}),
        ("loss.sampling_seed", (0, 1), {"loss.name": "dro_kl", "loss.gamma": 0.3}, {"loss.samples": 5}),
        ("optim.loss_lr_multiplier", (10.0, 100.0), {}, {"loss.name": "proxy_anchor"}),
        ("data.fold", (0, 1), {}, {"data.folds": 2}),
        ("data.validation_fraction", (0.2, 0.5), {"data.folds": 2}, {"data.folds": None}),
        ("memory.start", (3, 9), {"memory.size": 6}, {"training.steps": 8}),
        ("memory.size", (18, 36), {}, {"training.steps": 5}),
    ],
)
def test_a_knob_without_an_effect_is_refused_and_one_with_an_effect_is_not(knob, values, fixed, used):
    (problem,) = refused(knob, values, fixed)
    assert f"{knob} changes nothing: its values train one trial" in problem
    assert refused(knob, values, fixed | used) == []


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (NONE, {"regularizer.name": "sec", "regularizer.rho": 1.0},
         f"toy.arms: {SAME}: regularizer.name=sec and regularizer.rho=1.0 changes nothing there. "
         "Give it the setting that it lacks, or leave one out with `arms`."),
        (NONE, NONE, "every cell of other trains the same trial as a cell of the arms before it"),
        ({"regularizer.name": "l2", **ETA}, {"regularizer.name": "sec_fixed", "regularizer.mu": 0.0, **ETA}, SAME),
        ({"regularizer.name": "sec_fixed", "regularizer.mu": "first_batch", **ETA},
         {"regularizer.name": "sec", "regularizer.rho": 0.0, **ETA}, SAME),
        ({"memory.size": 0}, {"memory.size": 160, "memory.start": 50},  # it never fills
         f"{SAME}: memory.size=160 and memory.start=50 changes nothing"),
    ],
)  # fmt: skip
def test_two_arms_that_train_alike_are_refused(one, other, words):
    (problem,) = equal_trial_problems(plan_of_arms(Arm("one", one), Arm("other", other)))
    assert words in str(problem)


def test_arms_that_differ_in_a_weight_are_not_refused():
    assert not equal_trial_problems(plan_of_arms(Arm("one", NONE), Arm("other", {"regularizer.name": "sec", **ETA})))


def test_values_of_k_above_the_pairs_of_a_batch_are_equal():
    def planned(*values):
        return plan_of_arms(Arm("PN", {"loss.name": "dro_topk_pn"}, own_knobs=(Knob("loss.k", Grid(values)),)))

    (problem,) = equal_trial_problems(planned(200, 240))
    words = "loss.k changes nothing above 12, in batches with 6 positive pairs: its values train one trial"
    assert words in str(problem)
    assert not equal_trial_problems(plan := planned(4, 8, 200, 240))
    note = "PN: loss.k=200 and PN: loss.k=240 train one trial: loss.k=240 changes nothing there"
    assert idle_value_notes(plan) == [note]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"batch.sampler": "random", "batch.instances_per_class": 3}, {"batch.instances_per_class": 5}),
        ({"loss.proxies_per_class": 1, "loss.tau": 0.2}, {"loss.tau": 1.0}),
        ({"memory.size": 0, "memory.start": 0}, {"memory.start": 50}),
        ({"regularizer.eta": 0.0, "regularizer.schedule": "constant"}, {"regularizer.schedule": "linear"}),
    ],
)
def test_only_settings_without_effect_are_left_out(one, other):
    assert effective_settings(one) == effective_settings(one | other)
    key = next(iter(one))
    used = {**one, key: "m_per_class" if key.endswith("sampler") else 4}
    assert effective_settings(used) != effective_settings(used | other)


def test_a_memory_counts_if_training_is_given_in_epochs():
    in_epochs = {"memory.size": 160, "memory.start": 50, "training.steps": 4, "training.epochs": 9.0}
    assert effective_settings(in_epochs) == in_epochs


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Eight classes of two pictures."""
    folder = tmp_path_factory.mktemp("drawn")
    for number in range(16):
        path = folder / f"class{number // 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (16, 16), (9 * number, 99, 0)).save(path)
    return {"data.root": str(folder), "data.size": 16}


def test_a_tail_that_drops_no_picture_is_refused(root, cache_dir):
    with pytest.raises(ConfigError, match="long_tail changes nothing in these training classes: its values train one"):
        prepare(Request("long_tail", "image_folder", settings=root), cache_dir=cache_dir)


def test_more_pictures_than_a_class_has_are_named(root, cache_dir):
    space = space_of(Knob("data.label_noise", Grid((0, 0.1, 0.3)), "label_noise"), fixed={"loss.name": "triplet"})
    notes = prepare(Request(space, "image_folder", seeds=2, settings=root), cache_dir=cache_dir).notes
    assert "label_noise=0 and label_noise=0.1 train one trial: data.label_noise=0.1 changes nothing there" in notes


def test_a_value_that_changes_nothing_is_not_added_to_a_sweep():
    arm = Arm("topk", {"loss.name": "dro_topk"}, own_knobs=(Knob("loss.k", Grid((4, 15))),))
    begun = plan_of_arms(arm)
    assert added_cell_problems(begun, begun.extend(seeds=[7])) == []
    assert added_cell_problems(begun, begun.extend(values={"loss.k": [8]})) == []
    (problem,) = added_cell_problems(begun, begun.extend(values={"loss.k": [8, 160]}))
    assert "k=160 trains the same trial as topk: " in str(problem)
    assert str(problem).endswith("loss.k=160 changes nothing there. Leave it out.")
