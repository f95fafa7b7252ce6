"""Measure which similarities the gradient of each proxy loss depends on: Table 1 and Figure 1 of the MPA paper.

Saeki et al., Multi-Proxy Anchor Family Loss for Several Types of Gradients, CVIU 2023; docs/specification.md, section
6.10. A toy batch has similarities S (B, C) to its classes. dL/dS_ic depends on S_jd if a change of S_jd
changes it. The program prints the measured row of each loss, and the printed entry if it differs.

    python benchmarks/mpa_gradients.py                          the table; a second
    python benchmarks/mpa_gradients.py --figure gradients.svg   also Figure 1: on which similarities the gradient of one
                                                                positive and one negative similarity depends, how much
"""

import math
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from trainables.losses import LOSSES, build_loss
from trainables.losses.parts.proxies import ProxyLoss
from trainables.methods import knob_names

CLASSES = 4
LABELS = (0, 0, 1, 2)  # two pictures share a class, and the batch lacks class 3
STEP = 1e-4
THRESHOLD = 1e-6  # smallest dependence that counts; similarities and gradients are of order one


COLUMNS = ("stability", "manifold", "similarity", "positive positive", "negative negative", "positive negative")
PRINTED = {
    "proxy_nca": (True, False, False, False, True, False),
    "proxy_anchor": (False, False, True, True, True, False),
    "soft_triple": (True, True, False, False, True, True),
    "mpa": (False, True, True, True, True, False),
    "mpa_dw": (True, True, True, False, True, False),
    "mpa_ap": (True, True, True, False, True, True),
}
"""Rows of the paper. Its "(tick)", not necessarily considered, is True here: the batch has two pictures of a class."""


