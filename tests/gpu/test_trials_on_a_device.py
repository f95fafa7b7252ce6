"""Whole trials on a CUDA device: numbers of the CPU, with one and several ranks, resumed, and in half precision."""

import math

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from helpers.cuda import CPU, CROPS, DEVICE, EXACT, ON_DEVICE, SMALL, config_of, figures_of

from trainables import distributed
from trainables.context import TrialContext
from trainables.models import extraction
from trainables.training import train

pytestmark = ON_DEVICE
TRIALS = {
    "sec": {},
    "semihard": {"loss.name": "semihard_triplet"},
    "dro": {"loss.name": "dro_kl", "loss.gamma": 0.5},
    "sampled margin": {"loss.name": "margin_dws"},
    "proxy anchor": {"loss.name": "proxy_anchor"},
    "mpa": {"loss.name": "mpa", "optim.lr": 1e-4},
    "memory": {"loss.name": "contrastive", "memory.size": 30},
    "micro batches": {"loss.name": "multi_similarity", "training.micro_batch": 4},
    "bn head": {"loss.name": "multi_similarity", "model.head": "bn_fc"},
    "resnet": {"loss.name": "multi_similarity", "model.backbone": "resnet18"},
}


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_has_the_numbers_of_the_cpu(pictures, cache, tmp_path, name):
    config = config_of(pictures, EXACT, TRIALS[name])
    here = figures_of(config, tmp_path / "here", CPU, cache=cache)
    there = figures_of(config, tmp_path / "there", DEVICE, cache=cache)
    assert there == pytest.approx(here, rel=1e-6)


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_repeats_to_the_bit(pictures, cache, tmp_path, name):
    longer = {"training.precision": "float32", "training.steps": 40, "training.eval_every": 20}
    config = config_of(pictures, EXACT, longer, CROPS if name == "proxy anchor" else {}, TRIALS[name])
    first, second = (figures_of(config, tmp_path / turn, DEVICE, cache=cache) for turn in ("first", "second"))
    assert first == second


@pytest.mark.parametrize(("first", "then"), [(DEVICE, DEVICE), (DEVICE, CPU), (CPU, DEVICE)], ids=str)
def test_a_trial_resumes_from_its_checkpoint_on_cpu_and_gpu(pictures, cache, tmp_path, first, then):
    config = config_of(pictures, EXACT, TRIALS["sampled margin"])
    whole = figures_of(config, tmp_path / "whole", CPU, cache=cache)
    assert figures_of(config, tmp_path / "cut", first, cache=cache, until=3) == {}
    assert figures_of(config, tmp_path / "cut", then, cache=cache) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "float32"])
@pytest.mark.parametrize("layout", [{}, {"training.channels_last": True}], ids=["", "channels last"])
def test_training_learns(pictures, cache, tmp_path, precision, layout):
    """The loss of the last steps is below that of the first, and crops of coloured pictures are among them."""
    if precision == "fp16" and DEVICE.type != "cuda":
        pytest.skip("fp16 needs a CUDA device")
    rows = []
    more = {
        "training.precision": precision,
        "training.steps": 120,
        "training.eval_every": 20,
        "loss.name": "proxy_anchor",
    }
    config = config_of(pictures, SMALL, CROPS, more, layout)
    train(config, TrialContext(tmp_path / "own", DEVICE, sink=rows.append), cache_dir=cache)
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.8 * losses[0]


def test_a_compiled_network_has_the_numbers_of_the_plain_one(pictures, cache, tmp_path):
    if DEVICE.type != "cuda":
        pytest.skip("the CPU's compiled networks are tested elsewhere")
    plain, compiled = (
        figures_of(config_of(pictures, EXACT, {"training.compile": on}), tmp_path / str(on), DEVICE, cache=cache)
        for on in (False, True)
    )
    assert compiled == pytest.approx(plain, rel=1e-6)


def test_features_equal_those_of_the_cpu(pictures, cache, tmp_path, monkeypatch):
    config = config_of(pictures, {"data.name": "image_folder", "data.size": 32, "model.backbone": "small_conv"})
    monkeypatch.setattr(extraction, "_CHUNK", 32)  # so that chunks are computed while others are written

    def features(name):
        extraction._extractor.cache_clear()
        extraction.write_features(extraction.FeaturePass(config, tmp_path / name, cache_dir=cache), workers=1)
        return np.load(tmp_path / name / "features.npy").astype(float)

    ours = features("device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = features("cpu")
    assert np.abs(ours - expected).max() < 2e-3 * np.abs(expected).max()


def _train(rank, world_size, folder, pictures, backend):
    device = torch.device(DEVICE.type, rank % torch.cuda.device_count()) if DEVICE.type == "cuda" else DEVICE
    meeting = f"file://{folder}/meet"
    distributed.is_distributed = (
        torch.distributed.is_initialized
    )  # a group of one exchanges too: all that one device can show
    with distributed.process_group(rank=rank, world_size=world_size, init_method=meeting, backend=backend):
        ranks = {"rank": rank, "world_size": world_size}
        figures = figures_of(config_of(pictures, EXACT), folder / "own", device, cache=folder.parent / "cache", **ranks)
        if rank == 0:
            torch.save(figures, folder / "figures.pt")


@pytest.mark.parametrize(("ranks", "backend"), [(2, "gloo"), (2, "nccl"), (1, "nccl")])
def test_ranks_on_the_device_equal_one_process_on_the_cpu(pictures, tmp_path, ranks, backend):
    if backend == "nccl" and (DEVICE.type != "cuda" or torch.cuda.device_count() < ranks):
        pytest.skip("nccl needs a CUDA device for each rank")
    folder = tmp_path / "ranks"
    folder.mkdir()
    alone = figures_of(config_of(pictures, EXACT), tmp_path / "alone", CPU, cache=tmp_path / "cache")
    mp.spawn(_train, (ranks, folder, pictures, backend), nprocs=ranks)
    assert torch.load(folder / "figures.pt", weights_only=True) == pytest.approx(alone, rel=1e-6)
