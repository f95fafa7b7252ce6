"""Contract 2, through the whole training loop: W workers give the losses, metrics and weights of one."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

from trainables import distributed
from trainables.config import Layer, TrialConfig
from trainables.context import FolderContext
from trainables.training import train

SETTINGS = {
    "data.name": "digits",
    "data.validation_fraction": 0.4,
    "model.embedding_dim": 8,
    "batch.batch_size": 9,  # does not divide by 2: ranks hold 5 and 4 pictures
    "training.steps": 12,
    "training.eval_every": 6,
    "training.precision": "float64",
}
VARIANTS = {
    "sec-ema": {"regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": 0.1},
    "bn head and proxies": {"model.head": "bn_fc", "loss.name": "proxy_anchor", "optim.name": "sgd"},
    "crops, micro-batches, a backbone that thaws, the initial mean norm": {
        "augment.name": "crop_flip",
        "augment.crop": 16,
        "augment.resize": 16,
        "training.micro_batch": 2,
        "optim.freeze_backbone_steps": 5,
        "optim.clip_norm": 1.0,
        "optim.lr_schedule": "cosine",
        "optim.backbone_lr_multiplier": 0.5,
        "model.head": "bn_fc",
        "regularizer.name": "sec_fixed",
        "regularizer.eta": 0.5,
    },
}


def work(rank, world_size, folder, settings):
    config, _ = TrialConfig.from_settings(Layer("test", {**SETTINGS, **settings}))
    rows = []
    context = FolderContext(folder, torch.device("cpu"), rank=rank, world_size=world_size, sink=rows.append)
    with distributed.process_group(rank=rank, world_size=world_size, init_method=f"file://{folder}/meet"):
        outcome = train(config, context)
    if rank == 0:
        torch.save({"rows": rows, "metrics": outcome.metrics}, folder / "seen.pt")


@pytest.mark.parametrize("variant", VARIANTS)
def test_identity_61_two_workers_equal_one_through_training(tmp_path, variant):
    seen = {}
    for world_size in (1, 2):
        folder = tmp_path / str(world_size)
        folder.mkdir()
        mp.spawn(work, (world_size, folder, VARIANTS[variant]), nprocs=world_size)
        seen[world_size] = torch.load(folder / "seen.pt", weights_only=True)
        seen[world_size]["state"] = torch.load(folder / "checkpoint.pt", weights_only=True)["task"]
    for one, two in zip(seen[1]["rows"], seen[2]["rows"], strict=True):
        for name in one:
            if not name.startswith("time/"):
                assert two[name] == pytest.approx(one[name], rel=1e-10, abs=1e-10), name
    for name, tensor in seen[1]["state"].items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            torch.testing.assert_close(seen[2]["state"][name], tensor, rtol=1e-9, atol=1e-10)
    assert seen[1]["metrics"].keys() == seen[2]["metrics"].keys()
