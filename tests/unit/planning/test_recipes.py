"""The settings of a method travel with it to every data set, and a paper's protocol goes over them on the paper's data."""

import pytest

from tune_dml.catalogue import protocols, recipes, spaces
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of

OF_THE_METHOD = ("loss.", "regularizer.", "batch.sampler", "batch.instances_per_class", "memory.")
RETRIEVAL = [name for name, space in spaces().items() if space.fixed.get("task.name") is None]


def planned(space, dataset, **settings):
    root = {"data.root": "/pictures"} if dataset == "image_folder" else {}
    return make_plan(study_of(Request(space, dataset, seeds=1, settings={**root, **settings})))


def method_settings(plan):
    """What travels, by cell; proxies by their own learning rate, and pictures per class where the sampler draws so."""
    return {
        (cell.arm, position): {
            **{
                path: value
                for path, value in cell.settings.items()
                if path.startswith(OF_THE_METHOD) and path != "loss.k"
            },
            "rate of proxies": cell.settings["optim.lr"] * cell.settings["optim.loss_lr_multiplier"]
            if cell.settings["loss.name"] in recipes() and recipes()[cell.settings["loss.name"]].loss_lr
            else None,
        }
        for position, cell in enumerate(plan.cells)
    }


@pytest.mark.parametrize("space", RETRIEVAL)
def test_a_study_has_the_same_methods_on_glyphs_and_on_a_folder(space):
    assert method_settings(planned(space, "image_folder")) == method_settings(planned(space, "glyphs"))


@pytest.mark.parametrize("space", RETRIEVAL)
def test_all_arms_of_a_study_have_cells_of_their_own_on_a_folder(space):
    plan = planned(space, "image_folder")
    assert {cell.arm for cell in plan.cells} == {arm.name for arm in plan.arms}


def test_the_weight_of_sec_travels_with_its_arm_and_names_its_source():
    arms = {arm.name: arm for arm in planned("sec_losses", "image_folder").arms}
    assert arms["Triplet+SEC"].base_settings["regularizer.eta"] == 0.5
    assert arms["Triplet+SEC"].origins["regularizer.eta"] == (
        "arm Triplet+SEC: paper: SEC, supplement, Table 2 (Cars196)"
    )
    assert arms["NormalizedNPair+L2-reg"].base_settings["regularizer.eta"] == 1e-2
    assert arms["NormalizedNPair"].origins["batch.instances_per_class"].startswith("loss npair: paper: SEC")


def test_a_papers_protocol_goes_over_what_travels():
    weights = {"cub200": 1.0, "cars196": 0.5, "sop": 1.0, "inshop": 1.0}
    for dataset, eta in weights.items():
        arms = {arm.name: arm for arm in planned("sec_losses", dataset, **{"data.root": "/data"}).arms}
        assert arms["Triplet+SEC"].base_settings["regularizer.eta"] == eta
        assert arms["Triplet+SEC"].origins["regularizer.eta"].startswith(f"protocol sec/{dataset}+sec")


def test_the_user_goes_over_what_travels():
    assert planned("sec_rho", "image_folder", **{"regularizer.eta": 0.3}).base_settings["regularizer.eta"] == 0.3
    other = planned("sec_rho", "image_folder", **{"loss.name": "npair"})
    assert other.base_settings["batch.instances_per_class"] == 2


def test_proxies_learn_at_one_rate_whatever_the_networks_rate_is():
    for dataset in ("glyphs", "image_folder", "digits"):
        settings = planned("mpa_gamma", dataset).base_settings
        assert settings["optim.lr"] * settings["optim.loss_lr_multiplier"] == pytest.approx(1e-2)


def test_a_batch_of_ours_is_cut_to_whole_classes_and_says_so():
    plan = planned("sec_tml", "glyphs")
    assert plan.base_settings["batch.batch_size"] == 88
    assert plan.origins["batch.batch_size"] == "protocol glyphs/triplet: 90 cut to whole classes of 4"


def test_our_protocols_leave_the_methods_settings_to_the_method():
    ours = [p for p in protocols().values() if p.origin == "ours" and p.dataset in {"glyphs", "image_folder"}]
    found = {
        (protocol.name, path)
        for protocol in ours
        if "task.name" not in protocol.settings
        for path in protocol.settings
        if path.startswith((*OF_THE_METHOD, "optim.loss_lr"))
    }
    assert found == set()


def pair_shares(plan):
    found = {}
    for cell in plan.cells:
        if "loss.k" in cell.settings:
            pairs = cell.settings["batch.batch_size"] * (cell.settings["batch.instances_per_class"] - 1) / 2
            found.setdefault(cell.arm, []).append(round(cell.settings["loss.k"] / pairs, 1))
    return found


@pytest.mark.parametrize("space", ["dro_k", "dro_k_inshop", "dro_variants", "dro_runs", "memory_size", "label_noise"])
def test_k_is_the_same_share_of_a_batchs_positive_pairs_on_a_folder(space):
    assert pair_shares(planned(space, "image_folder")) == pair_shares(planned(space, "glyphs"))


def test_a_scaled_k_is_said_and_scaled_once():
    asked = Request("dro_k", "image_folder", seeds=1, settings={"data.root": "/pictures"}, arms=["mean of all pairs"])
    study = study_of(asked)
    assert study.notes[-1] == (
        "K counts pairs: 160, 200, 240, 280 of 160 positive pairs in the printed batches are 120, 150, 180, 210 of the 120 here"
    )
    grown = make_plan(study).extended(arms=["DRO-TopK_M"])
    assert [cell.settings["loss.k"] for cell in grown.cells[1:]] == [120, 150, 180, 210]
    kept = study_of(Request("dro_k", "cub200", seeds=1))
    assert not [note for note in kept.notes if "K counts pairs" in note]
