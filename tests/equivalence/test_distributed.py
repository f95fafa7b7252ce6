"""The collectives of trainables.distributed: values, gradients, uneven sizes, and identity when alone."""

import socket

import pytest
import torch
from processes import run_ranks

from trainables import distributed as d
from trainables.models.batch_norm import GlobalBatchNorm1d, GlobalBatchNorm2d

W = 3


def double(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gathered(rank):
    """Gather sizes 2, 0, 3; a loss mixes all rows, so that each row's gradient depends on the others."""
    size = [2, 0, 3][rank]
    rows = double(size, 4, seed=rank).requires_grad_()
    labels = torch.arange(size) + 10 * rank
    everyone, all_labels = d.gather_batch(rows, labels)
    (everyone @ everyone.T).square().sum().backward()
    plain = d.gather_rows(rows)
    return {"everyone": everyone.detach(), "labels": all_labels, "gradient": rows.grad, "plain": plain}


def nobody(rank):
    rows = torch.zeros(0, 4, requires_grad=True)
    everyone, labels = d.gather_batch(rows, torch.zeros(0, dtype=torch.long))
    everyone.sum().backward()
    return {"shape": torch.tensor(everyone.shape), "labels": labels, "gradient": rows.grad}


def images(rank):
    return {"rows": d.gather_rows(torch.full((rank + 1, 2, 2), rank, dtype=torch.uint8))}


def halves(rank):
    rows = torch.full((rank, 2), float(rank), dtype=torch.bfloat16)
    return {"rows": d.gather_batch(rows, torch.full((rank,), rank))[0]}


def averaged(rank):
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(4).double())]
    parameters += [torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(torch.zeros(2))]
    parameters[0].grad = torch.full((2, 3), float(rank))
    parameters[1].grad = torch.arange(4).double() * rank
    parameters[3].grad = torch.full((2,), 3.0)
    d.average_gradients(parameters)
    return {str(i): p.grad for i, p in enumerate(parameters) if p.grad is not None}


def wrapped(rank):
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    wrapper = torch.nn.parallel.DistributedDataParallel
    is_wrapped = [isinstance(d.data_parallel(network), wrapper) for network in (frozen, torch.nn.Linear(2, 2))]
    return {"frozen, trained": torch.tensor(is_wrapped)}


KINDS = {"vectors": (GlobalBatchNorm1d, (9, 4)), "pictures": (GlobalBatchNorm2d, (9, 4, 3, 2))}
SIZES = (5, 1, 3)


def normalised(kind, rows=slice(None)):
    """Return the gradients and the statistics of a layer for these rows; the true total is the sum over ranks."""
    made, shape = KINDS[kind]
    layer, x = made(4).double(), (double(*shape, seed=0) * 3 + 100)[rows].requires_grad_()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
    (layer(x) ** 3).sum().backward()
    return {"x": x.grad, "weight": layer.weight.grad, "mean": layer.running_mean, "variance": layer.running_var}


def layers(rank):
    start = sum(SIZES[:rank])
    return {kind: normalised(kind, slice(start, start + SIZES[rank])) for kind in KINDS}


SCENES = (gathered, nobody, images, halves, layers, averaged, wrapped)


def work(rank, folder):
    torch.set_num_threads(1)
    with d.process_group(rank=rank, world_size=W, init_method=f"file://{folder}/meet", backend="gloo", timeout_s=60):
        assert (d.rank(), d.world_size(), d.is_distributed()) == (rank, W, True)
        torch.save({scene.__name__: scene(rank) for scene in SCENES}, folder / f"{rank}.pt")
    assert not d.is_distributed()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(work, W, folder)
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(W)]
    return {scene.__name__: [rank[scene.__name__] for rank in ranks] for scene in SCENES}


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gathering_concatenates_in_rank_order_and_multiplies_the_local_gradient(seen):
    rows = torch.cat([double(2, 4, seed=0), double(3, 4, seed=2)]).requires_grad_()
    (rows @ rows.T).square().sum().backward()
    for rank, own in ((0, slice(0, 2)), (1, slice(2, 2)), (2, slice(2, 5))):
        found = seen["gathered"][rank]
        same(found["everyone"], rows.detach())
        same(found["plain"], rows.detach())
        assert found["labels"].tolist() == [0, 1, 20, 21, 22]
        same(found["gradient"], W * rows.grad[own])


