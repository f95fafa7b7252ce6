"""Two processes with uneven local batches normalise like one process on the whole batch."""

import torch
import torch.multiprocessing as mp

from trainables.distributed import process_group
from trainables.models.batch_norm import GlobalBatchNorm1d

SIZES = (5, 3)


def _whole():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 4, dtype=torch.float64, generator=generator) * 3 + 100


def _layer():
    layer = GlobalBatchNorm1d(4).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
    return layer


def _worker(rank, folder):
    torch.set_num_threads(1)
    with process_group(rank=rank, world_size=2, init_method=f"file://{folder}/meet", backend="gloo"):
        layer = _layer()
        start = sum(SIZES[:rank])
        x = _whole()[start : start + SIZES[rank]].requires_grad_()
        (layer(x) ** 3).sum().backward()  # the true total is the sum over ranks
        torch.save((x.grad, layer.weight.grad, layer.running_mean, layer.running_var), f"{folder}/{rank}.pt")


def test_two_ranks_equal_one(tmp_path):
    layer = _layer()
    x = _whole().requires_grad_()
    (layer(x) ** 3).sum().backward()
    mp.spawn(_worker, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert torch.allclose(torch.cat([ranks[0][0], ranks[1][0]]), x.grad, rtol=1e-10, atol=1e-12)
    assert torch.allclose(ranks[0][1] + ranks[1][1], layer.weight.grad, rtol=1e-10)
    for mean, variance in [rank[2:] for rank in ranks]:
        assert torch.allclose(mean, layer.running_mean, rtol=1e-12)
        assert torch.allclose(variance, layer.running_var, rtol=1e-10)
