"""Measure error rate and power of verdicts about a paper's order, which `verdicts.py` prints."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.verdicts.equivalence import ASSUMED_SD, judge_order

_KINDS = ("iid", "t3", "one cell 5x", "slope", "discrete")


def order(sweeps: int) -> Iterable[str]:
    """Print error rate and power of comparisons of sweeps with printed single runs."""
    draws = max(200, sweeps // 4)
    yield "5 values, noise 0.5 within seeds, printed single runs; both curves rise, or one or both are flat."
    yield "A false claim about some pair: run s.d. 0.5 assumed, true 0.5 / 1.0"
    for name, ours, theirs in (
        ("alike", 0.4, 0.4),
        ("paper flat", 2.0, 0.0),
        ("ours flat", 0.0, 2.0),
        ("both flat", 0.0, 0.0),
    ):
        for seeds in (3, 10):
            row = []
            for kind in _KINDS:
                drawn = [_PaperSweeps(kind, seeds, draws, ours, theirs, sd) for sd in (ASSUMED_SD, 2 * ASSUMED_SD)]
                row.append(f"{kind} {' / '.join(rate(sweeps_of.wrong()) for sweeps_of in drawn)}")
            yield f"{name:>10} {seeds:2d} seeds:  " + "   ".join(row)
    yield "Ours falls where the paper rises: share of the 10 pairs found"
    for step in (1.0, 2.0, 4.0):
        for seeds in (3, 10):
            row = []
            for kind in _KINDS:
                falling = _PaperSweeps(kind, seeds, draws, -step, step, ASSUMED_SD)
                row.append(f"{kind} {falling.found():.2f}")
            yield f"{step:4.0f} points a step {seeds:2d} seeds:  " + "   ".join(row)


@dataclass(frozen=True)
class _PaperSweeps:
    """Simulated sweeps and a paper's single runs of five values."""

    kind: str
    seeds: int
    sweeps: int
    ours: float
    """Increase of our means from value to value, in points."""
    theirs: float
    sd: float
    """The paper's run-to-run standard deviation."""

    def wrong(self) -> Array:
        """Return which sweeps have a pair that is wrongly called the same or opposite."""
        truth = np.sign(self.ours) * np.sign(self.theirs)
        counts = self._counts()
        return np.asarray((counts[:, 0] > 0) & (truth <= 0) | (counts[:, 1] > 0) & (truth >= 0))

    def found(self) -> float:
        """Return the share of pairs that are called opposite."""
        return float(self._counts()[:, 1].mean()) / 10

    def _counts(self) -> Array:
        """Return the numbers of pairs called the same and opposite in each sweep."""
        rng = np.random.default_rng([self.seeds, len(self.kind), int(10 * self.sd)])
        values_of_knob = np.arange(5.0)
        values = self.ours * values_of_knob[:, None] + 0.5 * simulate(self.kind, 5, self.seeds, self.sweeps, rng)
        if self.kind == "discrete":  # 358 queries
            values = 100 / 358 * np.round((60 + values) * 3.58)
        printed = np.round(self.theirs * values_of_knob + self.sd * rng.standard_normal((self.sweeps, 5)), 2)
        bounds = all_pairs(values, noise=fit_pairs(values, 100 / 358 if self.kind == "discrete" else 0.0))
        judged = [
            judge_order(
                bounds.estimate[row], bounds.low[row], bounds.high[row], printed[row].tolist(), run_sd=ASSUMED_SD
            )
            for row in range(self.sweeps)
        ]
        return np.array([(judgement.same, judgement.opposite) for judgement in judged])