def test_gathering_accepts_empty_tensors_and_rows_of_any_shape_and_type(seen):
    for found in seen["nobody"]:
        assert found["shape"].tolist() == [0, 4]
        assert found["labels"].tolist() == []
        assert found["gradient"].shape == (0, 4)
    for found in seen["images"]:
        assert found["rows"].shape == (6, 2, 2)
        assert found["rows"][:, 0, 0].tolist() == [0, 1, 1, 2, 2, 2]
    for found in seen["halves"]:
        assert found["rows"].dtype == torch.bfloat16
        assert found["rows"][:, 1].tolist() == [1, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_on_uneven_ranks_normalise_like_one_process_on_the_whole_batch(seen, kind):
    ranks, whole = [found[kind] for found in seen["layers"]], normalised(kind)
    assert torch.allclose(torch.cat([rank["x"] for rank in ranks]), whole["x"], rtol=1e-9, atol=1e-11)
    assert torch.allclose(sum(rank["weight"] for rank in ranks), whole["weight"], rtol=1e-10)
    for rank in ranks:
        assert torch.allclose(rank["mean"], whole["mean"], rtol=1e-12)
        assert torch.allclose(rank["variance"], whole["variance"], rtol=1e-10)


def test_average_gradients_keeps_missing_gradients_missing(seen):
    for found in seen["averaged"]:
        assert sorted(found) == ["0", "1", "3"]
        same(found["0"], torch.ones(2, 3))
        same(found["1"], torch.arange(4).double())
        same(found["3"], torch.full((2,), 3.0))


def test_a_single_process_changes_nothing():
    rows, labels = torch.randn(3, 2, requires_grad=True), torch.arange(3)
    assert (d.rank(), d.world_size(), d.is_distributed()) == (0, 1, False)
    assert d.gather_batch(rows, labels) == (rows, labels)
    assert torch.equal(d.gather_rows(rows), rows)
    assert not d.gather_rows(rows).requires_grad
    assert d.all_reduce_sum(rows) is rows
    network = torch.nn.Linear(2, 2)
    assert d.data_parallel(network) is network
    network(rows).sum().backward()
    gradient = network.weight.grad.clone()
    d.average_gradients(network.parameters())
    assert torch.equal(network.weight.grad, gradient)


def test_a_frozen_network_is_not_wrapped(seen):
    assert [found["frozen, trained"].tolist() for found in seen["wrapped"]] == W * [[False, True]]


def test_in_a_group_of_one_nothing_is_exchanged(tmp_path, monkeypatch):
    """NCCL ends the process if its GPU fails during an exchange; a group of one needs no exchange."""
    with d.process_group(rank=0, world_size=1, init_method=f"file://{tmp_path}/meet", backend="gloo"):
        for name in ("all_reduce", "all_gather_into_tensor", "all_gather_single"):
            monkeypatch.setattr(torch.distributed, name, None, raising=False)
        monkeypatch.setattr(d, "_all_gather_equal", None)
        test_a_single_process_changes_nothing()
    assert not d.is_distributed()


@pytest.fixture
def _stores_of_one_test(monkeypatch):
    """A store listens until its process ends, which `test_listening` would notice."""
    monkeypatch.setattr(d, "_stores", [])


@pytest.mark.usefixtures("_stores_of_one_test")
def test_the_rendezvous_is_reachable_only_at_its_address():
    port = d.open_store("127.0.0.1")
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    behind = d.open_store("203.0.113.7")  # as behind address translation: not an address of the machine
    socket.create_connection(("127.0.0.2", behind), timeout=5).close()
