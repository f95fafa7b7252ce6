"""Replay searches on the stored results of an atlas: evaluating a point of a loss's knobs takes microseconds.

    from tune_dml import replay

    surface = replay.surfaces(Path("sweeps/atlas/atlas.parquet"))["glyphs", "multi_similarity"]
    surface.value({"alpha": 3.0, "beta": 40.0}, seed=0)     # R@1 in percent, with that seed's noise
    surface.regret({"alpha": 3.0})                          # best mean of the surface minus the mean here

An atlas varies one knob at a time. Between its values, each seed's results are interpolated along the knob. The effects
of several knobs are added; interactions are ignored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainables.errors import ConfigError, Problem

if TYPE_CHECKING:
    import pandas as pd

_METRIC = "recall_at_1"
_COLUMNS = ("dataset", "loss", "knob", "value", "default", "seed", "status", _METRIC)
_DIVERGED = 0.0  # R@1 of a network that has diverged


@dataclass(frozen=True, eq=False)
class ReplayedKnob:
    """Results along one knob, with the other knobs at their defaults."""

    default: float
    values: NDArray[np.float64]
    """In ascending order, the default among them."""
    effects: NDArray[np.float64]
    """(values, seeds): result minus the default's result under the same seed."""

    @property
    def is_log(self) -> bool:
        """Whether the knob is interpolated on a logarithmic axis, as all its values are positive."""
        return bool(self.values[0] > 0)

    def effect(self, value: float, seed: int) -> float:
        """Return the interpolated effect of a value under a seed. A value outside the range counts as its end, with a warning."""
        scale = np.log if self.is_log else np.asarray
        low, high = float(self.values[0]), float(self.values[-1])
        clipped = min(max(value, low), high)
        if not math.isclose(clipped, value):
            warnings.warn(
                f"{value:g} is outside the measured range {low:g} to {high:g} and counts as its end", stacklevel=4
            )
        return float(np.interp(scale(clipped), scale(self.values), self.effects[:, seed]))


@dataclass(frozen=True, eq=False)
class Surface:
    """The results of a loss on a data set, measured by an atlas."""

    dataset: str
    loss: str
    centre: NDArray[np.float64]
    """(seeds,): results at the defaults."""
    knobs: Mapping[str, ReplayedKnob]

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.centre)

    def value(self, knobs: Mapping[str, float], seed: int) -> float:
        """Return the result of a trial in percent: the seed's default result and the effect of each knob, at least 0.

        Args:
            knobs: Values by name (`margin`) or path (`loss.margin`); those left out are at their defaults.
            seed: Number of the seed; seeds repeat after those of the atlas.

        Raises:
            KeyError: The loss has no such knob.
        """
        column = seed % self.seeds
        effects = (self.knobs[name.removeprefix("loss.")].effect(float(value), column) for name, value in knobs.items())
        return max(float(self.centre[column]) + sum(effects), 0.0)

    def mean(self, knobs: Mapping[str, float]) -> float:
        """Return the mean result over the atlas's seeds."""
        return float(np.mean([self.value(knobs, seed) for seed in range(self.seeds)]))

    @cached_property
    def best(self) -> dict[str, float]:
        """The best measured value of each knob; together they are the best point, because effects add."""
        return {name: float(knob.values[knob.effects.mean(axis=1).argmax()]) for name, knob in self.knobs.items()}

    def regret(self, knobs: Mapping[str, float]) -> float:
        """Return the mean at the best point minus the mean at a point."""
        return self.mean(self.best) - self.mean(knobs)


def read_table(path: Path | None) -> pd.DataFrame:
    """Read the table of an atlas from a parquet file. Raise ConfigError if it is unreadable or lacks columns."""
    import pandas as pd

    location, remedy = str(path), "`tune-dml atlas` writes one into sweeps/atlas."
    try:
        table = pd.read_parquet(location)
    except (OSError, ValueError) as error:
        raise ConfigError(Problem(location, "the table of an atlas cannot be read", str(error)[:80], remedy)) from None
    if missing := [name for name in _COLUMNS if name not in table.columns]:
        raise ConfigError(Problem(location, "the table of an atlas lacks columns", ", ".join(missing), remedy))
    numbers = ("value", "default", "seed", _METRIC)
    if wrong := [name for name in numbers if len(table) and not pd.api.types.is_numeric_dtype(table[name])]:
        raise ConfigError(Problem(location, "columns of an atlas must hold numbers", ", ".join(wrong), remedy))
    return table


def surfaces(
    table: pd.DataFrame | Path, *, at: Literal["end", "third", "ninth"] = "end"
) -> dict[tuple[str, str], Surface]:
    """Return the surfaces of an atlas by (data set, loss).

    A surface uses only the seeds under which every cell of the loss has ended. Losses without such a seed are left out.

    Args:
        table: The table of an atlas, or its file.
        at: Part of the training after which the results were measured. `third` and `ninth` are the evaluations at which
            early stopping compares trials; an atlas that evaluates only once has no such surfaces.
    """
    rows = read_table(table) if isinstance(table, Path) else table
    if at != "end":
        rows = rows.assign(**{_METRIC: rows.get(f"{_METRIC}_{at}", math.nan)})
    by_loss = {
        (str(dataset), str(loss)): _surface(str(dataset), str(loss), loss_rows, at_end=at == "end")
        for (dataset, loss), loss_rows in rows.groupby(["dataset", "loss"])
    }
    return {key: surface for key, surface in by_loss.items() if surface is not None and surface.knobs}


def _surface(dataset: str, loss: str, rows: Any, *, at_end: bool) -> Surface | None:
    unmeasured = rows[_METRIC].isna() | at_end
    results = rows.assign(result=rows[_METRIC].mask((rows["status"] == "diverged") & unmeasured, _DIVERGED))
    results = results.assign(value=results["value"].fillna(math.inf))  # rows of the defaults have no value
    table = results.pivot_table(index=["knob", "value"], columns="seed", values="result").dropna(axis="columns")
    if table.empty or ("", math.inf) not in table.index:
        return None
    centre = table.loc[("", math.inf)].to_numpy(dtype=float)
    defaults = rows[rows["knob"] != ""].groupby("knob")["default"].first()
    knobs = {}
    for name, default in defaults.items():
        cells = table.loc[name]
        values = np.append(cells.index.to_numpy(dtype=float), default)
        effects = np.vstack([cells.to_numpy(dtype=float) - centre, np.zeros(len(centre))])
        order = values.argsort()
        knobs[str(name)] = ReplayedKnob(float(default), values[order], effects[order])
    return Surface(dataset, loss, centre, knobs)
