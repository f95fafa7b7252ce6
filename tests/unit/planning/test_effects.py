"""Cells that would train one trial are refused or named before a worker starts, and so are values without effect."""

import pytest
from helpers.toys import plan_of, space_of

from tune_dml.catalogue import spaces
from tune_dml.planning.checks.effects import effective_settings, equal_trial_problems, idle_value_notes
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.space import Arm, Grid, Knob

SHORT = {"training.steps": 4, "training.eval_every": 2, "batch.instances_per_class": 3, "batch.batch_size": 6}
PLAIN = Arm("plain", {"regularizer.name": "none"}, knobs=())


def problems_of(*arms, **settings):
    plan = plan_of(space=space_of(arms=arms, fixed={**SHORT, **settings}))
    return [str(problem) for problem in equal_trial_problems(plan)]


def test_an_arm_with_a_weight_of_zero_is_the_arm_without_its_regularizer():
    assert problems_of(PLAIN, Arm("SEC", {"regularizer.name": "sec", "regularizer.rho": 1.0})) == [
        "toy.arms: SEC trains the same trial as plain: regularizer.name=sec and regularizer.rho=1.0 changes nothing there. "
        "Give it the setting that it lacks, or leave one out with `arms`."
    ]
    assert not problems_of(PLAIN, Arm("SEC", {"regularizer.name": "sec", "regularizer.eta": 0.5}))


def test_an_arm_that_is_another_one_to_the_letter_is_refused():
    (problem,) = problems_of(PLAIN, Arm("again", {"regularizer.name": "none"}))
    assert "every cell of again trains the same trial as a cell of the arms before it" in problem


def test_every_k_above_the_pairs_of_a_batch_is_one_k():
    topk = Arm("PN", {"loss.name": "dro_topk_pn"}, own_knobs=(Knob("loss.k", Grid((160, 200, 240, 280))),))
    (problem,) = problems_of(topk)
    assert "loss.k changes nothing above 12, in batches with 6 positive pairs: its values train one trial" in problem
    useful = Arm("PN", {"loss.name": "dro_topk_pn"}, own_knobs=(Knob("loss.k", Grid((4, 8, 200, 240))),))
    plan = plan_of(space=space_of(arms=(useful,), fixed=SHORT))
    assert not equal_trial_problems(plan)
    assert idle_value_notes(plan) == [
        "PN: loss.k=200 and PN: loss.k=240 train one trial: loss.k=240 changes nothing there"
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"batch.sampler": "random", "batch.instances_per_class": 3}, {"batch.instances_per_class": 5}),
        ({"loss.proxies_per_class": 1, "loss.tau": 0.2}, {"loss.tau": 1.0}),
        ({"memory.size": 0, "memory.start": 0}, {"memory.start": 50}),
        ({"regularizer.eta": 0.0, "regularizer.schedule": "constant"}, {"regularizer.schedule": "linear"}),
    ],
)
def test_settings_that_change_nothing_are_left_out_and_others_are_not(one, other):
    assert effective_settings(one) == effective_settings(one | other)
    key = next(iter(one))
    used = {**one, key: "m_per_class" if key.endswith("sampler") else 4}
    assert effective_settings(used) != effective_settings(used | other)


def test_the_rate_of_proxies_is_said_where_it_is_not_the_papers():
    plan = make_plan(study_of(Request("mpa_gamma", "glyphs", seeds=1, settings={"optim.loss_lr_multiplier": 100.0})))
    (note,) = [note for note in idle_value_notes(plan) if "proxies learn at" in note]
    assert note.startswith("mpa_gamma: proxies learn at 0.2, and at 0.01 in paper: MPA")
    assert not idle_value_notes(make_plan(study_of(Request("mpa_gamma", "glyphs", seeds=1))))


def test_a_loss_of_pairs_without_pairs_is_named():
    asked = Request("npair_scale", "glyphs", seeds=1, settings={"batch.sampler": "random"})
    (note,) = [note for note in idle_value_notes(make_plan(study_of(asked))) if note.startswith("NormalizedNPair")]
    assert "npair compares pictures of one class, and a batch need not hold two of them" in note


@pytest.mark.parametrize("dataset", ["glyphs", "image_folder"])
def test_no_study_has_two_arms_that_train_alike(dataset):
    root = {"data.root": "/pictures"} if dataset == "image_folder" else {}
    for name, space in spaces().items():
        if dataset == "image_folder" and space.fixed.get("task.name") == "contrastive":
            continue
        assert not equal_trial_problems(make_plan(study_of(Request(name, dataset, seeds=1, settings=root)))), name
