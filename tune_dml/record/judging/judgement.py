"""The report's findings as plain data, which `tune_dml.report` builds for MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CellJudgement:
    """The report's finding on one cell."""

    figures: Mapping[str, float]  # comparison bar, difference to the baseline, interval; NaN if not available
    text: str  # one sentence


@dataclass(frozen=True)
class Judgement:
    """The report's findings on a sweep."""

    text: tuple[str, ...]  # paragraphs: the answer and the next step
    figures: Mapping[str, float]  # best cell, baseline, their difference; NaN if not available
    cells: Mapping[str, CellJudgement]  # by the cell's label
    figure: str  # name of the report's first figure; may be empty
    best: str  # label of the best cell; empty if none has a result
