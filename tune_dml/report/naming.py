"""How metrics, knob values and numbers are written for people."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass

from tune_dml.space import Knob, Value
from tune_dml.text import value_text

_SETS = {"val": "validation", "train": "training", "test": "test"}
_PERCENTAGES = {
    "recall_at": "R@{k}",
    "precision_at": "P@{k}",
    "map_at": "MAP@{k}",
    "ndcg_at": "nDCG@{k}",
    "map_at_r": "MAP@R",
    "r_precision": "R-precision",
    "verification_accuracy": "verification accuracy",
    "tar_at_far_1e-3": "TAR at FAR 0.001",
    "rank1_at": "rank-1@{k}",
    "linear_top1": "linear evaluation top-1",
    "linear_top5": "linear evaluation top-5",
    "nmi": "NMI",
    "f1": "F1",
}
_PLAIN = {
    "mu": "running mean norm mu",
    "eta": "weight eta",
    "direction_mean": "mean turn of directions",
    "direction_variance": "variance of turns",
}
"""Of those whose logged name, with spaces, would not do."""
_BENCHMARKED = ("verification_accuracy", "tar_at_far_1e-3")
"""Reported for each benchmark too, whose name follows."""


@dataclass(frozen=True)
class MetricName:
    """A metric as people read it."""

    key: str
    """As logged: `val/recall_at_1`."""
    name: str
    """Without the set: `R@1`."""
    label: str
    """With the set: `validation R@1`."""
    percent: bool

    @property
    def axis(self) -> str:
        """The axis title."""
        return f"{self.label} [%]" if self.percent else self.label

    @property
    def unit(self) -> str:
        """What differences are counted in; empty for plain numbers."""
        return "points" if self.percent else ""

    def number(self, value: float) -> str:
        """Two decimals for percentages, four significant digits otherwise."""
        if not math.isfinite(value):
            return "-"
        text = f"{value:.2f}" if self.percent else f"{value:#.4g}".rstrip(".")
        return "0" + text[2:] if set(text) <= set("-0.") and text.startswith("-") else text

    def signed(self, value: float) -> str:
        """A difference, with its sign."""
        text = self.number(value)
        return f"+{text}" if value > 0 and math.isfinite(value) else text

    def amount(self, value: float) -> str:
        """With the unit: `3.10 points`."""
        return f"{self.number(value)} {self.unit}".strip()


def metric_name(key: str) -> MetricName:
    """`val/recall_at_1` -> validation R@1, in percent; `val/verification_accuracy_lfw` -> ... (lfw)."""
    group, _, tail = key.rpartition("/")
    percentage = _percentage(tail)
    name = percentage or _PLAIN.get(tail) or tail.replace("_", " ")
    return MetricName(key, name, f"{_SETS.get(group, group)} {name}".strip(), bool(percentage))


def _percentage(tail: str) -> str | None:
    """What a metric in percent is called; None for others."""
    at = re.fullmatch(r"(\w+?_at)_(\d+)(?:_(\w+))?", tail)
    if tail not in _PERCENTAGES and at and at[1] in _PERCENTAGES:
        return _PERCENTAGES[at[1]].format(k=at[2]) + (f" ({at[3]})" if at[3] else "")
    benchmark = next((key for key in _BENCHMARKED if tail.startswith(f"{key}_")), None)
    if benchmark:
        return f"{_PERCENTAGES[benchmark]} ({tail.removeprefix(f'{benchmark}_')})"
    return _PERCENTAGES.get(tail)


def slug(path: str) -> str:
    """A knob's path or a cell's label as an anchor and file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in path)


def symbol_of(knob: Knob) -> str:
    """What the knob is called in sentences: the paper's symbol, else the last part of its path."""
    return knob.symbol or knob.path.rpartition(".")[2]


def value_label(knob: Knob, value: Value) -> str:
    """`rho=0.01`."""
    return f"{symbol_of(knob)}={value_text(value)}"


def extend_command(sweep: str, change: str) -> str:
    """`tune-dml extend SWEEP --seeds 5`."""
    return f"tune-dml extend {shlex.quote(sweep)} {change}"
