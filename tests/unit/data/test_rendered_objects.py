"""Pictures rendered by pybullet: the same pixels in every process and on every CPU. `make test-objects` runs this."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.processes import printed_by

from trainables.context import TrialContext
from trainables.data import build_dataset
from trainables.data.formats.rendering import RendererProcess, Renderers
from trainables.data.objects import _mesh_folder, _pixels_digest
from trainables.resolve import Layer, resolve
from trainables.training import train
from tune_dml.catalogue import protocols
from tune_dml.planning.arms.settings import protocol_layer

pytestmark = [
    pytest.mark.objects,
    pytest.mark.skipif(importlib.util.find_spec("pybullet") is None, reason="needs pybullet: make test-objects"),
]
RECORDED = {
    64: "84f5438592fe131da062d327751785a31a57730fdeef837e0ba8f8dc5cd3bdd2",
    96: "38bc7cd11da31da3d1936b9db7fec8a0091ca967adf27ea891b8cdabfaa2db39",
}
SIX_MESHES = """
import sys; from trainables.data import build_dataset; from trainables.data.objects import _pixels_digest
print(_pixels_digest(build_dataset("objects", cache_dir=sys.argv[1], size=64, classes=6).prepare().images))
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return build_dataset("objects", cache_dir=tmp_path_factory.mktemp("cache"), classes=6).prepare()


@pytest.mark.parametrize("size", RECORDED)
def test_pixels_equal_the_recorded_ones(size, tmp_path):
    assert (
        _pixels_digest(build_dataset("objects", cache_dir=tmp_path, size=size, classes=6).prepare().images)
        == RECORDED[size]
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"OMP_NUM_THREADS": "4"},
        {
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-FMA,-SSE4_2",
            "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
        },
    ],
)
def test_threads_and_instruction_sets_do_not_change_a_pixel(environment, tmp_path):
    everything = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert printed_by(SIX_MESHES, tmp_path, env=everything).split() == [RECORDED[64]]


def test_a_picture_does_not_depend_on_the_pictures_before_it():
    """Pybullet draws every second picture of a loaded mesh differently: eight pixels of this view differ by one."""
    with Renderers(lambda: RendererProcess(_mesh_folder(), 64)) as renderers:
        pictures = [renderers.picture(846, view).tobytes() for view in (9, 0, 9, 9)]
    assert pictures[0] == pictures[2] == pictures[3]


def test_the_whole_data_set_has_the_recorded_pixels(tmp_path):
    """Takes a minute on two cores. Threads draw the views in a different order each time."""
    assert build_dataset("objects", cache_dir=tmp_path).prepare().notes == ()


@pytest.mark.parametrize("name", [name for name, one in protocols().items() if one.dataset == "objects"])
def test_protocols_of_rendered_objects_train(name, tmp_path):
    few = {"data.name": "objects", "data.classes": 8, "data.views": 6, "batch.batch_size": 6, "training.steps": 1}
    layers = protocol_layer(protocols()[name]), Layer("few", {**few, "training.eval_every": 1})
    outcome = train(resolve(*layers).config, TrialContext(tmp_path, torch.device("cpu")), cache_dir=tmp_path / "cache")
    assert 0 <= outcome.metrics["val/recall_at_1"] <= 100


def test_every_object_is_seen_whole_and_lit(pictures):
    for images in np.split(pictures.images, 6):
        corner = images[:, :1, :1].astype(int)
        covered = (np.abs(images.astype(int) - corner).max(axis=-1) > 3).mean(axis=(1, 2))
        assert covered.min() > 0.02
        assert 0.08 < np.median(covered) < 0.5
        border = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], axis=1)
        assert (np.abs(border.astype(int) - corner[:, 0]).max(axis=-1) <= 3).mean() > 0.98
        middle = images[:, 28:36, 28:36].astype(int)
        assert middle.mean() > 60


def test_views_of_one_object_differ(pictures):
    greys = pictures.images.mean(axis=-1).reshape(len(pictures), -1)
    distances = np.abs(greys[:24, None] - greys[None, :24]).mean(axis=-1)
    assert distances[~np.eye(24, dtype=bool)].min() > 2


def test_pybullet_prints_nothing_to_standard_output(tmp_path):
    words = ["datasets", "prepare", "objects", "--set", "data.classes=4", "--set", "data.views=2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tune_dml.cli", *words, "--cache-dir", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["images"] == 8
