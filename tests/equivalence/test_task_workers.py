"""Contract 2 for the tasks beside retrieval: W workers give the losses, metrics and weights of one, in double precision.

One start of the ranks runs every case. Batches do not divide by the number of workers, so that ranks hold different
numbers of pictures, and the projection head's batch statistics span all of them.
"""

from __future__ import annotations

import pytest
import torch
from processes import run_ranks

from trainables import distributed
from trainables.config import Layer, TrialConfig
from trainables.context import FolderContext
from trainables.training import train

COMMON = {
    "data.name": "digits",
    "model.embedding_dim": 8,
    "batch.sampler": "random",
    "batch.batch_size": 9,
    "training.steps": 6,
    "training.eval_every": 3,
    "training.precision": "float64",
    "regularizer.name": "sec",
    "regularizer.eta": 0.5,
    "regularizer.rho": 0.4,
}
VIEWS = {
    "task.name": "contrastive",
    "task.linear_epochs": 2,
    "data.split": "shared_classes",
    "augment.name": "simclr",
    "augment.crop": 16,
    "augment.resize": 16,
    "model.head": "mlp",
    "regularizer.schedule": "linear",
}
CASES = {
    "faces": {
        "task.name": "face_recognition",
        "task.pairs": 100,
        "task.distractors": [20],
        "data.validation_fraction": 0.4,
        "loss.name": "cosface",
        "regularizer.schedule": "capped_linear",
    },
    "views": {**VIEWS, "loss.name": "nt_xent"},
    "views, a loss that heeds their order": {**VIEWS, "loss.name": "npair"},
}


def work(rank, world_size, folder):
    with distributed.process_group(rank=rank, world_size=world_size, init_method=f"file://{folder}/meet"):
        for number, settings in enumerate(CASES.values()):
            config, _ = TrialConfig.from_settings(Layer("common", COMMON), Layer("case", settings))
            own = folder / str(number)
            rows = []
            context = FolderContext(
                own, torch.device("cpu"), rank=rank, world_size=world_size, sink=rows.append
            )
            outcome = train(config, context)
            if rank == 0:
                torch.save({"rows": rows, "metrics": outcome.metrics}, own / "seen.pt")


def seen(folder):
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["task"]
    return {**torch.load(folder / "seen.pt", weights_only=True), "state": state}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for world_size in (1, 2):
        found[world_size] = tmp_path_factory.mktemp(f"ranks{world_size}")
        run_ranks(work, world_size, world_size, found[world_size])
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=CASES)
def test_identity_61_two_workers_equal_one_in_every_task(folders, number):
    one, two = (seen(folders[world_size] / str(number)) for world_size in (1, 2))
    assert len(one["rows"]) == len(two["rows"]) == 2
    for alone, shared in zip(one["rows"], two["rows"], strict=True):
        for name, value in alone.items():
            if not name.startswith("time/"):
                assert shared[name] == pytest.approx(value, rel=1e-10, abs=1e-10), name
    for name, value in one["metrics"].items():
        assert two["metrics"][name] == pytest.approx(value, rel=1e-10, abs=1e-10), name
    for name, tensor in one["state"].items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            # Adam divides by the root of tiny second moments: it enlarges rounding in the weights, not in the losses
            torch.testing.assert_close(two["state"][name], tensor, rtol=1e-9, atol=1e-8)
