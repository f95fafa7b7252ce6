"""Compare the speed of every loss with the floor of a pair loss, and with pytorch-metric-learning.

    python benchmarks/losses.py                  # B in 80 ... 640, d = 1024, 5 per class, float32
    python benchmarks/losses.py --quick          # B = 640 alone, few repeats
    python benchmarks/losses.py --only triplet --device cuda

One step is a forward and backward pass to the raw embeddings. The floor is `normalise`, one B x B x D product and their
backward by autograd. Each repeat times floor, loss and peer one after the other, so other load affects all three alike.
The table has the medians of the ratios.

    step / floor   time of the loss over the floor; the goal applies to B = 640
    peer / step    time of the named pytorch-metric-learning configuration over the loss
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from program import run_program, take_turns
from torch import Tensor
from torch.nn.functional import normalize

from trainables.losses import LOSSES, build_loss

DIMENSION, PER_CLASS, CLASSES = 1024, 5, 128
KNOBS = {
    "dro_topk": {"k": 240},
    "dro_topk_pn": {"k": 240},
    "dro_kl": {"gamma": 0.5},
    "dro_kl_grouped": {"gamma": 0.1},
}
GOALS = {
    **dict.fromkeys(
        ("dro_topk", "dro_topk_pn", "dro_kl", "dro_kl_grouped", "multi_similarity", "lifted_structure", "nt_xent"),
        1.6,
    ),
    **dict.fromkeys(("triplet", "semihard_triplet"), 4.0),
    **dict.fromkeys(("margin_dws", "margin_semihard"), 3.0),
}
# These peers store positive pairs x negative pairs: a billion numbers at B = 640.
PEER_LIMIT = {"tuplet_margin": 160, "nt_xent": 160}

FIGURE = (
    *("triplet", "semihard_triplet", "multi_similarity", "lifted_structure", "nt_xent", "margin_dws"),
    *("dro_topk", "dro_topk_pn", "dro_kl", "dro_kl_grouped"),
)
Step = Callable[[Tensor, Tensor], Tensor]


def floor(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the cosine matrix, a loss that computes no weights."""
    unit = normalize(embeddings)
    return (unit @ unit.T).sum()


def peers() -> dict[str, tuple[str, Step]]:
    """Return, for each loss, the name and step of its configuration in pytorch-metric-learning."""
    from pytorch_metric_learning import distances, losses, miners, reducers

    mean, cosine = reducers.MeanReducer(), distances.CosineSimilarity()
    squared = distances.LpDistance(power=2)
    ms, ms_miner = losses.MultiSimilarityLoss(2, 40, 0.5), miners.MultiSimilarityMiner(0.1)
    sh, sh_miner = (
        losses.TripletMarginLoss(0.2, distance=squared),
        miners.TripletMarginMiner(0.2, "semihard", distance=squared),
    )
    dw, dw_miner = losses.MarginLoss(0.2, beta=1.2), miners.DistanceWeightedMiner(0.5, 1.4)
    tuplet, variance = losses.TupletMarginLoss(5.73, 64), losses.IntraPairVarianceLoss(0.01, 0.01)

    def with_miner(loss: Step, miner: Callable[[Tensor, Tensor], object]) -> Step:
        return lambda f, y: loss(f, y, miner(f, y))  # type: ignore[call-arg]

    return {
        "triplet": ("TripletMarginLoss", losses.TripletMarginLoss(1, distance=squared, reducer=mean)),
        "semihard_triplet": ("TripletMarginLoss + semihard miner", with_miner(sh, sh_miner)),
        "npair": ("NPairsLoss", losses.NPairsLoss()),
        "multi_similarity": ("MultiSimilarityLoss + miner", with_miner(ms, ms_miner)),
        "tuplet_margin": ("TupletMarginLoss + IntraPairVariance", lambda f, y: tuplet(f, y) + 0.5 * variance(f, y)),
        "contrastive": ("ContrastiveLoss", losses.ContrastiveLoss(0.7, 0.3, distance=cosine, reducer=mean)),
        "lifted_structure": (
            "GeneralizedLiftedStructureLoss",
            losses.GeneralizedLiftedStructureLoss(distance=cosine),
        ),
        "nt_xent": ("NTXentLoss", losses.NTXentLoss(0.5)),
        "margin_dws": ("MarginLoss + DistanceWeightedMiner", with_miner(dw, dw_miner)),
    }


