"""The mean norm before training: on the embedded digits against theory, on Cars196 against the printed 8.70.

The second needs pictures and weights on this machine, and takes minutes on a CPU:

    TUNE_DML_CARS196=FOLDER python -m pytest -m slow tests/integration/test_printed_start.py
"""

import os

import numpy as np
import pytest
import torch

from trainables.context import FolderContext
from trainables.models.views import Views
from trainables.models.weights import source_of
from trainables.resolve import Layer, resolve
from trainables.tasks import task_of
from trainables.tasks.learner import open_pictures
from tune_dml.catalogue import protocols
from tune_dml.planning.arms.protocol_choice import protocol_layer

CARS196 = os.environ.get("TUNE_DML_CARS196")
PRINTED = 8.70  # SEC, supplement, section C.1 and Table 4
WEIGHTS = source_of("bn_inception-52deb4733.pth").path


@torch.no_grad()
def start_norms(config, folder, *, cache_dir=None, most=960):
    """Mean norm of embeddings of training pictures before training, by whether batch normalisation is active."""
    task = task_of(config)
    pictures = open_pictures(task.dataset(cache_dir), FolderContext(folder, torch.device("cpu")))
    chosen = np.random.default_rng(0).permutation(task.split(pictures).train)[:most]
    views = Views(pictures.images, task.augmentation(), seed=0)
    size = config.batch.batch_size
    norms = {}
    for training in (True, False):
        torch.manual_seed(0)
        network = task.build_network(pictures).train(training)
        parts = [network(views.evaluation(chosen[first : first + size])) for first in range(0, len(chosen), size)]
        norms[training] = torch.cat(parts).norm(dim=1).mean().item()
    return norms


def test_a_network_starts_at_the_norm_that_its_head_implies(tmp_path, cache_dir):
    head = {"data.name": "digits", "model.head": "bn_fc", "model.embedding_dim": 16, "batch.batch_size": 90}
    norms = {}
    for init in ("he_fan_out", "torch"):
        config = resolve(Layer("test", {**head, "model.head_init": init})).config
        norms[init] = start_norms(config, tmp_path, cache_dir=cache_dir)[True]
    features = 64  # of small_conv
    assert norms["he_fan_out"] == pytest.approx((2 * features) ** 0.5, rel=0.15)
    assert norms["torch"] == pytest.approx((16 / 3 + 16 / (3 * features)) ** 0.5, rel=0.15)


@pytest.mark.slow
@pytest.mark.skipif(not (CARS196 and WEIGHTS.exists()), reason="needs TUNE_DML_CARS196 and BN-Inception's weights")
def test_sec_starts_at_the_norm_that_its_paper_prints(tmp_path):
    own = {"data.name": "cars196", "data.root": CARS196, "data.split": "paper_test_selection"}
    config = resolve(protocol_layer(protocols()["sec/cars196"]), Layer("test", own)).config
    norms = start_norms(config, tmp_path)
    # Which of the two modes the paper's figure is of is not stated.
    assert any(norm == pytest.approx(PRINTED, rel=0.05) for norm in norms.values()), norms
