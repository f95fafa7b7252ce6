"""The next values to try beyond an edge of the tested range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trainables.methods import KnobDomain


def extension(
    values: Sequence[float], side: str, *, scale: Literal["linear", "log"], domain: KnobDomain
) -> tuple[float, ...]:
    """The next two values beyond an edge, by the step (linear) or ratio (log) of its two outermost values.

    A step that leaves the legal domain is clipped to the bound where the bound itself is legal, and halves the distance to
    it where it is not (rho > 0: from 0.01 to 0.005); nothing is added when the edge is the bound.
    """
    edge, inner = (values[0], values[1]) if side == "low" else (values[-1], values[-2])
    bound = domain.low if side == "low" else domain.high
    added: list[float] = []
    for _ in range(2):
        value = edge * (edge / inner) if scale == "log" and inner > 0 < edge else edge + (edge - inner)
        if not domain.allows(value):
            value = bound if domain.allows(bound) else (edge + bound) / 2
        value = float(f"{value:.2g}") if not domain.integer else float(round(value))
        if value == edge or not domain.allows(value):
            break
        added.append(value)
        edge, inner = value, edge
    return tuple(added)