def batch(size: int, device: str) -> tuple[Tensor, Tensor]:
    """Return raw embeddings in which classes are clusters, so that cosines vary as in training."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size) // PER_CLASS
    centres = torch.randn(int(labels[-1]) + 1, DIMENSION, generator=generator)
    embeddings = 0.8 * centres[labels] + torch.randn(size, DIMENSION, generator=generator)
    return embeddings.to(device).requires_grad_(), labels.to(device)


def measure(steps: list[Step], embeddings: Tensor, labels: Tensor, repeats: int) -> list[list[float]]:
    """Return the times of a forward and backward pass of each step."""

    def run(step: Step) -> None:
        embeddings.grad = None
        torch.autograd.backward(step(embeddings, labels))

    def clock() -> float:
        if embeddings.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    return take_turns([partial(run, step) for step in steps], repeats, clock)


@dataclass(frozen=True)
class Timing:
    """Times of a loss at a batch size: medians in seconds."""

    name: str
    size: int
    floor: float = math.nan
    own: float = math.nan
    peer: float = math.nan
    is_met: bool = True
    """Whether the loss meets its goals."""


def measure_row(name: str, peer: tuple[str, Step] | None, size: int, device: str, repeats: int) -> Timing:
    """Measure and print one line."""
    knobs: Any = KNOBS.get(name, LOSSES[name].example)
    loss = build_loss(name, num_classes=CLASSES, embedding_dim=DIMENSION, **knobs).to(device)
    embeddings, labels = batch(size, device)
    try:
        floors, own, *peer_times = measure([floor, loss, *([peer[1]] if peer else [])], embeddings, labels, repeats)
    except ValueError as error:  # the loss needs another batch shape
        print(f"{name:18} {size:5}   not for this batch: {error}")
        return Timing(name, size)
    ratio = statistics.median(mine / base for mine, base in zip(own, floors, strict=True))
    gains = [theirs / mine for times in peer_times for theirs, mine in zip(times, own, strict=True)]
    gain = statistics.median(gains) if gains else None
    goal = GOALS.get(name) if size == 640 else None
    is_met = (goal is None or ratio <= goal) and (gain is None or gain >= 1)
    line = f"{name:18} {size:5} {1e3 * statistics.median(own):9.2f} {ratio:12.2f} {goal or '':>6}"
    print(line + (f" {gain:11.2f}  {peer[0]}" if peer and gain else "") + ("" if is_met else "   MISSED"))
    median = statistics.median
    return Timing(name, size, median(floors), median(own), median(peer_times[0]) if peer_times else math.nan, is_met)


def draw(rows: list[Timing], path: Path) -> None:
    """Draw seconds per iteration against the batch size, the runtime figure of the DRO paper."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "losses", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    sizes = sorted({item.size for item in rows})
    floors = [min(item.floor for item in rows if item.size == size) for size in sizes]
    axes.plot(sizes, floors, color="black", linestyle=":", linewidth=2, label="floor: one similarity product")
    colours = plt.get_cmap("tab10").colors
    shown = [name for name in FIGURE if any(item.name == name for item in rows)]
    for number, name in enumerate(shown):
        mine = [item for item in rows if item.name == name]
        colour = colours[number % len(colours)]
        xs = [item.size for item in mine]
        axes.plot(xs, [item.own for item in mine], "o-", color=colour, label=name, markersize=4)
        if any(not math.isnan(item.peer) for item in mine):
            peer_times = [item.peer for item in mine]
            axes.plot(xs, peer_times, "x--", color=colour, label=f"{name}, pytorch-metric-learning")
    axes.set(xlabel="batch size B (5 per class)", ylabel="seconds per iteration", yscale="log", xticks=sizes)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main(
    quick: Annotated[bool, typer.Option(help="only B = 640, 7 repeats")] = False,
    only: Annotated[list[str] | None, typer.Option(help="a loss; repeatable")] = None,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    repeats: int = 21,
    figure: Annotated[Path | None, typer.Option(help="also draw seconds per iteration against B (SVG)")] = None,
) -> int:
    sizes, repeats = ([640], 7) if quick else ([80, 160, 320, 480, 640], repeats)
    device_name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
    print(
        f"torch {torch.__version__}, {device_name}, d = {DIMENSION}, {PER_CLASS} per class, float32, {repeats} repeats"
    )
    print(f"{'loss':18} {'B':>5} {'step [ms]':>9} {'step / floor':>12} {'goal':>6} {'peer / step':>11}  peer")
    peer_of = peers()
    rows = [
        measure_row(name, peer_of.get(name) if size <= PEER_LIMIT.get(name, size) else None, size, device, repeats)
        for name in only or sorted(LOSSES)
        for size in sizes
    ]
    if figure:
        draw(rows, figure)
    return 0 if all(item.is_met for item in rows) else 1


if __name__ == "__main__":
    run_program(main, __doc__)
