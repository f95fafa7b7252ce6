"""The protocol follows the loss, can be chosen by name, and is never silently that of another loss."""

from dataclasses import replace

import pytest
from helpers.together import for_each
from helpers.toys import space_of

from search_spaces.printed_methods import FACE
from trainables.errors import ConfigError
from trainables.registries import methods_of
from trainables.resolve import Layer
from tune_dml.catalogue import RETRIEVAL, protocols, spaces
from tune_dml.planning.arms.fitting import TrainingPart, fitting_space
from tune_dml.planning.arms.settings import choose_protocol, method_layers
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.space import Arm, Baseline, Grid, Knob, Protocol, Range

LR, MARGIN = (Knob(path, Grid((0.1, 0.2))) for path in ("optim.lr", "loss.margin"))
OFF = Baseline("off", {"loss.name": "npair", "batch.instances_per_class": 2, "batch.batch_size": 6})


def chosen(space, dataset, **settings):
    study = study_of(Request(space, dataset, settings={key.replace("_", ".", 1): v for key, v in settings.items()}))
    return study.arms[0].protocol.name, list(study.notes)


@pytest.mark.parametrize(
    ("space", "dataset", "loss", "protocol"),
    [
        ("sec_eta", "cub200", "multi_similarity", "sec/cub200-ms"),
        ("sec_eta", "cub200", "triplet", "sec/cub200"),
        ("sec_rho", "cars196", "npair", "sec/cars196-npair"),
        ("sec_rho", "sop", "tuplet_margin", "sec/sop-tml"),
        ("sec_rho", "cub200", "dro_topk", "dro/cub200"),
        ("sec_rho", "cub200", "dro_kl_grouped", "dro/cub200-64"),
        ("sec_rho", "cub200", "proxy_anchor", "proxy_anchor/cub200"),
        ("sec_l2", "glyphs", "multi_similarity", "glyphs/triplet"),
        ("sec_rho", "glyphs", "mpa", "glyphs/proxy"),
        ("sec_rho", "glyphs", "dro_kl", "glyphs/dro"),
    ],
)
def test_a_loss_takes_its_published_protocol(space, dataset, loss, protocol):
    name, notes = chosen(space, dataset, loss_name=loss)
    assert name == protocol
    declared = next(protocol for protocol in spaces()[space].protocols if protocol.dataset == dataset)
    follows = f"protocol {protocol} follows loss.name={loss}, for which it is printed"
    assert notes == [follows] * (protocol != declared.name)


def test_a_published_protocol_sets_the_published_knobs_of_its_loss():
    settings = {"loss.name": "tuplet_margin", "data.root": "/data", "model.weights": None}
    plan = make_plan(study_of(Request("sec_rho", "cub200", settings=settings)))
    found = {path: plan.base_settings[path] for path in ("loss.margin", "loss.scale", "batch.batch_size", "optim.lr")}
    assert found == {"loss.margin": 0.1, "loss.scale": 64.0, "batch.batch_size": 128, "optim.lr": 4e-5}
    assert plan.origins["optim.lr"].startswith("protocol sec/cub200-tml")


def test_a_loss_without_published_protocol_keeps_that_of_the_space_with_a_note():
    name, (note,) = chosen("sec_l2", "sop", loss_name="dro_topk")
    assert name == "sec/sop"
    assert note == ("no protocol is printed for dro_topk on sop: it trains by sec/sop, which is for triplet")


def test_a_protocol_can_be_chosen_by_name():
    study = study_of(Request("sec_rho", "cub200", protocol="ms/cub200"))
    assert {arm.protocol.name for arm in study.arms} == {"ms/cub200"}
    assert "no protocol is printed for triplet" in study.notes[0]


def test_each_arm_takes_the_protocol_of_its_loss():
    arms = (Arm("triplet", {"loss.name": "triplet"}), Arm("ms", {"loss.name": "multi_similarity"}))
    study = study_of(Request(space_of(LR, arms=arms, differs="each as its paper trains it"), "cub200"))
    assert {arm.name: arm.protocol.name for arm in study.arms} == {"triplet": "sec/cub200", "ms": "sec/cub200-ms"}
    own = space_of(LR, arms=(*arms, Arm("own", {"loss.name": "homemade"})))  # no protocol prints it anywhere
    assert [note for note in study_of(Request(own, "glyphs")).notes if "for homemade" in note]
    assert not study_of(Request(own, "glyphs")).problems
    lone = (*arms, Arm("lone", {"loss.name": "soft_triple"}))
    (problem,) = study_of(Request(space_of(LR, arms=lone), "inshop")).problems
    assert str(problem) == (
        "toy.lone: the arm has no protocol on inshop: none is printed there for soft_triple. "
        "Choose another `protocol`, `arms` or `dataset`."
    )


