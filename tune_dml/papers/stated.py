"""Settings with the source that states them, and what travels with a loss to every data set."""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.papers.paper import Settings


@dataclass(frozen=True)
class Stated:
    """Settings that one source states."""

    source: str
    """`paper: ...`, `code: ...`, or `open: ...` where neither says it and the choice is ours."""
    settings: Settings


@dataclass(frozen=True)
class Recipe:
    """What the batches of some losses look like, and how fast the losses' own parameters learn, on any data set."""

    methods: tuple[str, ...]
    """The losses that it is for."""
    stated: Stated
    loss_lr: float | None = None
    """Learning rate of proxies and class weights; None where the loss has none, or the rate is not known."""
