"""Start ranks quickly: they are forked from one clean process that has imported torch and the trainables already."""

import multiprocessing

import torch.multiprocessing as mp

PRELOADED = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",
    "trainables.losses",
    "trainables.regularizers",
    "trainables.training",
]


def run_ranks(work, world_size, *arguments):
    """Run work(rank, *arguments) on every rank; an exception in any of them is raised here."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    mp.start_processes(work, arguments, nprocs=world_size, start_method="forkserver")