@for_each("name", protocols())
def test_every_protocol_is_reachable_and_names_existing_losses(name):
    protocol = protocols()[name]
    assert set(protocol.methods) <= set(methods_of("loss"))
    task = protocol.settings.get("task.name", RETRIEVAL)
    arm = Arm("", {"task.name": task})
    assert choose_protocol(space_of(LR), arm, protocol.dataset, {}, name).protocol is protocol


def tuned(request):
    plan = make_plan(study_of(request))
    knobs = {arm.name: plan.space.knobs_of(plan.space.arm(arm.name)) for arm in plan.arms}
    return {name: {knob.path: knob.domain.values for knob in own} for name, own in knobs.items()}


def test_a_tuned_setting_has_three_values_around_that_of_each_arm():
    slow = Arm("slow", {"loss.name": "triplet", "optim.lr": 1e-5})
    fast = Arm("fast", {"loss.name": "npair", "batch.instances_per_class": 2, "batch.batch_size": 6})
    space = space_of(arms=(slow, fast), baseline=Baseline("off", {"loss.name": "semihard_triplet"}))
    assert tuned(Request(space, "digits", tune={"optim.lr": ()})) == {
        "off": {"optim.lr": (3.3e-4, 1e-3, 3e-3)},
        "slow": {"optim.lr": (3.3e-6, 1e-5, 3e-5)},
        "fast": {"optim.lr": (3.3e-4, 1e-3, 3e-3)},
    }
    alone = space_of(MARGIN, baseline=OFF)
    plan = make_plan(study_of(Request(alone, "digits", tune={"optim.lr": (1e-4, 1e-3)}, settings={"optim.lr": 0.5})))
    assert plan.space.is_nuisance("optim.lr")
    labels = ["off: lr=0.0001", "off: lr=0.001", "loss.margin=0.1, lr=0.0001", "loss.margin=0.1, lr=0.001"]
    assert [cell.label for cell in plan.cells[:4]] == labels
    assert [cell.baseline for cell in plan.cells[:3]] == [True, True, False]


def test_tuned_values_surround_an_explicit_setting():
    found = tuned(Request(space_of(MARGIN), "digits", settings={"optim.lr": 0.1}, tune={"optim.lr": ()}))
    assert found[""]["optim.lr"] == (0.033, 0.1, 0.3)
    fixed = space_of(MARGIN, fixed={"optim.lr": 0.1, "training.steps": 4})
    study = study_of(Request(fixed, "digits", tune={"optim.lr": ()}))
    assert study.space.fixed == {"training.steps": 4}
    whole = tuned(Request(space_of(LR), "digits", tune={"model.embedding_dim": ()}))
    assert whole[""]["model.embedding_dim"] == (5, 16, 48)


def test_given_values_of_a_named_setting_stay_names():
    space = space_of(Knob("optim.name", Grid(("adam", "adamw", "sgd"), scale="category")))
    (knob,) = make_plan(study_of(Request(space, "digits", tune={"optim.name": ("adam", "sgd")}))).space.scientific
    assert knob.domain == Grid(("adam", "sgd"), scale="category")


def test_given_values_replace_the_grid_of_a_knob_and_keep_published_numbers():
    own = {"regularizer.rho": (0.1, 1.0), "optim.lr": (0.001, 0.002)}
    plan = make_plan(study_of(Request("sec_rho", "glyphs", tune=own)))
    (rho,) = plan.space.scientific
    assert (rho.domain, rho.origin, rho.symbol) == (Grid((0.1, 1.0), "log"), "user", "rho")
    searched = [cell.config.settings()["regularizer.rho"] for cell in plan.cells if not cell.baseline]
    assert searched == [0.1, 0.1, 1.0, 1.0]
    assert plan.space.published


