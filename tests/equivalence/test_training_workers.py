"""Contract 2, through the whole training loop: W workers give the losses, metrics, weights and pictures of one, in float64.

One start of the ranks runs every case. Batches do not divide by the number of workers, so that ranks hold different
numbers of pictures, and the projection head's batch statistics span all of them.
"""

import json

import pytest
import torch
from helpers.trials import config_of
from processes import run_ranks

from trainables import distributed
from trainables.context import TrialContext, read_sealed
from trainables.training import train

pytestmark = pytest.mark.slow

COMMON = {
    "data.name": "digits",
    "model.embedding_dim": 8,
    "batch.batch_size": 9,  # does not divide by 2: ranks hold 5 and 4 pictures
    "training.steps": 6,
    "training.eval_every": 3,
    "training.precision": "float64",
}
SEC = {"regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": 0.4}
RANDOM = {"batch.sampler": "random", **SEC}
HALF = {"data.validation_fraction": 0.4}
LONG = {**HALF, "training.steps": 12, "training.eval_every": 6}
LOOK = {**HALF, "training.steps": 27, "training.eval_every": 27}
CROPS = {"augment.crop": 16, "augment.resize": 16}
FACES = {**RANDOM, **HALF, "task.name": "face_recognition", "task.pairs": 100, "loss.name": "cosface"}
VIEWS = {
    **{**RANDOM, **CROPS, "task.name": "contrastive", "task.linear_epochs": 2, "data.split": "shared_classes"},
    **{"augment.name": "simclr", "model.head": "mlp", "regularizer.schedule": "linear"},
}
CASES = {
    "sec-ema": {**LONG, **SEC, "regularizer.rho": 0.1},
    "bn head and proxies": {
        **{**LONG, "model.head": "bn_fc", "model.head_init": "torch"},
        **{"loss.name": "proxy_anchor", "optim.name": "sgd"},
    },
    "crops, micro-batches, a backbone that thaws, the initial mean norm": {
        **{**LONG, **CROPS, "augment.name": "crop_flip", "training.micro_batch": 2, "model.head": "bn_fc"},
        **{"optim.freeze_backbone_steps": 5, "optim.clip_norm": 1.0, "optim.lr_schedule": "cosine"},
        **{"optim.backbone_lr_multiplier": 0.5, "regularizer.name": "sec_fixed", "regularizer.eta": 0.5},
    },
    "faces": {**FACES, "task.distractors": [20], "regularizer.schedule": "capped_linear"},
    "views": {**VIEWS, "loss.name": "nt_xent"},
    "views, a loss that heeds their order": {**VIEWS, "loss.name": "npair"},
    "a look at directions": {**RANDOM, **LOOK},
    "a look at directions of faces": {**FACES, **LOOK},
}


def train_all(rank, world_size, folder):
    with distributed.process_group(rank=rank, world_size=world_size, init_method=f"file://{folder}/meet"):
        for number, settings in enumerate(CASES.values()):
            own, rows = folder / str(number), []
            context = TrialContext(own, torch.device("cpu"), rank=rank, world_size=world_size, sink=rows.append)
            outcome = train(config_of(COMMON | settings), context)
            if rank == 0:
                torch.save({"rows": rows, "metrics": outcome.metrics | read_sealed(own)}, own / "seen.pt")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Case -> the files of rank 0, with one process and with two."""
    roots = [tmp_path_factory.mktemp(f"workers{world_size}") for world_size in (1, 2)]
    for world_size, root in enumerate(roots, start=1):
        run_ranks(train_all, world_size, world_size, root)
    return {case: [root / str(number) for root in roots] for number, case in enumerate(CASES)}


def load(folder):
    state = TrialContext(folder, torch.device("cpu")).latest_checkpoint()["task"]
    return {**torch.load(folder / "seen.pt", weights_only=True), "state": state}


@pytest.mark.parametrize("case", CASES)
def test_identity_61_two_workers_equal_one_through_training(folders, case):
    one, two = map(load, folders[case])
    rel = 1e-8 if CASES[case].items() >= LOOK.items() else 1e-10
    for alone, shared in zip(one["rows"], two["rows"], strict=True):
        for name, value in alone.items():
            if not name.startswith("time/"):
                assert shared[name] == pytest.approx(value, rel=rel, abs=1e-10), name
    assert two["metrics"] == pytest.approx(one["metrics"], rel=rel, abs=1e-10)
    # Adam divides by the root of tiny second moments: it enlarges rounding in the weights, not in the losses
    weights_atol = 1e-10 if CASES[case].items() >= LONG.items() else 1e-8
    for name, tensor in one["state"].items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            torch.testing.assert_close(two["state"][name], tensor, rtol=1e-9, atol=weights_atol)


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("a look")])
def test_identity_61_two_workers_write_the_evidence_of_one(folders, case):
    for folder in folders[case]:
        assert [row["step"] for row in load(folder)["rows"] if "train/direction_variance" in row] == [25]
    one, two = (json.loads((folder / "evidence/evidence.json").read_text()) for folder in folders[case])
    assert two["norms"].pop("counts") == one["norms"].pop("counts")
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-8)

    def shown(body):
        return [[tile and (tile["picture"], tile["right"]) for tile in row] for row in body["sheet"]["rows"]]

    assert shown(two) == shown(one)
    assert len({(folder / "evidence/sheet.jpg").read_bytes() for folder in folders[case]}) == 1
