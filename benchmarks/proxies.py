"""Claim: a proxy or classification loss costs little more than the products nobody can avoid.

Prints, for every such loss, the time of one forward and backward pass over that of its floor:

- losses with class representatives: (B x d) @ (d x CK) with its backward, at B = 180, d = 512 and
  C = 11318, K = 2 (SOP) and C = 100, K = 10 (CUB); aim 1.5;
- nt_xent: normalise, B x B product, and their backward, at B = 640, d = 1024; aim 1.6.

Loss and floor alternate in one process; medians. With one thread it is processor time that counts, so that other work
on the machine does not. Run: OMP_NUM_THREADS=1 python benchmarks/proxies.py [repeats]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from trainables.losses import LOSSES, Loss, build_loss
from trainables.losses.proxies import ProxyLoss
from trainables.parameters import parameters_of

BATCH, DIMENSION = 180, 512
SHAPES = ((11318, 2), (100, 10))
clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def ratio(
    function: Callable[[], None], floor: Callable[[], None], repeats: int
) -> tuple[float, float, float]:
    """Median milliseconds of both, run in turn, and the median of the ratios of neighbours."""
    for warm_up in (function, floor):
        warm_up()
    times = []
    for _ in range(repeats):
        start = clock()
        floor()
        middle = clock()
        function()
        times.append((middle - start, clock() - middle))
    floors, functions = zip(*times, strict=True)
    median = statistics.median(mine / theirs for theirs, mine in times)
    return statistics.median(functions) * 1e3, statistics.median(floors) * 1e3, median


def step(loss: Loss, embeddings: Tensor, labels: Tensor) -> Callable[[], None]:
    def run() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        torch.autograd.backward(loss(embeddings, labels))

    return run


def proxy_floor(embeddings: Tensor, proxies: Tensor) -> Callable[[], None]:
    weights = proxies.detach().flatten(0, 1).clone().requires_grad_()
    gradient = torch.randn(len(embeddings), len(weights))

    def run() -> None:
        embeddings.grad = weights.grad = None
        torch.autograd.backward(embeddings @ weights.T, gradient)

    return run


def pair_floor(embeddings: Tensor) -> Callable[[], None]:
    gradient = torch.randn(len(embeddings), len(embeddings))

    def run() -> None:
        embeddings.grad = None
        unit = torch.nn.functional.normalize(embeddings)
        torch.autograd.backward(unit @ unit.T, gradient)

    return run


def report(
    label: str, loss: Loss, floor: Callable[[], None], batch: tuple[Tensor, Tensor], repeats: int
) -> None:
    mine, theirs, factor = ratio(step(loss, *batch), floor, repeats)
    print(f"{label:<34} {mine:8.2f} ms  floor {theirs:8.2f} ms  ratio {factor:5.2f}", flush=True)


def main(repeats: int) -> None:
    torch.manual_seed(0)
    for classes, proxies_per_class in SHAPES:
        embeddings = torch.randn(BATCH, DIMENSION, requires_grad=True)
        labels = torch.randint(classes, (BATCH,))
        for name, cls in LOSSES.items():
            if not issubclass(cls, ProxyLoss):
                continue
            many = any(knob.name == "proxies_per_class" for knob in parameters_of(cls))
            knobs = {"proxies_per_class": proxies_per_class} if many else {}
            loss = build_loss(name, num_classes=classes, embedding_dim=DIMENSION, **knobs)
            assert isinstance(loss, ProxyLoss)
            label = f"{name} C={classes} K={loss.proxies.shape[1]}"
            report(label, loss, proxy_floor(embeddings, loss.proxies), (embeddings, labels), repeats)
    embeddings = torch.randn(640, 1024, requires_grad=True)
    labels = torch.arange(320).repeat(2)
    report("nt_xent B=640", build_loss("nt_xent"), pair_floor(embeddings), (embeddings, labels), repeats)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
