"""Compare the training complexity of losses with Table 2 of the multi-proxy anchor paper.

Saeki et al., Multi-Proxy Anchor Family Loss for Several Types of Gradients, CVIU 2023, section 3.4. The paper's M
counts training pictures. A step processes a batch, so the exponent of M is compared with that of B. The paper's P is
our K.

The program times a forward and backward pass of each loss while one of B, C and K doubles and the others stay. The
exponent is the slope of log time over log size, by least squares over the largest sizes, where fixed costs matter
least. Claim: no loss costs more than the table says. The command fails if an exponent exceeds it by more than 0.3.

    OMP_NUM_THREADS=1 python benchmarks/mpa_complexity.py [--repeats 5]      about a minute on one core
"""

from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from program import run_program, take_turns
from proxies import clock, step

from trainables.losses import LOSSES, build_loss
from trainables.methods import knob_names

DIMENSION = 64
LARGEST = 3  # number of sizes in the fit
SLACK = 0.3


@dataclass(frozen=True)
class Shape:
    """Size of one step."""

    batch: int = 128
    classes: int = 512
    proxies: int = 4


SIZES = {
    "B": [Shape(batch=size) for size in (64, 128, 256, 512, 1024)],
    "C": [Shape(classes=size) for size in (256, 512, 1024, 2048, 4096)],
    "K": [Shape(proxies=size) for size in (2, 4, 8, 16, 32)],
}
PRINTED = {
    "contrastive": ("O(M^2)", {"B": 2.0}),
    "triplet": ("O(M^3)", {"B": 3.0}),
    "multi_similarity": ("O(M^3)", {"B": 3.0}),
    "proxy_nca": ("O(MC)", {"B": 1.0, "C": 1.0}),
    "proxy_anchor": ("O(MC)", {"B": 1.0, "C": 1.0}),
    **{name: ("O(MCP^2)", {"B": 1.0, "C": 1.0, "K": 2.0}) for name in ("soft_triple", "mpa", "mpa_dw", "mpa_ap")},
}
"""Printed order of each loss, and its exponents for one step."""


def seconds(name: str, shapes: list[Shape], repeats: int) -> list[float]:
    """Return the median time of a forward and backward pass at each shape; shapes take turns."""
    contestants = []
    for shape in shapes:
        generator = torch.Generator().manual_seed(0)
        embeddings = torch.randn(shape.batch, DIMENSION, generator=generator).requires_grad_()
        labels = torch.arange(shape.batch) // 4 % shape.classes
        knobs = {"proxies_per_class": shape.proxies} if "proxies_per_class" in knob_names(LOSSES[name]) else {}
        loss = build_loss(name, num_classes=shape.classes, embedding_dim=DIMENSION, **knobs)
        contestants.append(step(loss, embeddings, labels))
    return [median(times) for times in take_turns(contestants, repeats, clock)]


def exponent(shapes: list[Shape], times: list[float], axis: str) -> float:
    """Return the slope of log time over log size at the largest sizes."""
    field = {"B": "batch", "C": "classes", "K": "proxies"}[axis]
    sizes = np.log([getattr(shape, field) for shape in shapes[-LARGEST:]])
    return float(np.polyfit(sizes, np.log(times[-LARGEST:]), 1)[0])


def main(repeats: int = 5) -> int:
    """Print one row per loss; return 1 if an exponent is above the printed one."""
    print(f"{torch.get_num_threads()} threads, {clock.__name__}, d = {DIMENSION}; measured exponent (printed)")
    print(f"{'loss':18}{'printed':>10}" + "".join(f"{axis:>16}" for axis in SIZES) + "   ms at the largest sizes")
    above = []
    for name, (printed, orders) in PRINTED.items():
        cells, longest = [], []
        for axis, shapes in SIZES.items():
            if axis not in orders:
                cells.append(f"{'':>16}")
                continue
            times = seconds(name, shapes, repeats)
            found = exponent(shapes, times, axis)
            cells.append(f"{f'{found:.2f} ({orders[axis]:g})':>16}")
            longest.append(f"{1000 * times[-1]:.1f}")
            above += [f"{name} in {axis}"] if found > orders[axis] + SLACK else []
        print(f"{name:18}{printed:>10}" + "".join(cells) + f"   {', '.join(longest)}", flush=True)
    print(f"Above the printed order: {', '.join(above) or 'none'}.")
    return int(bool(above))


if __name__ == "__main__":
    run_program(main, __doc__)