def test_a_range_keeps_its_search_if_another_setting_is_tuned():
    space = space_of(Knob("loss.margin", Range(0.1, 1.0)), baseline=OFF)
    plan = make_plan(study_of(Request(space, "digits", search="tpe", num_samples=4, tune={"optim.lr": ()})))
    assert [cell.baseline for cell in plan.cells] == [True, True, True]


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"batch.sampler": "random"}, 30),
        ({"batch.sampler": "random", "task.name": "contrastive"}, 60),
        ({"batch.instances_per_class": 7}, 28),
        ({"batch.instances_per_class": 16}, 48),
        ({"batch.instances_per_class": 15}, 60),
    ],
)
def test_a_batch_is_cut_to_whole_classes_or_to_the_pictures_that_are_drawn(settings, size):
    mine = Layer("mine", {"batch.batch_size": 60, **settings})
    layers = method_layers(None, "npair", [mine], TrainingPart(4, 40, 30))
    assert [layer.settings.get("batch.batch_size", size) for layer in layers][-1] == size


def test_a_k_is_scaled_to_the_pairs_of_the_batches_unless_the_user_sets_it():
    fixed = {"loss.name": "dro_topk", "loss.k": 40, "batch.batch_size": 12, "batch.instances_per_class": 4}
    space = space_of(LR, fixed=fixed, positive_pairs=36)
    study = study_of(Request(space, "digits"))
    assert study.space.fixed["loss.k"] == 20
    note = "K counts pairs: 40, for 36 positive pairs in the paper's batches, become 20 for the 18 in these batches"
    assert note in study.notes
    own = study_of(Request(space, "digits", settings={"loss.k": 8}))
    assert own.space.fixed["loss.k"] == 40
    assert not any(note.startswith("K counts") for note in own.notes)


def test_arms_share_a_protocol_if_any_of_them_brings_one():
    printed = Protocol("printed", "digits", {"training.steps": 4})
    arms = (Arm("plain", {"loss.margin": 0.1}), Arm("as printed", {"loss.margin": 0.2}, protocols=(printed,)))
    asked = Request(space_of(arms=arms, fixed={"loss.name": "triplet", "data.validation_fraction": 0.5}), "digits")
    with pytest.raises(ConfigError, match="arms that are compared must share their protocol"):
        make_plan(study_of(asked))
    make_plan(study_of(replace(asked, space=replace(asked.space, differs="what is printed"))))


BATCH, PER_CLASS, KEPT = "batch.batch_size", "batch.instances_per_class", "data.pictures_per_class"


@pytest.mark.parametrize(
    ("path", "values", "fixed", "fitted", "more"),
    [
        (BATCH, (10, 48, 80), {PER_CLASS: 8}, (16, 24, 40), {}),  # whole classes, at least two
        (BATCH, (10, 40), {PER_CLASS: 8}, (10, 40), {}),  # five classes of eight are there
        (BATCH, (2, 10), {}, (2, 5), {}),
        (PER_CLASS, (2, 4), {BATCH: 10, "loss.k": 7}, (2, 4), {BATCH: 10, "loss.k": 7}),
        # of 3 to 15 pictures, 15 and 12 have two divisors near 3 and 8; 16 would need more than five classes
        (PER_CLASS, (3, 8), {BATCH: 60, "loss.k": 40}, (3, 5), {BATCH: 15, "loss.k": 10}),
        (PER_CLASS, (3, 8), {BATCH: 60, "loss.k": 4}, (3, 5), {BATCH: 15, "loss.k": 2}),
        (KEPT, (2, 12, 24, 48), {}, (2, 3, 6, 12), {}),
        (KEPT, (2, 12), {}, (2, 12), {}),
        (BATCH, (10, 48.0), {PER_CLASS: 8}, (10, 48.0), {}),  # wrong sizes stay, and are reported with the plan
        (PER_CLASS, (3, 8), {BATCH: "many"}, (3, 8), {}),
        (BATCH, (10, 48), {PER_CLASS: 0}, (10, 48), {}),
    ],
)
def test_sizes_are_scaled_to_five_classes_of_twelve_pictures(path, values, fixed, fitted, more):
    space, notes = fitting_space(space_of(Knob(path, Grid(values)), fixed=fixed), TrainingPart(5, 12, 30), {})
    assert space.knobs[0].domain.values == fitted
    assert len(notes) == (values != fitted)
    assert space.fixed == {**fixed, **more}


@pytest.mark.parametrize("method", FACE, ids=[method.name for method in FACE])
def test_a_printed_method_of_faces_trains_by_the_protocol_of_its_loss(method):
    """The protocol has the margin: with ArcFace's default of 0.5 training diverged in the paper."""
    assert protocols()[method.protocol].settings["loss.name"] == method.settings["loss.name"]
