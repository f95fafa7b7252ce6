"""Every study on a folder of pictures: 40 classes of 6 drawn pictures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.together import for_each
from PIL import Image

from trainables.context import TrialContext
from trainables.resolve import Layer, resolve
from trainables.training import train
from tune_dml.catalogue import spaces
from tune_dml.planning.checks.effects import effective_settings, idle_value_notes
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of

QUICK = {"mpa_tau"}
"""The study that the default run trains too; `make test-spaces` trains all."""
IDENTICAL = {"mpa_proxies": ("ProxyAnchor", "MPA: K=1")}
"""Declared as identity 42 of the study."""
ALL_SIZES = ("batch.batch_size", "batch.instances_per_class", "data.pictures_per_class")
OF_THE_METHOD = ("loss.", "regularizer.", "memory.", "batch.sampler", "batch.instances_per_class")
"""What a study says on every data set; size of the batch, network, steps and rate belong to the data set."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of pictures: each class has a pattern, each picture a noisy copy of it."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("drawn")
    for number in range(40):
        pattern = np.kron(random.uniform(0, 255, (4, 4, 3)), np.ones((6, 6, 1)))
        (folder / f"class{number:02}").mkdir()
        for picture in range(6):
            pixels = np.clip(pattern + random.normal(0, 40, pattern.shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{number:02}" / f"{picture}.png")
    return folder


def asked(name, root, **settings):
    return Request(name, "image_folder", seeds=1, settings={"data.root": str(root), "data.size": 24, **settings})


def planned(name, root, cache_dir):
    return prepare(asked(name, root), cache_dir=cache_dir).plan


@for_each("name", spaces())
def test_a_study_can_be_run_on_a_folder(name, root, cache_dir):
    plan = planned(name, root, cache_dir)
    assert {cell.arm for cell in plan.cells} == {arm.name for arm in spaces()[name].every_arm}
    arms = {}
    for cell in plan.cells:
        arms.setdefault(repr(sorted(effective_settings(cell.settings).items())), set()).add(cell.arm)
    assert all(len(names) == 1 for names in arms.values())


@for_each("name", spaces())
def test_a_study_reports_settings_that_differ_from_those_on_glyphs(name, root):
    study = study_of(asked(name, root))
    here, glyphs = make_plan(study), make_plan(study_of(Request(name, seeds=1)))
    assert [cell.arm for cell in here.cells] == [cell.arm for cell in glyphs.cells]
    named = {path for path in ALL_SIZES if any(note.startswith(f"{path} is ") for note in study.notes)}
    scaled = any("K counts pairs" in note for note in study.notes)
    named |= {"loss.k"} if scaled or named & {"batch.batch_size", "batch.instances_per_class"} else set()
    searched = {knob.path for knob in study.space.knobs}
    for cell, other in zip(here.cells, glyphs.cells, strict=True):
        compared = {path for path in other.settings if path.startswith(OF_THE_METHOD)} | searched
        assert {path for path in compared if cell.settings.get(path) != other.settings.get(path)} <= named, cell.label


def test_k_follows_the_pairs_of_a_small_folders_batches(root):
    study = study_of(asked("dro_k", root))
    assert study.part.classes == 15
    assert "for the 120 in these batches" in study.notes[-1]
    plan = make_plan(study)
    assert {cell.settings["batch.batch_size"] for cell in plan.cells} == {60}
    npair = make_plan(study_of(asked("npair_scale", root))).arm("NormalizedNPair")
    assert npair.base_settings["batch.batch_size"] == 30
    assert npair.origins["batch.batch_size"] == "protocol image_folder/small: 60 cut to the 15 training classes of 2"


def test_batches_fit_the_requested_split(root, cache_dir):
    halves = make_plan(study_of(asked("sec_tml", root, **{"data.folds": 2})))
    assert halves.base_settings["batch.batch_size"] == 40  # of 10 classes, not of 15
    whole = make_plan(study_of(asked("npair_scale", root, **{"data.split": "paper_test_selection"})))
    assert whole.arm("NormalizedNPair").base_settings["batch.batch_size"] == 40  # of 20 classes
    few = {"data.pictures_per_class": 2}
    plan = prepare(asked("mpa_proxies", root, **few), cache_dir=cache_dir).plan
    assert plan.base_settings["batch.batch_size"] == 30
    assert "60 cut to the 30 training pictures that every seed has" in plan.origins["batch.batch_size"]


@pytest.mark.parametrize(("name", "batch"), [("sec_face", 12), ("sec_simclr", 24)])
def test_batches_of_every_task_fit_a_folder_of_few_classes(name, batch, root, cache_dir, tmp_path):
    for number in range(8):
        (tmp_path / f"class{number}").symlink_to(root / f"class{number:02}")
    held_out = {"task.pairs": 20, "task.distractors": [4]} if name == "sec_face" else {}
    plan = prepare(replace(asked(name, tmp_path, **held_out), seeds=3), cache_dir=cache_dir).plan
    assert plan.base_settings["batch.batch_size"] == batch
    assert "64 cut to the" in plan.origins["batch.batch_size"]


def test_verification_on_a_small_folder_lasts_more_than_an_epoch_or_two(root, cache_dir):
    checked = prepare(asked("sec_face", root), cache_dir=cache_dir)
    settings = checked.plan.base_settings
    assert (settings["training.epochs"], settings["training.steps"], settings["training.eval_every"]) == (None, 300, 75)
    (note,) = [
        note for note in checked.notes if "optim.lr and training.steps have general values for small networks" in note
    ]
    assert note.endswith("nothing was measured on these pictures. Compare a few values with `settings`")


def test_a_plan_counts_the_classes_whose_pictures_a_batch_repeats(root, cache_dir):
    notes = prepare(asked("sec_losses", root, **{"data.pictures_per_class": 3}), cache_dir=cache_dir).notes
    (note,) = [note for note in notes if note.startswith("Batches repeat pictures")]
    assert note.endswith("15 of 15 at batch.instances_per_class=5, 15 of 15 at batch.instances_per_class=4.")
    assert not any("repeat" in note for note in prepare(asked("sec_losses", root), cache_dir=cache_dir).notes)


def test_sizes_of_a_study_shrink_to_the_folder_with_a_note(root):
    study = study_of(asked("dro_imbalance", root))
    assert "batch.batch_size is 10, 20, 40, 55, 75 in place of 80, 160, 320, 480, 640: there are 15" in study.notes[0]
    cells = make_plan(study).cells
    doubled = [cell for cell in cells if cell.arm == "DRO-TopK_M"]
    assert [cell.settings["loss.k"] for cell in doubled] == [20, 40, 80, 110, 150]
    instances = study_of(asked("dro_imbalance_instances", root))
    assert (
        "batch.instances_per_class is 2, 3, 5, 6, 10 in place of 2, 4, 5, 8, 10, in batches of 30" in instances.notes[0]
    )
    kept = study_of(asked("pictures_per_class", root))
    assert "data.pictures_per_class is 2, 3, 6 in place of 5, 10, 20" in kept.notes[0]
    own = study_of(asked("dro_imbalance_instances", root, **{"batch.batch_size": 80}))
    assert not any("in place of" in note for note in own.notes)  # what the user sets stays


def test_a_study_notes_that_nothing_was_measured_on_the_pictures(root):
    note = "optim.lr and training.steps have general values for small networks"
    assert any(note in said for said in study_of(asked("sec_eta", root)).notes)
    measured = {"optim.lr": 1e-3, "training.steps": 50}
    assert not any("general value" in said for said in study_of(asked("sec_eta", root, **measured)).notes)
    searched = study_of(replace(asked("sec_eta", root), tune={"optim.lr": (1e-3, 1e-2)})).notes
    assert any(said.startswith("training.steps has a general value for small networks") for said in searched)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.spaces) for name in spaces()]
)
def test_every_cell_trains_on_a_folder_and_no_two_are_equal(name, root, cache_dir, tmp_path):
    """Cells that train to equal losses are those that the plan reports as equal."""
    plan = planned(name, root, cache_dir)
    named = " ".join(idle_value_notes(plan))
    trained = {}
    for number, cell in enumerate(plan.cells):
        rows = []
        layers = Layer("cell", cell.settings), Layer("short", shortened(name, cell.settings))
        context = TrialContext(
            tmp_path / str(number), torch.device("cpu"), sink=lambda row, to=rows: to.append(dict(row))
        )
        train(resolve(*layers).config, context, cache_dir=cache_dir)
        figures = tuple(row["train/loss"] for row in rows if "train/loss" in row)
        assert figures, cell.label
        trained.setdefault(figures, []).append(cell.label)
    # a loss of 0 throughout has nothing to compare, which the report states
    named += " ".join(IDENTICAL.get(name, ()))
    equal = [labels for figures, labels in trained.items() if len(labels) > 1 and any(figures)]
    assert [labels for labels in equal if not all(label in named for label in labels)] == []


def shortened(name, settings):
    """A few steps."""
    task = spaces()[name].fixed.get("task.name", "retrieval")
    if task == "face_recognition":
        return {"training.epochs": 6.0, "training.steps": None, "training.eval_every": 3}
    short = {"training.epochs": None, "training.steps": 6, "training.eval_every": 3}
    if name == "memory_size":  # until the memories of 640 and 1,600 pictures differ
        short |= {"training.steps": 20, **({"memory.start": 1} if settings["memory.size"] else {})}
    return {**short, **({"task.linear_epochs": 1} if task == "contrastive" else {"evaluation.clustering": False})}
