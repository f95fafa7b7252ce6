"""Contract 2 through the whole training loop: the same trials on one rank and on two, and how alike they must be."""

from __future__ import annotations

import pytest
import torch
from processes import run_ranks

from trainables import distributed
from trainables.context import FolderContext, read_sealed
from trainables.resolve import Layer, resolve
from trainables.training import train


def train_on_one_and_two(tmp_path_factory, common, cases):
    """Train every case with one worker and with two: {number of workers: {case: what rank 0 saw}}.

    One start of the ranks runs every case.
    """
    found = {}
    for world_size in (1, 2):
        folder = tmp_path_factory.mktemp(f"workers{world_size}")
        run_ranks(_train_all, world_size, world_size, folder, common, cases)
        found[world_size] = {case: _seen(folder / str(number)) for number, case in enumerate(cases)}
    return found


def _train_all(rank, world_size, folder, common, cases):
    with distributed.process_group(rank=rank, world_size=world_size, init_method=f"file://{folder}/meet"):
        for number, settings in enumerate(cases.values()):
            config = resolve(Layer("common", common), Layer("case", settings)).config
            own, rows = folder / str(number), []
            context = FolderContext(own, torch.device("cpu"), rank=rank, world_size=world_size, sink=rows.append)
            outcome = train(config, context)
            if rank == 0:
                torch.save({"rows": rows, "metrics": outcome.metrics | read_sealed(own)}, own / "seen.pt")


def _seen(folder):
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["task"]
    return {**torch.load(folder / "seen.pt", weights_only=True), "state": state}


def assert_alike(one, two, *, weights_atol):
    """Every row, every metric and every weight, in double precision."""
    for alone, shared in zip(one["rows"], two["rows"], strict=True):
        for name, value in alone.items():
            if not name.startswith("time/"):
                assert shared[name] == pytest.approx(value, rel=1e-10, abs=1e-10), name
    assert one["metrics"].keys() == two["metrics"].keys()
    for name, value in one["metrics"].items():
        assert two["metrics"][name] == pytest.approx(value, rel=1e-10, abs=1e-10), name
    for name, tensor in one["state"].items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            torch.testing.assert_close(two["state"][name], tensor, rtol=1e-9, atol=weights_atol)
