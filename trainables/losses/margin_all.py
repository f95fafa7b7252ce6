"""Margin loss averaged over all pairs: the plain baseline of the robust losses."""

from __future__ import annotations

from collections.abc import Iterable

from trainables.errors import Problem
from trainables.losses.parts.pair_terms import Margin, MarginWidth, Threshold, margin_problems
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import Mean


class MarginAllLoss(PooledLoss):
    """L = mean over all pairs, positive and negative pooled, of [m + z (threshold - S)]_+, z = +1 / -1."""

    name = "margin_all"
    citation = "Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning, ECCV 2020"
    section = "5.1"

    def __init__(self, *, margin: MarginWidth = 0.2, threshold: Threshold = 0.5):
        super().__init__(Margin(margin, threshold), Mean())

    @classmethod
    def check_parameters(cls, *, margin: float, threshold: float) -> Iterable[Problem]:
        """Both signs must be able to have a loss."""
        return margin_problems(margin, threshold)
