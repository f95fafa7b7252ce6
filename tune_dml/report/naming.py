"""Names of metrics, knobs and cells in the report, and formats of their numbers."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainables.metrics.families import describe_key
from tune_dml.record.results import Results
from tune_dml.space import Knob, Value
from tune_dml.text import value_text

_SETS = {"val": "validation", "train": "training", "test": "test"}
_PERCENTAGES = {
    "verification_accuracy": "verification accuracy",
    "tar_at_far_1e-3": "TAR at FAR 0.001",
    "linear_top1": "linear evaluation top-1",
    "linear_top5": "linear evaluation top-5",
    "nmi": "NMI",
    "f1": "F1",
}
"""Names of percentages; ranking metrics declare their own names, and rank-1 is named by `_described`."""
_LOGGED = {
    "mu": "running mean norm mu",
    "eta": "weight eta",
    "direction_mean": "mean turn of directions",
    "direction_variance": "variance of turns",
}
"""Names of logged values whose key is not readable."""
_BENCHMARKED = ("verification_accuracy", "tar_at_far_1e-3")
"""Metrics that are also logged per benchmark, with its name as a suffix."""


@dataclass(frozen=True)
class MetricName:
    """The names and number formats of a metric."""

    key: str  # key of the logged metric: `val/recall_at_1`
    name: str  # name without the set: `R@1`
    label: str  # name with the set: `validation R@1`
    percent: bool

    @property
    def axis(self) -> str:
        """Axis title: label and unit."""
        return f"{self.label} [%]" if self.percent else self.label

    @property
    def unit(self) -> str:
        """Unit of differences; empty if the metric is not a percentage."""
        return "points" if self.percent else ""

    @property
    def unit_after(self) -> str:
        """Unit at the end of an axis title: `, points`; empty if the metric is not a percentage."""
        return f", {self.unit}" if self.unit else ""

    def description(self, goal: str) -> dict[str, str]:
        """Return the metric as JSON describes it beside its numbers; `goal` is that of the space."""
        return {"key": self.key, "label": self.axis, "goal": goal}

    def level_ends(self, low: float, high: float) -> tuple[float, float]:
        """Clip the interval of a mean to the metric's range; infinite intervals are not clipped."""
        return self._clipped(0.0, low, high)

    def change_ends(self, low: float, high: float) -> tuple[float, float]:
        """Clip the interval of a difference to the metric's range; infinite intervals are not clipped."""
        return self._clipped(-100.0, low, high)

    def _clipped(self, least: float, low: float, high: float) -> tuple[float, float]:
        if not self.percent or not math.isfinite(high - low):
            return low, high
        return min(max(low, least), 100.0), min(max(high, least), 100.0)

    def number(self, value: float) -> str:
        """Format a value: two decimals for percentages, else four significant digits; `-` if it is not finite."""
        if not math.isfinite(value):
            return "-"
        text = f"{value:.2f}" if self.percent else f"{value:#.4g}".rstrip(".")
        return "0" + text[2:] if set(text) <= set("-0.") and text.startswith("-") else text

    def signed(self, value: float) -> str:
        """Format a difference with its sign; one that is printed as 0 has none."""
        text = self.number(value)
        return f"+{text}" if value > 0 and math.isfinite(value) and text != self.number(0.0) else text

    def signed_amount(self, value: float) -> str:
        """Return a difference with its sign and unit: `+3.10 points`."""
        return f"{self.signed(value)} {self.unit}".strip()

    def interval(self, low: float, high: float) -> str:
        """Return `1.20 to 3.40`; empty unless both ends are finite."""
        is_finite = math.isfinite(low) and math.isfinite(high)
        return f"{self.number(low)} to {self.number(high)}" if is_finite else ""

    def rough(self, value: float) -> str:
        """Return a rounded amount: `19 points`, `2.4 points`, `0.31`."""
        text = self.number(value)
        if self.percent and math.isfinite(value):
            value = round(value, 9) + 0.0  # means of equal numbers differ by rounding; -0.0 becomes 0.0
            text = f"{value:.0f}" if abs(value) >= 10 or value == round(value) else f"{value:.2g}"
        unit = "point" if self.unit and text == "1" else self.unit
        return f"{text} {unit}".strip()

    def amount(self, value: float) -> str:
        """Return a number with its unit: `3.10 points`."""
        return f"{self.number(value)} {self.unit}".strip()