def toy_batch() -> tuple[Tensor, Tensor]:
    """Return similarities (B, C), positives about .5 and negatives about .2, and labels (B,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor(LABELS)
    similarity = 0.2 + 0.1 * torch.randn(len(labels), CLASSES, generator=generator, dtype=torch.float64)
    similarity[torch.arange(len(labels)), labels] += 0.3
    return similarity, labels


def slopes(loss: ProxyLoss, similarity: Tensor, labels: Tensor) -> Tensor:
    """Return dL/dS (B, C)."""
    found: Tensor = loss.solve(similarity.clone(), labels, torch.ones(len(labels), dtype=similarity.dtype)).slopes
    return found.clone()


def influence(loss: ProxyLoss, similarity: Tensor, labels: Tensor) -> Tensor:
    """Return d²L / dS_ic dS_jd (B, C, B, C), by central differences of the gradient."""
    table = similarity.new_empty(*similarity.shape, *similarity.shape)
    for j in range(similarity.shape[0]):
        for d in range(similarity.shape[1]):
            nudge = torch.zeros_like(similarity)
            nudge[j, d] = STEP
            above, below = (slopes(loss, similarity + sign * nudge, labels) for sign in (1, -1))
            table[..., j, d] = (above - below) / (2 * STEP)
    return table


def measure_row(name: str) -> tuple[bool, ...]:
    """Return the row of a loss in Table 1, from its gradient on the toy batch."""
    similarity, labels = toy_batch()
    loss = toy_loss(name)
    depends = influence(loss, similarity, labels).abs() > THRESHOLD
    batch, classes = similarity.shape
    positive = torch.nn.functional.one_hot(labels, classes).bool()
    is_other = torch.ones(batch, classes, batch, classes, dtype=torch.bool)
    is_other.view(batch * classes, -1).fill_diagonal_(False)
    between = depends & is_other
    same_sample = torch.eye(batch, dtype=torch.bool)[:, None, :, None]

    def is_linked(first: Tensor, second: Tensor) -> bool:
        return bool((between & first[:, :, None, None] & second).any())

    shifted = slopes(loss, similarity + 0.05, labels) - slopes(loss, similarity, labels)
    return (
        not bool((depends & ~same_sample).any()),
        "proxies_per_class" in knob_names(LOSSES[name]),
        bool((shifted.abs() > THRESHOLD).any()),
        is_linked(positive, positive),
        is_linked(~positive, ~positive),
        is_linked(positive, ~positive) or is_linked(~positive, positive),
    )


def toy_loss(name: str) -> ProxyLoss:
    """Return a loss with small scales, so that rounding hides no term; scales change no entry of the table."""
    small = {"alpha": 4.0, "scale": 1.0, "la": 4.0}
    knobs = {knob: value for knob, value in small.items() if knob in knob_names(LOSSES[name])}
    loss = build_loss(name, num_classes=CLASSES, embedding_dim=2, **knobs).double()
    if not isinstance(loss, ProxyLoss):
        raise TypeError(f"{name} has no class similarities")
    return loss


def draw(path: Path) -> None:
    """Draw Figure 1: one panel each for the gradient of a positive and of a negative similarity of every loss.

    Squares are pictures, discs are proxies. The gradient of the black similarity depends on the red (own class) and
    blue (other class) ones; width shows how much.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    similarity, labels = toy_batch()
    angles = [2 * math.pi * c / CLASSES for c in range(CLASSES)]
    proxies = [(math.cos(angle), math.sin(angle)) for angle in angles]
    spots = [(0.5, 0.35), (0.5, -0.35), (-0.2, 0.45), (-0.5, -0.15)]
    figure = Figure(figsize=(2.1 * len(PRINTED), 4.6), layout="constrained")
    FigureCanvasSVG(figure)
    figure.get_layout_engine().set(rect=(0.02, 0, 0.98, 1))  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(2, len(PRINTED))
    for column, name in enumerate(PRINTED):
        table = influence(toy_loss(name), similarity, labels)
        for row, (i, c) in enumerate(((0, 0), (0, 1))):
            axis, strengths = axes[row, column], table[i, c].abs()
            top = float(strengths.max()) or 1.0
            for j in range(len(labels)):
                for d in range(CLASSES):
                    if strengths[j, d] > THRESHOLD and (j, d) != (i, c):
                        colour = "#c0392b" if labels[j] == d else "#2760a8"
                        width = 0.6 + 3 * float(strengths[j, d]) / top
                        axis.plot(*zip(spots[j], proxies[d], strict=True), color=colour, linewidth=width, zorder=1)
            axis.plot(*zip(spots[i], proxies[c], strict=True), color="black", linewidth=1.6, zorder=2)
            for d, spot in enumerate(proxies):
                axis.plot(*spot, "o", color="black", markersize=9, zorder=3)
                axis.annotate(str(d), spot, color="white", ha="center", va="center", fontsize=7, zorder=4)
            for label, spot in zip(labels.tolist(), spots, strict=True):
                axis.plot(*spot, "s", color="#e8e8e8", markeredgecolor="black", markersize=10, zorder=3)
                axis.annotate(str(label), spot, ha="center", va="center", fontsize=7, zorder=4)
            axis.set_axis_off()
            axis.set_aspect("equal")
            if not row:
                axis.set_title(name, fontsize=10)
    for row, text in enumerate(("own class", "other class")):
        figure.text(0.005, 0.72 - 0.46 * row, text, rotation=90, va="center", fontsize=9)
    with rc_context({"svg.hashsalt": "mpa"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(figure: Annotated[Path | None, typer.Option(help="SVG file for Figure 1")] = None) -> int:
    """Print the table; return 1 if a row differs from the printed one."""
    print(f"{'':14}" + "".join(f"{title:>20}" for title in COLUMNS))
    differing = []
    for name, printed in PRINTED.items():
        found = measure_row(name)
        cells = [
            ("yes" if ours else "-") + ("" if ours == theirs else f" (printed: {'yes' if theirs else '-'})")
            for ours, theirs in zip(found, printed, strict=True)
        ]
        print(f"{name:14}" + "".join(f"{cell:>20}" for cell in cells))
        differing += [name] if found != printed else []
    print(f"As printed: {len(PRINTED) - len(differing)} of {len(PRINTED)} rows.")
    if figure:
        draw(figure)
        print(figure)
    return int(bool(differing))


if __name__ == "__main__":
    from program import run_program

    run_program(main, __doc__)
