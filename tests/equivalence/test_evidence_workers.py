"""Contract 2 for what a trial shows: two workers turn, measure and retrieve as one does, and leave one set of files."""

import json

import pytest
import torch
from processes import run_ranks

from trainables import distributed
from trainables.context import FolderContext
from trainables.resolve import Layer, resolve
from trainables.training import train

COMMON = {
    "data.name": "digits",
    "data.validation_fraction": 0.4,
    "model.embedding_dim": 8,
    "batch.sampler": "random",
    "batch.batch_size": 9,
    "training.steps": 27,
    "training.eval_every": 27,
    "training.precision": "float64",
}
CASES = {
    "retrieval": {"regularizer.name": "sec", "regularizer.eta": 0.5},
    "faces": {"task.name": "face_recognition", "task.pairs": 100, "loss.name": "cosface"},
}


def trials(rank, world_size, folder):
    for name, settings in CASES.items():
        config = resolve(Layer("common", COMMON), Layer("case", settings)).config
        rows = []
        context = FolderContext(folder / name, torch.device("cpu"), rank=rank, world_size=world_size, sink=rows.append)
        train(config, context)
        if rank == 0:
            (folder / name / "rows.json").write_text(json.dumps(rows))


def work(rank, folder):
    with distributed.process_group(rank=rank, world_size=2, init_method=f"file://{folder}/meet"):
        trials(rank, 2, folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {count: tmp_path_factory.mktemp(f"ranks{count}") for count in (1, 2)}
    trials(0, 1, found[1])
    run_ranks(work, 2, found[2])
    return found


@pytest.mark.parametrize("name", CASES)
def test_identity_61_two_workers_show_what_one_shows(folders, name):
    rows = [json.loads((folders[w] / name / "rows.json").read_text()) for w in (1, 2)]
    looks = [[row for row in found if "train/direction_variance" in row] for found in rows]
    assert [row["step"] for row in looks[0]] == [25]
    for figure in ("train/direction_mean", "train/direction_variance"):
        assert looks[1][0][figure] == pytest.approx(looks[0][0][figure], rel=1e-8)
    one, two = (json.loads((folders[w] / name / "evidence/evidence.json").read_text()) for w in (1, 2))
    assert two["norms"]["counts"] == one["norms"]["counts"]
    for figure in ("low", "high", "mean", "variance"):
        assert two["norms"][figure] == pytest.approx(one["norms"][figure], rel=1e-8)

    def shown(found):
        return [[tile and (tile["picture"], tile["right"]) for tile in row] for row in found["sheet"]["rows"]]

    assert shown(two) == shown(one)
    assert len({(folders[w] / name / "evidence/sheet.jpg").read_bytes() for w in (1, 2)}) == 1
