"""Connect a trial's workers at a port of the first worker's node that is reserved from the start.

By default Ray Train chooses a free port, which another program may take before torch opens it. Torch then listens on
all addresses without a token.

This module is pickled by value and imports in functions, so that workers on a node without this project can report it.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.torch import TorchConfig

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass
class Rendezvous(TorchConfig):  # type: ignore[misc]
    """The `torch_config` of a `TorchTrainer`: nccl if workers have GPUs, otherwise gloo."""

    @property
    def backend_cls(self) -> type:
        """Backend class with which Ray Train starts the workers."""
        return _Backend


class _Backend(TorchConfig().backend_cls):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Join all workers into one process group.

        If a node lacks this project, use Ray Train's default; the training function then reports what is missing.
        """
        if not all(worker_group.execute(_has_project)):
            super().on_start(worker_group, backend_config)
            return
        backend = "nccl" if worker_group.get_resources_per_worker().get("GPU", 0) > 0 else "gloo"
        address, port = worker_group.execute_single(0, _open_store)
        arguments = {"backend": backend, "address": address, "port": port, "timeout_s": backend_config.timeout_s}
        ray.get([worker_group.execute_single_async(rank, _join, **arguments) for rank in range(len(worker_group))])


def _has_project() -> bool:
    try:
        from trainables.distributed import join, open_store  # noqa: F401
    except ImportError:
        return False
    return True


def _open_store() -> tuple[str, int]:
    from trainables.distributed import open_store

    address = ray.util.get_node_ip_address()
    return address, open_store(address)


def _join(backend: str, address: str, port: int, timeout_s: float) -> None:
    """Join the process group, with the variables that torchrun would set."""
    from trainables.distributed import join

    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(LOCAL_RANK=str(context.get_local_rank()), LOCAL_WORLD_SIZE=str(context.get_local_world_size()))
    # Gloo's default is the address of the host name: 127.0.1.1 on Debian, which other nodes cannot reach.
    if interface := _interface_of(ray.util.get_node_ip_address()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    join(address, port, rank=rank, world_size=size, backend=backend, timeout_s=timeout_s)


def _interface_of(address: str) -> str | None:
    """Return the network interface that has an address; None if none has, as behind address translation."""
    import psutil  # type: ignore[import-untyped]  # installed with Ray

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return str(name)
    return None
