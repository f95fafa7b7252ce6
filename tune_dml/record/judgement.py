"""What a report says of a sweep, in the form in which other places show it. Made by `tune_dml.report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CellJudgement:
    """What a report says of one cell."""

    figures: Mapping[str, float]
    """Name -> number: ends of the comparison bar, difference to the baseline with its interval; NaN where nothing is said."""
    text: str
    """One sentence."""


@dataclass(frozen=True)
class Judgement:
    """What a report says of a sweep."""

    text: tuple[str, ...]
    """The answer and the next step, a paragraph each."""
    figures: Mapping[str, float]
    """Name -> number: best cell, baseline, their difference; NaN where nothing is said."""
    cells: Mapping[str, CellJudgement]
    """By the cell's label."""
    figure: str
    """Name of the report's first figure; empty where it has none."""
    best: str
    """Label of the best cell; empty where none has a result."""
