"""Data parallelism: the only file that speaks torch.distributed.

The convention that makes W processes equal one. Every rank gathers the GLOBAL batch in rank order and
computes the same full loss on it; only the rows it produced itself are attached to its graph. `gather_batch`
multiplies their gradient by W, so that after the usual averaging over ranks

- the network's gradient is the true one: (1/W) Σ_r J_rᵀ (W g_r) = Σ_r J_rᵀ g_r,
- the gradient of proxies and class weights, the same on every rank, averages to itself,
- selections over the whole batch (top-K, mining, running means) see what one process would see.

A step of training:

    embeddings, labels = gather_batch(network(images), labels)
    value = loss(embeddings, labels) + eta * regularizer(embeddings)       # the true value, on every rank
    value.backward()
    average_gradients([*network.parameters(), *loss.parameters()])         # or data_parallel(network)

Without a process group, or in one of a single process, every function is the identity, so the same code trains alone. Works on
gloo (CPU) and nccl.
"""

from __future__ import annotations

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

# torch 2.13 renamed it, and warns under the old name.
_all_gather_equal: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
_Store: Any = dist.TCPStore  # type: ignore[attr-defined]  # which torch documents and does not list

_stores: list[Any] = []
"""Opened by this process; one must last as long as its group."""


def is_distributed() -> bool:
    """True inside a process group of several.

    In one of a single process, as Ray Train makes it for one worker, nothing is exchanged. NCCL watches over exchanges, and where
    the device turns sick it ends the process, perhaps before the trial has said why it failed.
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """This process's place among the ranks; 0 when alone."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """How many processes train together; 1 when alone."""
    return dist.get_world_size() if is_distributed() else 1


@contextmanager
def process_group(
    *,
    rank: int,
    world_size: int,
    init_method: str = "env://",
    backend: str | None = None,
    timeout_s: float = 1800,
) -> Iterator[None]:
    """Join a process group for the duration of a block, where no launcher (Ray Train, torchrun) has done so.

    Processes meet at `init_method`: `env://`, `file:///path` or `tcp://host:port`. `backend` is `nccl` when a CUDA device is
    there, else `gloo`. A collective that some rank never enters fails after `timeout_s` seconds instead of hanging.
    """
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()


def open_store(address: str) -> int:
    """Listen, at this address alone and a free port, for the processes that `join`; the port, which is ours from the start.

    torch's own ways take a port that was free a moment ago, and listen at every address of the machine, to whoever asks.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:  # a node that others know by an address which is none of its own
        listener = socket.create_server(("", 0), family=family)
        address = "localhost"
    port = int(listener.getsockname()[1])
    _stores.append(_Store(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()))
    return port


def join(address: str, port: int, *, rank: int, world_size: int, backend: str, timeout_s: float) -> None:
    """Enter the group of those that meet at a store; rank 0 has opened it. It ends with the process.

    Raises torch's DistStoreError or DistNetworkError where not all come within so many seconds.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    store = _stores[-1] if rank == 0 else _Store(address, port, is_master=False, timeout=timeout)
    store.set_timeout(timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


class _GatherRows(torch.autograd.Function):
    """Rows of all ranks in rank order; backward hands a rank W times the gradient of its own rows (see the module)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        start = sum(sizes[: rank()])
        ctx.own = slice(start, start + len(rows))
        return _all_gather(rows, sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.own] * world_size(), None


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _summed(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient)


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _all_gather(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Concatenate rows of uneven number: pad to the largest, gather into one buffer, trim."""
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


def _sizes(rows: Tensor) -> list[int]:
    local = torch.tensor([len(rows)], device=rows.device)
    everyone = local.new_empty(world_size())
    _all_gather_equal(everyone, local)
    sizes: list[int] = everyone.tolist()
    return sizes


def gather_batch(embeddings: Tensor, labels: Tensor, sizes: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """The global batch: raw embeddings (B_r, D) and labels (B_r,) of all ranks, in rank order: (Σ B_r, D) and (Σ B_r,).

    B_r may differ between ranks and may be 0. `sizes`, all B_r where the sampler knows them, saves one exchange and, on
    CUDA, one wait for the device. The gradient reaching this rank's embeddings is W times its slice: average gradients over
    ranks afterwards (`average_gradients` or DistributedDataParallel).
    """
    if not is_distributed():
        return embeddings, labels
    known = list(sizes) if sizes is not None else _sizes(embeddings)
    everyone: Tensor = _GatherRows.apply(embeddings, known)  # type: ignore[no-untyped-call]
    return everyone, _all_gather(labels.to(embeddings.device), known)


def gather_rows(rows: Tensor) -> Tensor:
    """Rows of all ranks in rank order, without gradient; uneven numbers allowed. For evaluation and diagnostics."""
    return _all_gather(rows, _sizes(rows)) if is_distributed() else rows.detach()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum over ranks; the gradient is summed over ranks as well, since each rank's output depends on every rank's input."""
    if not is_distributed():
        return tensor
    total: Tensor = _AllReduceSum.apply(tensor)  # type: ignore[no-untyped-call]
    return total


def barrier() -> None:
    """Wait until every rank is here."""
    if is_distributed():
        dist.barrier()


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over ranks, one all-reduce per dtype and device; parameters without one are left alone.

    Every rank must hold gradients of the same parameters (an empty local batch still yields zero gradients). The loss's own
    parameters have the same gradient everywhere already; averaging keeps ranks from drifting apart by rounding.
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
    """The network in DistributedDataParallel, from rank 0's weights; the network itself when alone.

    Wrap again after changing which parameters train. `average_gradients` covers the loss's, which forward does not use.
    """
    if not is_distributed() or not any(parameter.requires_grad for parameter in network.parameters()):
        return network
    # A convolution of one input channel has two layouts at once, which costs nothing but a warning.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    wrapper = nn.parallel.DistributedDataParallel
    renamed = "forward_sync_buffers" in inspect.signature(wrapper).parameters  # since torch 2.13
    keyword = "forward_sync_buffers" if renamed else "broadcast_buffers"
    options: dict[str, Any] = {keyword: False}
    return wrapper(network, **options)
