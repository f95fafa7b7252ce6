"""Every study on a folder of one's own: 40 classes of 6 pictures, drawn here."""

import numpy as np
import pytest
import torch
from PIL import Image

from trainables.context import FolderContext
from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve
from trainables.training import train
from tune_dml.catalogue import spaces
from tune_dml.planning.checks import prepare
from tune_dml.planning.effects import effective_settings
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of

LARGE_BATCHES = {"dro_imbalance", "dro_imbalance_512", "dro_imbalance_updates", "dro_runtime"}
"""They compare batches of up to 640 pictures, of 128 classes."""
FEW_PER_CLASS = {"pictures_per_class", "dro_imbalance_instances"}
"""They take more pictures, or classes, than a small folder has."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Each class is a pattern of its own, each picture of it a noisy one."""
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


@pytest.mark.parametrize("name", sorted(spaces().keys() - LARGE_BATCHES - FEW_PER_CLASS))
def test_a_study_can_be_run_on_a_folder(name, root, cache_dir):
    checked = prepare(asked(name, root), cache_dir=cache_dir)
    assert {cell.arm for cell in checked.plan.cells} == {arm.name for arm in spaces()[name].every_arm}
    arms = {}
    for cell in checked.plan.cells:
        arms.setdefault(repr(sorted(effective_settings(cell.settings).items())), set()).add(cell.arm)
    assert all(len(names) == 1 for names in arms.values())


@pytest.mark.parametrize("name", sorted(LARGE_BATCHES))
def test_a_study_of_larger_batches_than_the_folder_has_classes_says_so(name, root, cache_dir):
    with pytest.raises(ConfigError, match="need as many training classes, and there are 15"):
        prepare(asked(name, root), cache_dir=cache_dir)


def test_k_follows_the_pairs_of_a_small_folders_batches(root):
    study = study_of(asked("dro_k", root))
    assert study.classes == 15
    assert "of the 120 here" in study.notes[-1]
    plan = make_plan(study)
    assert {cell.settings["batch.batch_size"] for cell in plan.cells} == {60}
    npair = make_plan(study_of(asked("npair_scale", root))).arm("NormalizedNPair")
    assert npair.base_settings["batch.batch_size"] == 30
    assert npair.origins["batch.batch_size"] == "protocol image_folder/small: 60 cut to the 15 training classes of 2"


@pytest.mark.spaces
@pytest.mark.parametrize("name", sorted(spaces().keys() - LARGE_BATCHES - FEW_PER_CLASS))
def test_every_cell_trains_on_a_folder_and_no_two_arms_are_equal(name, root, cache_dir, tmp_path):
    task = spaces()[name].fixed.get("task.name", "retrieval")
    epochs = {"training.epochs": 6.0} if task == "face_recognition" else {"training.steps": 6}
    short = {**epochs, "task.linear_epochs": 1} if task == "contrastive" else epochs
    plan = prepare(asked(name, root), cache_dir=cache_dir).plan
    figures = {}
    for number, cell in enumerate({cell.arm: cell for cell in plan.cells}.values()):
        layers = Layer("cell", cell.settings), Layer("short", short | {"training.eval_every": 3})
        rows = []
        context = FolderContext(
            tmp_path / str(number), torch.device("cpu"), sink=lambda row, to=rows: to.append(dict(row))
        )
        train(resolve(*layers).config, context, cache_dir=cache_dir)
        figures[cell.arm] = tuple(row["train/loss"] for row in rows if "train/loss" in row)
    assert all(figures.values())
    weighted = [arm for arm in figures if "SEC" in arm or "L2" in arm]
    for arm in weighted:
        plain = arm.partition("+")[0]
        assert plain not in figures or plain == arm or figures[arm] != figures[plain], (arm, plain)
