"""Invalid sweeps are refused before any trial starts, with all problems together; nothing is stored."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers.published_formats import cub
from helpers.toys import plan_of, space_of

from trainables.errors import ConfigError
from tune_dml.catalogue import spaces
from tune_dml.planning.checks.data_findings import data_findings
from tune_dml.planning.checks.effects import equal_trial_problems, idle_value_notes
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.plan import Plan, make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import Search, study_of
from tune_dml.space import Arm, Grid, Knob, Range

RHO = Knob("loss.margin", Grid((0.1, 0.2)))
ONE = Knob("loss.margin", Grid((0.1,)))


@pytest.mark.parametrize("margin", [0, -2.0, float("inf")])
def test_a_declared_margin_must_be_positive(margin):
    problems = space_of(RHO, margin=margin).problems()
    assert [problem.place for problem in problems] == ["toy.margin"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"goal": "max"}, "toy.goal: must be 'maximize' or 'minimize', but got 'max'"),
        ({"margin": None}, "toy.margin: must be a number"),
        ({"citation": "me"}, "toy.citation: must be a Citation, but got 'me'"),
        ({"scientific": RHO}, "toy.scientific: must be a list, but got"),
        (
            {"scientific": (replace(RHO, domain=Grid(0.1)),)},
            "toy.scientific.0.domain.values: must be a list, but got 0.1",
        ),
        ({"scientific": (replace(RHO, domain=(0.1, 0.2)),)}, "toy.scientific.0.domain: must be a Grid, but got"),
        ({"scientific": (replace(RHO, domain=Range("0", 1)),)}, "toy.scientific.0.domain.low: must be a number"),
        ({"arms": (Arm("a", {}), Arm("b", None))}, "toy.arms.1.settings: must be a mapping"),
        ({"baseline": Arm("a", {}, knobs="x")}, "toy.baseline.knobs: must be a list, but got 'x'"),
    ],
)
def test_a_field_of_a_space_of_a_wrong_type_is_named(changes, said):
    """Verdicts take every goal but `maximize` for `minimize`."""
    with pytest.raises(ConfigError, match=said) as error:
        study_of(Request(space_of(**{"scientific": (RHO,), **changes}), "digits"))
    assert len(error.value.problems) == 1


def test_an_extension_takes_no_proposed_cells_away():
    searched = plan_of(Knob("loss.margin", Range(0.1, 0.5)), search=Search("gp", num_samples=3))
    assert searched.extend(num_samples=2).search.num_samples == 5
    with pytest.raises(ConfigError, match="num_samples: must be at least 1, but got -1"):
        searched.extend(num_samples=-1)


@pytest.mark.parametrize(("seeds", "every"), [(4, (5, 1, 0, 2)), (2, (5, 1)), ((7, 5), (5, 1, 7))])
def test_a_number_of_seeds_is_that_of_the_extended_sweep(seeds, every):
    """The sweep may have begun with a list of seeds that does not start at 0."""
    assert replace(plan_of(RHO), seeds=(5, 1)).extend(seeds=seeds).seeds == every


def test_arrays_of_numpy_are_grids():
    space = space_of(replace(RHO, domain=Grid(np.linspace(0.1, 0.5, 3))))
    assert len(make_plan(study_of(Request(space, "digits"))).cells) == 3


def test_single_values_and_single_seeds_give_unrecorded_cautions(cache_dir):
    space = space_of(ONE, Knob("optim.lr", Grid((1e-3, 1e-2))))
    checked = prepare(Request(space, "digits", seeds=1), cache_dir=cache_dir)
    value, seed = checked.cautions
    assert value == "loss.margin has one value: nothing can be compared along it"
    assert "no verdict is possible" in seed
    assert not {value, seed} & set(checked.notes)
    notes = prepare(Request(space_of(RHO), "digits", seeds=2), cache_dir=cache_dir).notes
    assert not [note for note in notes if "one value" in note or "one seed" in note]


@pytest.mark.parametrize(("samples", "warned"), [(2, []), (20, ["the listed values have 2 combinations"])])
def test_a_search_of_more_cells_than_listed_values_gives_a_caution(cache_dir, samples, warned):
    """The plan of 20 cells of a knob of two values counted the trials of 20 cells, without a word."""
    asked = Request(space_of(RHO), "digits", search="tpe", num_samples=samples)
    cautions = prepare(asked, cache_dir=cache_dir).cautions
    assert [caution.partition(":")[0] for caution in cautions] == warned


def test_a_given_margin_is_part_of_the_plans_identity(tmp_path, cache_dir):
    asked = [Request(space_of(RHO), "digits", margin=margin) for margin in (None, 2.0, 1.0)]
    plain, stated, same = (prepare(request, cache_dir=cache_dir).plan for request in asked)
    assert (plain.margin, stated.margin, same.margin) == (1.0, 2.0, 1.0)
    assert len({plain.identity(), stated.identity(), same.identity()}) == 3
    stated.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == stated
    assert stated.extend(seeds=(7,)).margin == 2.0


def test_a_plan_stored_without_a_margin_keeps_its_identity(tmp_path):
    plan = plan_of(RHO)
    path = tmp_path / "plan.json"
    plan.save(path)
    old = json.loads(path.read_text())
    del old["stated_margin"]
    path.write_text(json.dumps(old))
    assert Plan.load(path).identity() == plan.identity()
    assert Plan.load(path).margin == plan.space.margin


@pytest.fixture
def copy(tmp_path):
    return cub(tmp_path / "cub", classes=6, each=3)


def found(root, cache_dir, strict=False):
    return data_findings({"data.name": "cub200", "data.root": str(root), "data.strict": strict}, cache_dir)


def test_files_of_macos_and_copies_are_counted(copy, tmp_path):
    pictures = sorted((copy / "images").rglob("*.jpg"))
    (pictures[0].parent / "._one.jpg").write_bytes(b"x")
    shutil.copy(pictures[-1], pictures[-2])  # both test
    shutil.copy(pictures[-4], pictures[0])  # of the other half, and so under another label
    text = "\n".join(found(copy, tmp_path / "cache"))
    assert "1 file begins with `._`" in text
    assert "1 of 9 test pictures are copies" in text
    assert "1 picture of the test half also trains" in text
    assert "1 picture with copies under other labels" in text
    assert "18 images; 11788 are published" in text


def test_an_intact_copy_has_no_finding(cache_dir):
    assert data_findings({"data.name": "digits"}, cache_dir) == ()


def test_shifted_labels_are_found(copy, tmp_path):
    file = copy / "image_class_labels.txt"
    rows = [line.split() for line in file.read_text().splitlines()]
    file.write_text("".join(f"{number} {min(int(label) + 1, 6)}\n" for number, label in rows))
    assert any("labels are shifted by +1: 15 of 18" in one for one in found(copy, tmp_path / "cache"))


def test_doubled_halved_and_other_releases_are_found(copy, tmp_path, monkeypatch):
    from trainables.data.cub200 import Cub200

    monkeypatch.setattr(Cub200, "expected", {"images": 18, "test_images": 18, "train_images": 3})
    text = "\n".join(found(copy, tmp_path / "cache"))
    assert "9 test images, half of the published 18" in text
    monkeypatch.setattr(Cub200, "counts", lambda self: {"images": 6033})
    assert any("CUB-200 of 2010" in one for one in found(copy, tmp_path / "cache"))


def test_a_proxy_rate_that_differs_from_the_paper_is_noted():
    plan = make_plan(study_of(Request("mpa_gamma", "glyphs", seeds=1, settings={"optim.loss_lr_multiplier": 100.0})))
    (note,) = [note for note in idle_value_notes(plan) if "proxies learn at" in note]
    assert note.startswith("mpa_gamma: proxies learn at 0.2, but at 0.01 in paper: MPA")
    assert not idle_value_notes(make_plan(study_of(Request("mpa_gamma", "glyphs", seeds=1))))
    tuned = Request("mpa_gamma", "glyphs", seeds=1, tune={"optim.lr": (0.002, 0.02)})
    (note,) = [note for note in idle_value_notes(make_plan(study_of(tuned))) if "proxies learn at" in note]
    assert note.startswith("mpa_gamma: proxies learn at 0.1, but at 0.01 in paper: MPA")
    assert note.endswith("their rate moves with optim.lr=0.02")


@pytest.mark.parametrize("settings", [{}, {"optim.freeze_backbone_epochs": 1.0}, {"optim.freeze_backbone_steps": 25}])
def test_proxies_that_move_a_pretrained_network_at_once_are_noted(settings):
    """The whole network on objects, seed 0: without the epoch the embeddings of MPA with 8 proxies nearly collapse."""
    network = {"model.backbone": "resnet18", "model.weights": "imagenet.pth"}
    plan = make_plan(study_of(Request("mpa_family", "glyphs", seeds=1, settings={**network, **settings})))
    notes = [note for note in idle_value_notes(plan) if "collapse a pretrained network" in note]
    assert len(notes) == (not settings)
    assert all("ProxyAnchor (our)" in note and "MPA-DW" in note for note in notes)
    loss = Request("sec_eta", "glyphs", seeds=1, settings=network)
    assert not [note for note in idle_value_notes(make_plan(study_of(loss))) if "pretrained" in note]


def test_a_loss_of_pairs_without_pairs_is_named():
    asked = Request("npair_scale", "glyphs", seeds=1, settings={"batch.sampler": "random"})
    (note,) = [note for note in idle_value_notes(make_plan(study_of(asked))) if note.startswith("NormalizedNPair")]
    assert "npair compares pictures of one class, but a batch may not hold two of them" in note
    one_class = {"batch.batch_size": 2, "batch.instances_per_class": 2}
    asked = Request("npair_scale", "glyphs", seeds=1, settings=one_class)
    (note,) = [note for note in idle_value_notes(make_plan(study_of(asked))) if note.startswith("NormalizedNPair")]
    assert "npair compares pictures of different classes, but a batch holds one class" in note
    assert '"batch.batch_size": 4' in note


@pytest.mark.parametrize("dataset", ["glyphs", "image_folder"])
def test_no_study_has_two_arms_that_train_alike(dataset):
    root = {"data.root": "/pictures"} if dataset == "image_folder" else {}
    for name, space in spaces().items():
        if dataset == "image_folder" and space.fixed.get("task.name") == "contrastive":
            continue
        assert not equal_trial_problems(make_plan(study_of(Request(name, dataset, seeds=1, settings=root)))), name
