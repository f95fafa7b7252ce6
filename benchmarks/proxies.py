"""Claim: a proxy or classification loss costs little more than its matrix products.

For each such loss, the program prints the time of one forward and backward pass over that of its floor, (B x d) @ (d x
CK) with its backward. It also prints the time of the counterpart in pytorch-metric-learning over ours. B = 180,
d = 512; C = 11318, K = 2 (SOP) and C = 100, K = 10 (CUB). The goal of 1.5 floors is for losses with several proxies per
class: with one and C = 100 the product takes less than a millisecond, about as long as the calls.

Floor, loss and peer take turns in one process; ratios are medians. With one thread, times are processor times, which
other load does not affect.

    OMP_NUM_THREADS=1 python benchmarks/proxies.py [--repeats 21]
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from program import run_program, take_turns
from torch import Tensor, nn

from trainables.losses import LOSSES, build_loss
from trainables.losses.parts.proxies import ProxyLoss
from trainables.methods import parameters_of

BATCH, DIMENSION = 180, 512
SHAPES = ((11318, 2), (100, 10))
GOAL = 1.5
PEER_LIMIT = 1000  # classes; the peer compares all pairs of centres: half a minute a step at 11318
clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def step(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Callable[[], None]:
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


def peer(name: str, classes: int, proxies_per_class: int) -> nn.Module | None:
    """Return the loss of pytorch-metric-learning with the same knobs, if there is one."""
    from pytorch_metric_learning import losses, regularizers

    shape = (classes, DIMENSION)
    peers = {
        "arcface": losses.ArcFaceLoss,
        "cosface": losses.CosFaceLoss,
        "proxy_anchor": losses.ProxyAnchorLoss,
        "proxy_nca": losses.ProxyNCALoss,
        "sphereface": losses.SphereFaceLoss,
    }
    loss: nn.Module | None = peers[name](*shape) if name in peers else None
    if name == "soft_triple" and classes <= PEER_LIMIT:
        spread = regularizers.SparseCentersRegularizer(classes, proxies_per_class)
        knobs = {"centers_per_class": proxies_per_class, "weight_regularizer": spread, "weight_reg_weight": 0.2}
        loss = losses.SoftTripleLoss(*shape, **knobs)
    return loss


def report(name: str, classes: int, proxies_per_class: int, repeats: int) -> bool:
    """Measure and print one line; return whether the loss meets its goals."""
    embeddings = torch.randn(BATCH, DIMENSION, requires_grad=True)
    labels = torch.randint(classes, (BATCH,))
    has_several = any(knob.name == "proxies_per_class" for knob in parameters_of(LOSSES[name]))
    knobs = {"proxies_per_class": proxies_per_class} if has_several else {}
    loss = build_loss(name, num_classes=classes, embedding_dim=DIMENSION, **knobs)
    assert isinstance(loss, ProxyLoss)
    counterpart = peer(name, classes, proxies_per_class)
    contestants = [proxy_floor(embeddings, loss.proxies), step(loss, embeddings, labels)]
    contestants += [step(counterpart, embeddings, labels)] if counterpart else []
    floors, own, *theirs = take_turns(contestants, repeats, clock)
    factor = median(mine / base for mine, base in zip(own, floors, strict=True))
    gain = median(slow / mine for slow, mine in zip(theirs[0], own, strict=True)) if theirs else None
    is_met = (factor <= GOAL or not has_several) and (gain is None or gain >= 1)
    line = f"{name:14} C={classes:<6} K={loss.proxies.shape[1]:<3} {1e3 * median(own):8.2f} {factor:12.2f}"
    line += f" {GOAL if has_several else '':>5} {'' if gain is None else f'{gain:.2f}':>11}"
    print(line + ("" if is_met else "   MISSED"), flush=True)
    return is_met


def main(repeats: int = 21) -> int:
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, CPU, {torch.get_num_threads()} thread(s), B = {BATCH}, d = {DIMENSION}")
    print(f"{'loss':14} {'classes':8} {'K':5} {'step [ms]':>8} {'step / floor':>12} {'goal':>5} {'peer / step':>11}")
    names = [name for name, cls in LOSSES.items() if issubclass(cls, ProxyLoss)]
    met = [report(name, *shape, repeats) for shape in SHAPES for name in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    run_program(main, __doc__)
