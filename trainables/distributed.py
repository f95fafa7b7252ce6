"""Data parallelism: the only file that uses torch.distributed.

W processes train as one. Every rank gathers the GLOBAL batch in rank order and computes the same full loss on it; only
its own rows are attached to its graph. `gather_batch` multiplies their gradient by W. After averaging over ranks

- the network's gradient is the true one: (1/W) Σ_r J_rᵀ (W g_r) = Σ_r J_rᵀ g_r,
- the gradient of proxies and class weights, equal on all ranks, averages to itself,
- selections over the whole batch (top-K, mining, running means) equal those of one process.

A training step:

    embeddings, labels = gather_batch(network(images), labels)
    value = loss(embeddings, labels) + eta * regularizer(embeddings)       # the true value, on every rank
    value.backward()
    average_gradients([*network.parameters(), *loss.parameters()])         # or data_parallel(network)

Without a process group of several processes, every function is the identity. gloo (CPU) and nccl work.
"""

import datetime
import inspect
import socket
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Renamed in torch 2.13, which warns about the old name.
_all_gather_equal: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
_Store: Any = dist.TCPStore  # type: ignore[attr-defined]  # documented by torch, missing in its stubs

_stores: list[Any] = []
"""Stores of this process; a store must outlive its group."""


def is_distributed() -> bool:
    """Return whether this process is in a process group of several.

    Ray Train makes a group for a single worker too. Such a group exchanges nothing, because NCCL's watchdog could end
    the process on a device error before the trial reports its failure.
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Return this process's rank; 0 without a group."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Return the number of processes; 1 without a group."""
    return dist.get_world_size() if is_distributed() else 1


@contextmanager
def process_group(
    *, rank: int, world_size: int, init_method: str = "env://", backend: str | None = None, timeout_s: float = 1800
) -> Iterator[None]:
    """Join a process group for the duration of a block, without a launcher (Ray Train, torchrun).

    Processes meet at `init_method`: `env://`, `file:///path` or `tcp://host:port`. The default `backend` is `nccl` with
    a CUDA device, else `gloo`. A collective fails after `timeout_s` seconds if a rank never enters it.
    """
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()


def open_store(address: str) -> int:
    """Listen for `join` at this address, or at all if this node cannot bind it; return the port, which stays bound.

    torch's own functions pick a port that another process may take before use, and always listen on all addresses.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:  # a public address, which the network translates
        listener = socket.create_server(("", 0), family=family)
        address = "localhost"
    port = int(listener.getsockname()[1])
    _stores.append(_Store(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()))
    return port


def join(address: str, port: int, *, rank: int, world_size: int, backend: str, timeout_s: float) -> None:
    """Join the group that meets at a store opened by rank 0; the group ends with the process.

    Raises torch's DistStoreError or DistNetworkError if not all ranks arrive in time.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    store = _stores[-1] if rank == 0 else _Store(address, port, is_master=False, timeout=timeout)
    store.set_timeout(timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


class _GatherRows(torch.autograd.Function):
    """Gathers all ranks' rows in rank order. Backward returns W times the gradient of the rank's own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        start = sum(sizes[: rank()])
        ctx.own = slice(start, start + len(rows))
        return _all_gather(rows, sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.own] * world_size(), None


class _AllReduceSum(torch.autograd.Function):
    """Sums over ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _sum_over_ranks(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _sum_over_ranks(gradient)


def _sum_over_ranks(tensor: Tensor) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _all_gather(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Concatenate uneven numbers of rows: pad to the largest, gather, trim."""
    largest = max(sizes)
    if largest == 0:  # gloo aborts on an empty exchange
        return rows.detach().clone()
    padded = rows.detach().contiguous()
    if len(rows) < largest:
        padded = torch.cat([padded, padded.new_zeros(largest - len(rows), *rows.shape[1:])])
    gathered = padded.new_empty(len(sizes) * largest, *rows.shape[1:])
    _all_gather_equal(gathered, padded)
    if min(sizes) == largest:
        return gathered
    return torch.cat([gathered[r * largest : r * largest + size] for r, size in enumerate(sizes)])


def _gather_sizes(rows: Tensor) -> list[int]:
    local = torch.tensor([len(rows)], device=rows.device)
    everyone = local.new_empty(world_size())
    _all_gather_equal(everyone, local)
    return everyone.tolist()


def gather_batch(embeddings: Tensor, labels: Tensor, sizes: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Return the global batch: raw embeddings (B_r, D) and labels (B_r,) of all ranks in rank order.

    Average gradients over ranks afterwards (`average_gradients` or DistributedDataParallel): the gradient of this
    rank's embeddings is W times its slice.

    Args:
        embeddings: this rank's rows; B_r may differ between ranks and may be 0.
        labels: this rank's labels.
        sizes: all B_r if known; this saves one exchange and, on CUDA, one synchronization.
    """
    if not is_distributed():
        return embeddings, labels
    row_counts = list(sizes) if sizes is not None else _gather_sizes(embeddings)
    everyone: Tensor = _GatherRows.apply(embeddings, row_counts)  # type: ignore[no-untyped-call]
    return everyone, _all_gather(labels.to(embeddings.device), row_counts)


def gather_rows(rows: Tensor) -> Tensor:
    """Return all ranks' rows in rank order, without gradient; their numbers may differ."""
    return _all_gather(rows, _gather_sizes(rows)) if is_distributed() else rows.detach()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Return the sum over ranks; its gradient is summed over ranks too."""
    if not is_distributed():
        return tensor
    total: Tensor = _AllReduceSum.apply(tensor)  # type: ignore[no-untyped-call]
    return total


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over ranks, one all-reduce per dtype and device; skip parameters without one.

    Every rank must hold gradients of the same parameters. Averaging equal gradients keeps ranks from drifting apart.
    """
    if not is_distributed():
        return
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kinds.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter.grad)
    for gradients in kinds.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= world_size()
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def data_parallel(network: nn.Module) -> nn.Module:
    """Wrap the network in DistributedDataParallel, from rank 0's weights; return it unchanged without a group.

    Wrap again after changing which parameters train. `average_gradients` covers the loss's parameters.
    """
    if not is_distributed() or not any(parameter.requires_grad for parameter in network.parameters()):
        return network
    # A convolution with one input channel fits two layouts; the warning is harmless.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    wrapper = nn.parallel.DistributedDataParallel
    renamed = "forward_sync_buffers" in inspect.signature(wrapper).parameters  # since torch 2.13
    keyword = "forward_sync_buffers" if renamed else "broadcast_buffers"
    options: dict[str, Any] = {keyword: False}
    return wrapper(network, **options)
