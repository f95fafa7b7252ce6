"""Settings with their source, and recipes that apply to a loss on every data set."""

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
    """The batches of some losses, and the learning rate of the losses' own parameters, for every data set."""

    methods: tuple[str, ...]
    """Names of the losses."""
    stated: Stated
    loss_lr: float | None = None
    """Learning rate of proxies and class weights; None where the loss has none, or the rate is not known."""
