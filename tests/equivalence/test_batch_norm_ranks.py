"""Two processes with uneven local batches normalise like one process on the whole batch."""

import pytest
import torch
from processes import run_ranks

from trainables.distributed import process_group
from trainables.models.batch_norm import GlobalBatchNorm1d, GlobalBatchNorm2d

SIZES = (5, 3)
KINDS = {"vectors": (GlobalBatchNorm1d, (8, 4)), "pictures": (GlobalBatchNorm2d, (8, 4, 3, 2))}


def _whole(kind):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(KINDS[kind][1], dtype=torch.float64, generator=generator) * 3 + 100


def _layer(kind):
    layer = KINDS[kind][0](4).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
    return layer


def _worker(rank, folder):
    torch.set_num_threads(1)
    with process_group(rank=rank, world_size=2, init_method=f"file://{folder}/meet", backend="gloo"):
        for kind in KINDS:
            layer = _layer(kind)
            start = sum(SIZES[:rank])
            x = _whole(kind)[start : start + SIZES[rank]].requires_grad_()
            (layer(x) ** 3).sum().backward()  # the true total is the sum over ranks
            found = (x.grad, layer.weight.grad, layer.running_mean, layer.running_var)
            torch.save(found, f"{folder}/{kind}{rank}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("ranks")
    run_ranks(_worker, 2, str(place))
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_equal_one(folder, kind):
    layer = _layer(kind)
    x = _whole(kind).requires_grad_()
    (layer(x) ** 3).sum().backward()
    ranks = [torch.load(folder / f"{kind}{rank}.pt", weights_only=True) for rank in range(2)]
    assert torch.allclose(torch.cat([ranks[0][0], ranks[1][0]]), x.grad, rtol=1e-9, atol=1e-11)
    assert torch.allclose(ranks[0][1] + ranks[1][1], layer.weight.grad, rtol=1e-10)
    for mean, variance in [rank[2:] for rank in ranks]:
        assert torch.allclose(mean, layer.running_mean, rtol=1e-12)
        assert torch.allclose(variance, layer.running_var, rtol=1e-10)