def metric_name(key: str) -> MetricName:
    """Return the name of a logged metric: `val/recall_at_1` is `validation R@1`, in percent."""
    group, _, tail = key.rpartition("/")
    name, percent = describe_key(tail) or _described(tail)
    return MetricName(key, name, f"{_SETS.get(group, group)} {name}".strip(), percent)


def metric_of(results: Results, key: str = "") -> MetricName:
    """Return the name of a metric of a sweep, its own by default.

    Other programs may log ours as fractions: such a figure is in percent only if one of its values is above 1.
    """
    metric = metric_name(key or results.plan.metric)
    if metric.percent and (results.imported is not None or results.plan.space.program is not None):
        values = [trial.metrics[metric.key] for trial in results.trials if metric.key in trial.metrics]
        return replace(metric, percent=not values or any(abs(value) > 1 for value in values))  # some may be NaN
    return metric


def _described(tail: str) -> tuple[str, bool]:
    """Return the name of a metric that does not declare one, and whether it is a percentage."""
    if rank_1 := re.fullmatch(r"rank1_at_(\d+)(?:_(\w+))?", tail):
        return f"rank-1@{rank_1[1]}" + (f" ({rank_1[2]})" if rank_1[2] else ""), True
    for key in _BENCHMARKED:
        if tail.startswith(f"{key}_"):
            return f"{_PERCENTAGES[key]} ({tail.removeprefix(f'{key}_')})", True
    name = _PERCENTAGES.get(tail)
    return (name, True) if name else (_LOGGED.get(tail) or tail.replace("_", " "), False)


def confidence(alpha: float) -> str:
    """Return the confidence of intervals at an error level: `95%`."""
    return f"{100 * (1 - alpha):.3g}%"


def floors_of(results: Results) -> dict[str, float]:
    """Return the values of the sweep's metric that are reached without training, by printed name.

    The names are `raw pixels` or `the raw features`, and `the untrained network`: an untrained one if networks differ.
    """
    networks = {
        tuple((path, str(value)) for path, value in sorted(cell.settings.items()) if path.startswith("model."))
        for cell in results.cells
    }
    untrained = "the untrained network" if len(networks) < 2 else "an untrained network"
    names = {"raw_features": "the raw features", "untrained_network": untrained}
    metric = results.plan.metric
    figures_by_name = {names.get(key, key.replace("_", " ")): figures for key, figures in results.floors.items()}
    return {name: figures[metric] for name, figures in figures_by_name.items() if metric in figures}


def slug(path: str) -> str:
    """Return a knob's path or a cell's label as an anchor and file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in path)


def distinct_slugs(names: Iterable[str]) -> dict[str, str]:
    """Return the slug of each name; slugs that are equal, or that differ only in case, get a suffix."""
    slugs: dict[str, str] = {}
    for name in names:
        text, taken = slug(name), {item.lower() for item in slugs.values()}
        while text.lower() in taken:
            text += "-2"
        slugs[name] = text
    return slugs


def symbol_of(knob: Knob) -> str:
    """Return the knob's name in sentences: its symbol, else the last part of its path."""
    return knob.symbol or knob.path.rpartition(".")[2]


def prose_label(label: str) -> str:
    """Return a cell's label as prose: `rho=0.01` -> `rho = 0.01`."""
    return label.replace("=", " = ")


def value_label(knob: Knob, value: Value) -> str:
    """Return the label of a knob's value: `rho=0.01`."""
    return f"{symbol_of(knob)}={value_text(value)}"
